"""AutoFormer against its papers, its published code and timm's vision transformer."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from families.small import golden, images, randomise, small_space
from nasformer.errors import UserError
from nasformer.families.autoformer import PRESETS, AutoFormer, declare
from nasformer.layers.basic import DropPath
from nasformer.models.registry import get_space
from nasformer.models.space import Space

TOY = declare((32, 48), (2, 4), (2.0, 4.0), (2, 3))


def toy_space(**options: Any) -> Space:
    return Space(
        "toy", AutoFormer, TOY, {"img_size": 32, "patch_size": 8, "num_classes": 10, "head_dim": 16, **options}
    )


def toy_model(**options: Any) -> AutoFormer:
    model = randomise(toy_space(**options).build(TOY.largest())).eval()
    assert isinstance(model, AutoFormer)
    return model


# Published numbers


@pytest.mark.parametrize(
    ("preset", "space", "params", "macs", "literal"),
    [
        ("autoformer-t", "autoformer-tiny-mlp3", 5867944, 1283236352, 198702080),
        ("autoformer-s", "autoformer-small", 22891432, 4773931776, 387469056),
        ("autoformer-b", "autoformer-base", 53691688, 11045397248, 645781760),
    ],
)
def test_exact_cost_of_the_published_nets(preset: str, space: str, params: int, macs: int, literal: int) -> None:
    cost = get_space(space).cost(PRESETS[preset])
    assert (cost.params, cost.macs, cost.position_macs_literal) == (params, macs, literal)


@pytest.mark.parametrize(
    ("preset", "millions", "billions"),
    [
        ("autoformer-t", "5.868", "1.283"),
        ("autoformer-s", "22.891", "4.774"),
        ("autoformer-b", "53.692", "11.045"),
        ("tf-tas-ti", "6.201", "1.363"),
        ("tf-tas-ti-supplement", "6.238", "1.371"),
        ("tf-tas-s", "23.935", "5.007"),
        ("tf-tas-b", "56.471", "11.65"),
        ("tf-tas-b-supplement", "57.135", "11.78"),
    ],
)
def test_cost_rounds_to_what_is_printed(preset: str, millions: str, billions: str) -> None:
    cost = get_space("autoformer-tiny").cost(PRESETS[preset])
    for found, printed in ((cost.params / 1e6, millions), (cost.macs / 1e9, billions)):
        digits = len(printed.split(".")[1])
        assert f"{found:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("preset", "billions"), [("autoformer-t", "0.199"), ("autoformer-s", "0.387"), ("autoformer-b", "0.646")]
)
def test_relative_positions_cost_what_the_published_form_needs(preset: str, billions: str) -> None:
    cost = get_space("autoformer-tiny").cost(PRESETS[preset])
    assert f"{cost.position_macs_literal / 1e9:.3f}" == billions


@pytest.mark.parametrize(
    ("name", "cardinality", "printed"),
    [
        ("autoformer-tiny", 3 * (4**12 + 4**13 + 4**14), "1.06e+09"),
        ("autoformer-tiny-mlp3", 3 * (6**12 + 6**13 + 6**14), "2.81e+11"),
        ("autoformer-small", 3 * (9**12 + 9**13 + 9**14), "7.71e+13"),
        ("autoformer-base", 3 * (9**14 + 9**15 + 9**16), "6.25e+15"),
        ("autoformer-micro", 3 * (9**3 + 9**4 + 9**5 + 9**6), "1.79e+06"),
    ],
)
def test_cardinality(name: str, cardinality: int, printed: str) -> None:
    assert get_space(name).root.cardinality == cardinality
    assert f"{cardinality:.2e}" == printed


@pytest.mark.parametrize(
    ("preset", "home"),
    [
        ("autoformer-t", "autoformer-tiny-mlp3"),
        ("autoformer-s", "autoformer-small"),
        ("autoformer-b", "autoformer-base"),
        ("tf-tas-ti", "autoformer-tiny"),
        ("tf-tas-ti-supplement", "autoformer-tiny"),
        ("tf-tas-s", "autoformer-small"),
        ("tf-tas-b", "autoformer-base"),
        ("tf-tas-b-supplement", "autoformer-base"),
    ],
)
def test_published_nets_are_members_of_their_spaces(preset: str, home: str) -> None:
    assert get_space(home).root.contains(PRESETS[preset])


def test_published_tiny_is_outside_the_papers_tiny_space() -> None:
    space = get_space("autoformer-tiny")
    assert not space.root.contains(PRESETS["autoformer-t"])
    assert space.arch("autoformer-t") == PRESETS["autoformer-t"]  # as a preset it can be asked for all the same
    with pytest.raises(UserError, match=r"blocks\[2\].mlp_ratio is 3.0, allowed: 3.5, 4.0"):
        space.arch(PRESETS["autoformer-t"].to_dict())


@pytest.mark.parametrize("level", ["tiny", "small", "base"])
def test_parameters_equal_the_published_implementation(level: str) -> None:
    rows, space = golden("autoformer_params.json")[level], get_space(f"autoformer-{level}")
    assert rows
    assert [space.cost(space.arch(row["arch"])).params for row in rows] == [row["params"] for row in rows]


# Archs as papers print them


def test_columns_mean_blocks() -> None:
    space = toy_space()
    blocks = [{"num_heads": 2, "mlp_ratio": 4.0}, {"num_heads": 4, "mlp_ratio": 2.0}]
    expected = space.arch({"embed_dim": 48, "blocks": blocks})
    columns = {"embed_dim": 48, "num_heads": [2, 4], "mlp_ratio": [4.0, 2.0]}
    assert space.arch(columns) == expected
    assert space.arch({**columns, "depth": 2}) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, "depth is 3, num_heads has 2 entries and mlp_ratio 2; all must agree"),
        ({"num_heads": [2, 2, 2]}, "depth is 3, num_heads has 3 entries and mlp_ratio 2; all must agree"),
        ({"num_heads": [2, 3]}, "arch.blocks[1].num_heads is 3, allowed: 2, 4"),
        ({"embed_dim": 40}, "arch.embed_dim is 40, allowed: 32, 48"),
        ({"num_heads": [2], "mlp_ratio": [2.0]}, "arch.blocks has 1 items, allowed: 2, 3"),
        ({"num_heads": 2, "mlp_ratio": 2.0}, "num_heads and mlp_ratio must be lists with one entry for each layer"),
        ({"head_dim": 64}, "arch has the unknown field 'head_dim'"),
    ],
)
def test_wrong_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        toy_space().arch({"embed_dim": 48, "num_heads": [2, 4], "mlp_ratio": [4.0, 2.0], **change})


# timm's vision transformer is the same net without relative positions


@pytest.mark.parametrize("img_size", [32, (32, 64)])
@pytest.mark.parametrize("global_pool", ["avg", "token"])
def test_plain_net_equals_timm(global_pool: str, img_size: int | tuple[int, int]) -> None:
    space = toy_space(relative_position=False, head_dim=None, img_size=img_size, global_pool=global_pool)
    arch = space.root.largest()
    ours = randomise(space.build(arch)).eval()
    theirs = VisionTransformer(
        img_size=img_size,
        patch_size=8,
        embed_dim=arch.embed_dim,
        depth=len(arch.blocks),
        num_heads=arch.blocks[0].num_heads,
        mlp_ratio=arch.blocks[0].mlp_ratio,
        num_classes=10,
        global_pool=global_pool,
        fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    ).eval()
    names = {"patch_embed.cls_token": "cls_token", "patch_embed.pos_embed": "pos_embed"}
    names |= {"head.fc.weight": "head.weight", "head.fc.bias": "head.bias"}
    theirs.load_state_dict({names.get(name, name): weight for name, weight in ours.state_dict().items()})
    x = images(space, batch=3)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.forward_features(x), theirs.forward_features(x), rtol=1e-5, atol=1e-5)


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"img_size": (32, 64)},
        {"num_classes": 0},
        {"in_chans": 1},
        {"qkv_bias": False},
        {"relative_position": False},
        {"max_relative_position": 2},
        {"head_dim": None},
        {"global_pool": "token", "drop_path_rate": 0.0},
    ],
    ids=str,
)
def test_options_change_cost_and_model_alike(options: dict[str, Any]) -> None:
    space = toy_space(**options)
    model = space.build(TOY.largest()).eval()
    assert space.cost(TOY.largest()).params == sum(parameter.numel() for parameter in model.parameters())
    assert model(images(space)).shape == (2, model.num_classes or model.num_features)


def test_images_need_not_be_square() -> None:
    model, x = toy_model(img_size=(32, 64)), torch.randn(2, 3, 32, 64)
    assert model(x).shape == (2, 10)
    assert model.forward_intermediates(x, 1, intermediates_only=True)[0].shape == (2, 48, 4, 8)
    assert not torch.allclose(model(x), model(x.flip(3)), atol=1e-3)


@pytest.mark.parametrize("img_size", [30, (32, 36), 4, 0])
def test_image_must_be_a_multiple_of_the_patch(img_size: int | tuple[int, int]) -> None:
    with pytest.raises(UserError, match="is not a multiple of patch_size 8"):
        toy_space(img_size=img_size).build(TOY.smallest())
    with pytest.raises(UserError, match="is not a multiple of patch_size 8"):
        toy_model().set_input_size(img_size)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="no model option 'image_size'"):
        toy_space().with_options(image_size=64)


def rates(model: nn.Module) -> list[float]:
    return [module.rate.item() for module in model.modules() if isinstance(module, DropPath)]


def test_drop_path_follows_the_deepest_net_of_the_space() -> None:
    space = small_space(get_space("autoformer-tiny"))
    arch = space.root.smallest()
    assert len(arch.blocks) == 12
    assert rates(space.build(arch)) == pytest.approx(torch.linspace(0, 0.1, 14)[:12].tolist())
    planned = [segment.drop_path for segment in space.plan(arch) if segment.name.startswith("blocks.")]
    assert planned == pytest.approx(rates(space.build(arch)))


def test_drop_path_of_a_net_on_its_own() -> None:
    assert rates(toy_model(drop_path_rate=0.2)) == pytest.approx([0, 0.1, 0.2])
    assert rates(toy_model(drop_path_rate=0.0)) == []
    one = Space("one", AutoFormer, declare((32,), (2,), (2.0,), (1,)), {"img_size": 32, "patch_size": 8})
    assert rates(one.build(one.root.smallest())) == [0]


def test_no_weight_decay() -> None:
    assert toy_model().no_weight_decay() == {"patch_embed.pos_embed", "patch_embed.cls_token"}


# Another task, another image size


def test_new_pooling_goes_into_the_options() -> None:
    model, x = toy_model(), images(toy_space())
    features = model.forward_features(x)
    model.reset_classifier(10, global_pool="token")
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
    rebuilt = AutoFormer(model.arch, **model.options).eval()
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(rebuilt(x), model(x))


@pytest.mark.parametrize("img_size", [32, (32, 64)])
def test_same_input_size_changes_nothing(img_size: int | tuple[int, int]) -> None:
    space = toy_space(img_size=img_size)
    model, x = toy_model(img_size=img_size), images(space)
    before = model(x)
    model.set_input_size(img_size)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("img_size", [64, (48, 16)])
def test_other_input_size(img_size: int | tuple[int, int]) -> None:
    model = toy_model()
    state = model.state_dict()
    model.set_input_size(img_size)
    space = toy_space(img_size=img_size)
    grid = model.patch_embed.grid
    assert grid == ((8, 8) if img_size == 64 else (6, 2))
    resampled = resample_abs_pos_embed(state["patch_embed.pos_embed"], list(grid), [4, 4], num_prefix_tokens=1)
    assert torch.equal(model.patch_embed.pos_embed, resampled)
    fresh = space.build(model.arch).eval()  # all else, relative positions included, is as if built at that size
    fresh.load_state_dict({**state, "patch_embed.pos_embed": resampled})
    assert torch.equal(model(images(space)), fresh(images(space)))
    assert model.options["img_size"] == img_size


@pytest.mark.parametrize(("name", "value"), [("global_pool", "max"), ("qkv_bias_sharing", "typo")])
def test_options_outside_their_choices_are_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f'{name} is "{value}", expected one of "'):
        get_space("autoformer-micro", **{name: value})


@pytest.mark.parametrize("shape", [(19, 16), (8, 32)])
def test_images_of_another_size_are_refused(shape: tuple[int, int]) -> None:
    space = get_space("autoformer-micro", img_size=16, patch_size=4)
    with pytest.raises(UserError, match="the model is for 16 x 16"):
        space.build(space.root.smallest())(torch.randn(1, 3, *shape))
