"""PiT against its papers, TF-TAS's supplement and timm's implementation."""

from __future__ import annotations

import re
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from timm.models import group_parameters
from timm.models.pit import PoolingVisionTransformer
from torch import nn

from families.small import golden, images, randomise
from nasformer.errors import UserError
from nasformer.families.pit import PRESETS, PiT, declare
from nasformer.layers.basic import DropPath
from nasformer.layers.blocks import TransformerBlock
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet

TOY = declare((4, 6), (1, 2, 4), depth=((1, 2), (1, 2), (1, 2)), mlp_ratio=(2, 3))
NET = {"base_dim": 6, "mlp_ratio": 3, "depth": [2, 1, 2], "num_heads": [1, 2, 4]}  # stages 6, 12 and 24 wide


def toy_space(**options: Any) -> Space:
    return Space("toy", PiT, TOY, {"img_size": 32, "patch_size": 4, "stride": 2, "num_classes": 10, **options})


def toy_model(**options: Any) -> PiT:
    space = toy_space(**options)
    model = randomise(space.build(space.arch(NET))).eval()
    assert isinstance(model, PiT)
    return model


# Published numbers


@pytest.mark.parametrize(
    ("preset", "home", "millions", "billions"),
    [
        ("pit-ti", "pit-tiny", "4.85", "0.70"),
        ("pit-xs", "pit-xs", "10.62", "1.4"),
        ("pit-s", "pit-small", "23.46", "2.9"),
        ("tf-tas-pit-ti", "pit-tiny", "4.732", "0.672"),
        ("tf-tas-pit-xs", "pit-xs", "10.643", "1.826"),
        ("tf-tas-pit-s", "pit-small", "24.966", "3.406"),
        ("tf-tas-pit-s-supplement", "pit-small", "14.451", "2.406"),
    ],
)
def test_published_nets(preset: str, home: str, millions: str, billions: str) -> None:
    """What others count is what we count: matrix products and convolutions, attention's two products included."""
    space = get_space(home)
    assert space.root.contains(PRESETS[preset])
    cost = space.cost(space.arch(preset))
    for found, printed in ((cost.params / 1e6, millions), (cost.macs / 1e9, billions)):
        digits = len(printed.split(".")[1])
        assert f"{found:.{digits}f}" == printed
    assert cost.position_macs == cost.position_macs_literal == 0  # its positions are absolute


@pytest.mark.parametrize("name", ["pit-tiny", "pit-xs", "pit-small"])
def test_cardinality(name: str) -> None:
    root = get_space(name).root
    assert root.cardinality == 4 * 27 * 10 * 4 == 4320
    triples = {tuple(arch.num_heads.values()) for arch in root.enumerate()}
    assert len(triples) == 10
    assert all(b % a == c % b == 0 for a, b, c in triples)


def test_full_size_ends_of_the_largest_space() -> None:
    """The tests over all spaces take narrower nets here."""
    space = get_space("pit-small")
    for arch in (space.root.smallest(), space.root.largest()):
        with torch.device("meta"):
            assert space.cost(arch).params == sum(weight.numel() for weight in space.build(arch).parameters())


def test_archs_of_the_published_accuracies_are_members() -> None:
    rows, space = golden("ground_truth_pit.json")["rows"], get_space("pit-tiny")
    archs = [space.arch(row["arch"]) for row in rows]
    assert archs
    for arch, row in zip(archs, rows, strict=True):
        assert list(arch.depth.values()) == row["arch"]["depth"]
        assert list(arch.num_heads.values()) == row["arch"]["num_heads"]


# Archs as papers print them


def test_columns_mean_stages() -> None:
    space = toy_space()
    stages = {"depth": {"stage1": 2, "stage2": 1, "stage3": 2}, "num_heads": {"stage1": 1, "stage2": 2, "stage3": 4}}
    assert space.arch(NET) == space.arch({"base_dim": 6, "mlp_ratio": 3, **stages})
    assert space.arch(NET).to_dict() == {"base_dim": 6, "mlp_ratio": 3, **stages}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": [2, 4]}, "num_heads has 2 entries, expected 3: one for each stage"),
        ({"depth": [1, 1, 1, 1]}, "depth has 4 entries, expected 3: one for each stage"),
        ({"depth": [1, 3, 1]}, "arch.depth.stage2 is 3, allowed: 1, 2"),
        ({"depth": 2}, "arch.depth is 2, expected the fields: stage1, stage2, stage3"),
        ({"num_heads": [2, 1, 4]}, "each stage's heads are a multiple of the stage before"),
        ({"base_dim": 5}, "arch.base_dim is 5, allowed: 4, 6"),
        ({"embed_dim": 64}, "arch has the unknown field 'embed_dim'"),
    ],
)
def test_wrong_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        toy_space().arch({**NET, **change})


# timm's PiT is the same net


def compare(ours: PiT, theirs: PoolingVisionTransformer, size: tuple[int, int]) -> None:
    randomise(theirs)
    ours.load_state_dict(PiT.from_timm(theirs.state_dict()))
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = theirs.eval()(x), ours.eval()(x)
        assert (found - expected).norm() < 1e-5 * expected.norm()
        torch.testing.assert_close(ours.forward_features(x)[:, :1], theirs.forward_features(x), rtol=1e-4, atol=1e-4)
        maps = theirs.forward_intermediates(x, intermediates_only=True)
        for mine, other in zip(ours.forward_intermediates(x, intermediates_only=True), maps, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("img_size", [(32, 32), (32, 48), (17, 17)])
def test_small_net_equals_timms(img_size: tuple[int, int]) -> None:
    patch = 4 if img_size[0] == 32 else 3
    ours = toy_model(img_size=img_size, patch_size=patch)
    dims, depths, heads = [6, 6, 6], NET["depth"], NET["num_heads"]
    theirs = PoolingVisionTransformer(img_size, patch, 2, "overlap", dims, depths, heads, 3, num_classes=10)
    compare(ours, theirs, img_size)


@pytest.mark.parametrize(
    "level", ["ti", pytest.param("xs", marks=pytest.mark.slow), pytest.param("s", marks=pytest.mark.slow)]
)
def test_published_net_equals_timms(level: str) -> None:
    ours = PiT(PRESETS[f"pit-{level}"])
    compare(ours, timm.create_model(f"pit_{level}_224"), (224, 224))


def test_distilled_weights_are_refused() -> None:
    with torch.device("meta"):
        state = timm.create_model("pit_ti_distilled_224").state_dict()
    with pytest.raises(UserError, match="distilled PiT"):
        PiT.from_timm(state)


def test_stochastic_depth_is_timms() -> None:
    theirs = timm.create_model("pit_ti_224", img_size=32, drop_path_rate=0.3)
    expected = [getattr(block.drop_path1, "drop_prob", 0.0) for stage in theirs.transformers for block in stage.blocks]
    ours = PiT(PRESETS["pit-ti"], img_size=32, drop_path_rate=0.3)
    rates = [module.rate.item() for module in ours.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx(expected)
    assert rates[-1] == pytest.approx(0.3)
    assert not any(isinstance(module, DropPath) for module in toy_model(drop_path_rate=0.0).modules())


def test_norms_are_timms() -> None:
    norms = [module for module in toy_model().modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 5 + 1
    assert {norm.eps for norm in norms} == {1e-6}


# Weights at the start


def test_linear_layers_start_as_torch_has_them_and_the_head_small() -> None:
    torch.manual_seed(0)
    model = PiT(PRESETS["pit-ti"], img_size=32)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    head = linears.pop("head.fc")
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not head.bias.any()
    assert len({linear.in_features for linear in linears.values()}) > 3
    for name, linear in linears.items():
        bound = linear.in_features**-0.5  # uniform within it, weight and bias
        assert linear.weight.abs().max() <= bound, name
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05), name
        assert 0 < linear.bias.abs().max() <= bound, name


# Sharing


def test_pooling_filters_belong_to_the_channels_they_make() -> None:
    space = toy_space()
    supernet = randomise(Supernet(space))
    shared = dict(supernet.weights.named_parameters())
    for heads in ([1, 1, 2], [1, 2, 4], [1, 4, 4], [2, 2, 2]):
        arch = space.arch({**NET, "base_dim": 4, "num_heads": heads})
        pool = supernet.extract(arch).get_submodule("stages.1.pool")
        before, after = 4 * heads[0], 4 * heads[1]
        assert torch.equal(pool.conv.weight, shared["stages.1.pool.conv.weight"][:after])
        assert torch.equal(pool.conv.bias, shared["stages.1.pool.conv.bias"][:after])
        assert torch.equal(pool.fc.weight, shared["stages.1.pool.fc.weight"][:after, :before])
        x = torch.randn(1, before, 15, 15)
        source = x[:, torch.arange(after) // (after // before)]
        filters = shared["stages.1.pool.conv.weight"][:after]
        expected = F.conv2d(source, filters, pool.conv.bias, stride=2, padding=1, groups=after)
        torch.testing.assert_close(pool.conv(x), expected)


def test_q_k_and_v_are_sliced_each() -> None:
    space = toy_space()
    supernet = randomise(Supernet(space))
    shared = supernet.weights.get_parameter("stages.0.blocks.0.attn.qkv.weight").unflatten(0, (3, -1))
    sliced = supernet.slices(space.arch({**NET, "base_dim": 4}))["stages.0.blocks.0.attn.qkv.weight"]
    assert shared.shape == (3, 24, 24)  # 4 heads of 6
    assert torch.equal(sliced.unflatten(0, (3, -1)), shared[:, :4, :4])


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"img_size": (32, 48)},
        {"patch_size": 3, "stride": 1},
        {"patch_size": 8, "stride": 8},
        {"num_classes": 0},
        {"in_chans": 1},
        {"global_pool": "avg", "drop_path_rate": 0.0},
    ],
    ids=str,
)
def test_options_change_cost_and_model_alike(options: dict[str, Any]) -> None:
    model, space = toy_model(**options), toy_space(**options)
    assert space.cost(model.arch).params == sum(parameter.numel() for parameter in model.parameters())
    assert model(images(space)).shape == (2, model.num_classes or 24)


def test_global_pool() -> None:
    model, x = toy_model(global_pool="avg"), images(toy_space())
    features = model.forward_features(x)
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 1:].mean(1))
    model.reset_classifier(10, global_pool="token")
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
    with pytest.raises(UserError, match="global_pool is 'max', allowed: token, avg"):
        toy_model(global_pool="max")


@pytest.mark.parametrize(
    "options", [{"img_size": 33}, {"img_size": 2}, {"img_size": (32, 31)}, {"stride": 3}, {"stride": 0}], ids=str
)
def test_patches_must_cover_the_image(options: dict[str, Any]) -> None:
    stride = options.get("stride", 2)
    with pytest.raises(UserError, match=f"is not patch_size 4 plus a multiple of stride {stride}; change one of them"):
        toy_model(**options)


# Maps of the stages, which differ in width and resolution


def test_maps_at_full_size() -> None:
    with torch.device("meta"):
        model = PiT(PRESETS["pit-s"]).eval()
        maps = model.forward_intermediates(torch.randn(1, 3, 224, 224), intermediates_only=True)
    assert [tuple(found.shape[1:]) for found in maps] == [(144, 27, 27), (288, 14, 14), (576, 7, 7)]
    assert [info["reduction"] for info in model.feature_info] == [8, 16, 32]
    assert [info["num_chs"] for info in model.feature_info] == [144, 288, 576]
    assert model.num_features == 576


def test_norm_fits_the_last_stage_alone() -> None:
    model, x = toy_model(), images(toy_space())
    plain = model.forward_intermediates(x, intermediates_only=True)
    normed = model.forward_intermediates(x, norm=True, intermediates_only=True)
    assert [torch.equal(a, b) for a, b in zip(plain, normed, strict=True)] == [True, True, False]
    tokens, (first,) = model.forward_intermediates(x, [0], stop_early=True)
    assert tokens.shape == (2, 1 + 15 * 15, 6)  # as they leave the first stage
    assert torch.equal(first, plain[0])


def test_pruned_to_a_narrower_stage() -> None:
    model, x = toy_model(), images(toy_space())
    maps = model.forward_intermediates(x, intermediates_only=True)
    with pytest.raises(UserError, match=re.escape("the head reads 24 features, stages.1.blocks.0 gives 12")):
        model.prune_intermediate_layers([1], prune_head=False)
    assert model.prune_intermediate_layers([1]) == [1]
    assert len(model.stages) == 2
    assert torch.equal(model.forward_intermediates(x, 1, intermediates_only=True)[0], maps[1])
    assert model.num_features == 12
    assert model(x).shape == (2, 12)
    model.reset_classifier(5)
    assert model(x).shape == (2, 5)


def test_pooling_learns_with_the_first_block_behind_it() -> None:
    model = toy_model()
    groups = group_parameters(model, model.group_matcher())
    with_pool = [names for names in groups.values() if any(".pool." in name for name in names)]
    blocks = [{".".join(name.split(".")[:4]) for name in names if ".blocks." in name} for names in with_pool]
    assert blocks == [{"stages.1.blocks.0"}, {"stages.2.blocks.0"}]


# Another image size


@pytest.mark.parametrize("img_size", [32, 48, (20, 64)])
def test_other_input_size(img_size: int | tuple[int, int]) -> None:
    model, space = toy_model(), toy_space(img_size=img_size)
    state = model.state_dict()
    model.set_input_size(img_size)
    grid = model.patch_embed.grid
    resampled = resample_abs_pos_embed(state["patch_embed.pos_embed"], list(grid), [15, 15], num_prefix_tokens=0)
    fresh = space.build(model.arch).eval()  # all else is as if built at that size
    fresh.load_state_dict({**state, "patch_embed.pos_embed": resampled})
    assert torch.equal(model(images(space)), fresh(images(space)))
    blocks = [[m.attn.grid for m in net.modules() if isinstance(m, TransformerBlock)] for net in (model, fresh)]
    assert blocks[0] == blocks[1]
    assert model.options["img_size"] == img_size


def test_refused_input_size_changes_nothing() -> None:
    model, x = toy_model(), images(toy_space())
    before = model(x)
    with pytest.raises(UserError, match="plus a multiple of stride 2"):
        model.set_input_size(33)
    assert torch.equal(model(x), before)
    assert model.options["img_size"] == 32


def test_input_size_of_a_pruned_model() -> None:
    model = toy_model()
    model.prune_intermediate_layers([0])
    model.set_input_size(48)
    (found,) = model.forward_intermediates(torch.randn(1, 3, 48, 48), intermediates_only=True)
    assert found.shape == (1, 6, 23, 23)


def test_stages_go_by_name_in_any_order() -> None:
    """Stages go by name, whatever the order in which a file has them."""
    arch = toy_space().arch(NET).to_dict()
    mixed = {**arch, "depth": dict(reversed(arch["depth"].items()))}
    assert PiT.plan(Arch.from_dict(mixed)) == PiT.plan(Arch.from_dict(arch))
