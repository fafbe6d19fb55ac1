"""S3 against timm's implementation of the published nets, and its windows against attention written out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from families.small import images, randomise
from nasformer.errors import UserError
from nasformer.families.s3 import PRESETS, S3, as_table, declare
from nasformer.layers.basic import DropPath
from nasformer.layers.window import FAR, WindowAttention, border_mask
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.proxies.parts import attention_linears, is_block, mlp_linears
from nasformer.space.arch import Arch
from nasformer.space.mutation import genes
from nasformer.supernet.supernet import Supernet

START = ("s3-tiny", "s3-small", "s3-base")
# Odd windows that do not divide the maps (16, 8, 4, 2), and heads of 8 that do not add up to the widths.
TOY = declare(
    embed_dim=((8, 12), (16, 20), (24, 30), (16, 32)),
    num_heads=((1, 2, 3), (1, 3), (2, 5), (1, 2)),
    depth=((1, 2), (2,), (1, 3), (2,)),
    window=((3, 5), (3, 4, 7), (2, 3), (1, 2)),
    mlp_ratio=(1.5, 2),
)
COLUMNS: dict[str, Any] = {
    "depth": [2, 2, 3, 2],
    "embed_dim": [12, 16, 30, 32],
    "window": [3, [7, 4], [2, 3, 3], 2],
    "num_heads": [[1, 3], 3, [2, 5, 2], [2, 1]],
    "mlp_ratio": [2, 1.5, [2, 1.5, 2], 2],
}


def toy_space(**options: Any) -> Space:
    return Space("toy", S3, TOY, {"img_size": 32, "patch_size": 2, "head_dim": 8, "num_classes": 10, **options})


def toy_model(**options: Any) -> S3:
    space = toy_space(**options)
    model = randomise(space.build(space.arch(COLUMNS))).eval()
    assert isinstance(model, S3)
    return model


def attentions(model: nn.Module) -> list[WindowAttention]:
    return [module for module in model.modules() if isinstance(module, WindowAttention)]


def numel(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


# Published numbers


NETS = [
    ("s3-t", "tiny"),
    pytest.param("s3-s", "small", marks=pytest.mark.slow),
    pytest.param("s3-b", "base", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("preset", "millions", "billions"),
    [("s3-t", "28.33", "4.62"), ("s3-s", "49.74", "9.40"), ("s3-b", "71.13", "13.66")],
)
def test_published_nets_have_the_published_size(preset: str, millions: str, billions: str) -> None:
    cost = get_space("s3").cost(PRESETS[preset])
    assert f"{cost.params / 1e6:.2f}" == millions
    assert f"{cost.macs / 1e9:.2f}" == billions


@pytest.mark.parametrize(("preset", "level"), NETS)
def test_published_nets_are_counted_as_timms(preset: str, level: str) -> None:
    cost = get_space("s3").cost(PRESETS[preset])
    with torch.device("meta"):
        model = timm.create_model(f"swin_s3_{level}_224").eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(1, 3, 224, 224))
    assert (cost.params, cost.macs) == (numel(model), counter.get_total_flops() / 2)
    assert cost.position_macs == cost.position_macs_literal == 0  # looking up a table multiplies nothing


def test_published_nets_are_members_of_the_space_about_them() -> None:
    space = get_space("s3")
    assert set(space.presets) == {"s3-t", "s3-s", "s3-b"}
    for preset in PRESETS.values():
        assert space.root.contains(preset)
    assert [len(PRESETS[name].stage3.blocks) for name in PRESETS] == [6, 18, 30]


def test_start_spaces_have_the_quoted_stage() -> None:
    quoted = {"embed_dim": 256, "blocks": [{"window": 14, "num_heads": 9, "mlp_ratio": 3.5}] * 3}
    for name, stage in (("s3-tiny", "stage3"), ("s3-base", "stage2")):
        root: Any = get_space(name).root.fields[stage]
        assert root.contains(Arch.from_dict(quoted))
        assert root.fields["embed_dim"].values == (224, 256, 288)
        assert root.fields["blocks"].depth.values == (2, 3, 4)
        block = root.fields["blocks"].item.fields
        assert [block[gene].values for gene in block] == [(7, 14), (7, 8, 9), (3, 3.5, 4)]


@pytest.mark.parametrize("name", START)
def test_start_spaces_let_heads_be_fewer_or_more_than_the_width(name: str) -> None:
    widths = set()
    for seed in range(20):
        for segment in get_space(name).plan(get_space(name).sample(seed)):
            options: dict[str, Any] = dict(segment.options)
            if "num_heads" in options:
                widths.add(options["num_heads"] * options["head_dim"] - options["embed_dim"])
    assert {-64, -32, 0, 32, 64} == widths


def test_windows_are_topology_and_the_rest_is_size() -> None:
    space = toy_space()
    arch = space.arch(COLUMNS)
    topology, size = (genes(space.root, arch, role) for role in ("topology", "size"))  # type: ignore[arg-type]
    assert {path[-1] for path in topology} == {"window"}
    assert {path[-1] for path in size} == {"embed_dim", "blocks", "num_heads", "mlp_ratio"}


# Archs as papers print them


def test_columns_are_stages_or_blocks() -> None:
    arch = toy_space().arch(COLUMNS)
    assert [len(arch[stage].blocks) for stage in arch] == COLUMNS["depth"]
    assert [block.window for block in arch.stage3.blocks] == [2, 3, 3]
    assert [block.num_heads for block in arch.stage1.blocks] == [1, 3]
    assert [block.mlp_ratio for block in arch.stage2.blocks] == [1.5, 1.5]
    assert toy_space().arch(arch.to_dict()) == arch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": [2, 2, 3]}, "depth is [2, 2, 3], expected a list of 4: one for each stage"),
        ({"window": 7}, "window is 7, expected a list of 4: one for each stage"),
        ({"num_heads": [[1], 3, 2, 2]}, "num_heads has 1 entries for a stage of 2 blocks, expected one for each"),
        ({"qkv_dim": 3}, "expected: depth, embed_dim, window, num_heads, mlp_ratio"),
        ({"embed_dim": [12, 16, 30, 31]}, "arch.stage4.embed_dim is 31, allowed: 16, 32"),
    ],
)
def test_wrong_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        toy_space().arch({**COLUMNS, **change})


# timm's net is the same


def compare(ours: S3, theirs: SwinTransformer, x: Tensor) -> None:
    randomise(theirs)
    ours.load_state_dict(S3.from_timm(theirs.state_dict()))
    with torch.no_grad():
        expected = theirs.eval()(x)
        torch.testing.assert_close(ours.eval()(x), expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.parametrize(
    ("window", "heads"),
    [(3, (1, 2, 3, 4)), (4, (2, 1, 5, 2)), (5, (1, 2, 3, 4)), (7, (2, 1, 5, 2)), (16, (1, 2, 3, 4))],
)
def test_small_net_equals_timms(window: int, heads: tuple[int, ...]) -> None:
    """With windows that divide the maps and windows that do not, that shift and that cover all of the map."""
    depth = {"depth": [2, 3, 2, 2], "embed_dim": [8, 16, 32, 64], "num_heads": list(heads)}
    arch = Arch.from_dict(S3.from_columns({**depth, "window": [window] * 4, "mlp_ratio": [3] * 4}))
    ours = S3(arch, img_size=32, patch_size=2, head_dim=8, num_classes=10)
    shape: dict[str, Any] = {"img_size": 32, "patch_size": 2, "window_size": window, "num_classes": 10, "mlp_ratio": 3}
    theirs = SwinTransformer(embed_dim=8, depths=(2, 3, 2, 2), num_heads=heads, head_dim=8, **shape)
    compare(ours, theirs, images(toy_space()))
    maps = (net.forward_intermediates(images(toy_space()), intermediates_only=True) for net in (ours, theirs))
    for mine, other in zip(*maps, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("preset", "level"), NETS)
def test_published_net_equals_timms(preset: str, level: str) -> None:
    compare(S3(PRESETS[preset]), timm.create_model(f"swin_s3_{level}_224"), images(get_space("s3"), batch=1))


def test_stochastic_depth_and_norms_are_timms() -> None:
    with torch.device("meta"):
        theirs = timm.create_model("swin_s3_tiny_224", drop_path_rate=0.3)
    expected = [getattr(block.drop_path1, "drop_prob", 0.0) for stage in theirs.layers for block in stage.blocks]
    ours = S3(PRESETS["s3-t"], img_size=32, drop_path_rate=0.3)
    assert [part.rate.item() for part in ours.modules() if isinstance(part, DropPath)] == pytest.approx(expected)
    assert not any(isinstance(module, DropPath) for module in toy_model(drop_path_rate=0.0).modules())
    norms = [module.eps for module in ours.modules() if isinstance(module, nn.LayerNorm)]
    assert norms == [1e-5] * (2 * 12 + 3 + 2)


def test_tables_of_windows_that_are_not_square_are_refused() -> None:
    with pytest.raises(UserError, match="a table of 15 offsets is not that of a square window"):
        as_table(torch.zeros(15, 2))


def test_no_table_decays_in_the_net_nor_in_the_supernet() -> None:
    model = toy_model()
    tables = {name for name, _ in model.named_parameters() if name.endswith("positions")}
    assert len(tables) == 9
    assert model.no_weight_decay() == tables
    supernet = Supernet(toy_space())
    assert supernet.no_weight_decay() == {f"weights.{name}" for name in tables}  # this arch is as deep as any


# Windows


def written_out(layer: WindowAttention, x: Tensor) -> Tensor:
    """Attention of each position to those of its window on the rolled map, pair by pair; without padding."""
    (rows, columns), (high, wide), (down, right) = layer.grid, layer.window, layer.shift
    width = layer.num_heads * layer.head_dim
    q, k, v = layer.qkv(x).split(width, dim=-1)
    output = torch.zeros(*x.shape[:3], width)
    places = [(row, column) for row in range(rows) for column in range(columns)]

    def rolled(place: tuple[int, int]) -> tuple[int, int]:
        return (place[0] - down) % rows, (place[1] - right) % columns

    for i in places:
        y, u = rolled(i)
        seen = [
            j
            for j in places
            if (rolled(j)[0] // high, rolled(j)[1] // wide) == (y // high, u // wide)
            and abs(i[0] - j[0]) < high
            and abs(i[1] - j[1]) < wide
        ]
        offsets = [(i[0] - j[0] + high - 1, i[1] - j[1] + wide - 1) for j in seen]
        for head in range(layer.num_heads):
            own = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
            keys = torch.stack([k[:, r, c, own] for r, c in seen], 1)
            values = torch.stack([v[:, r, c, own] for r, c in seen], 1)
            bias = torch.stack([layer.positions[head, a, b] for a, b in offsets])
            weights = (torch.einsum("bd,bjd->bj", q[:, i[0], i[1], own], keys) * layer.head_dim**-0.5 + bias).softmax(1)
            output[:, i[0], i[1], own] = torch.einsum("bj,bjd->bd", weights, values)
    return layer.proj(output)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("grid", "window"), [((6, 9), 3), ((6, 4), 2), ((4, 8), 4), ((3, 6), 6)])
def test_attention_is_that_of_the_windows(grid: tuple[int, int], window: int, shifted: bool) -> None:
    layer = randomise(WindowAttention(6, 2, 4, grid, window, shifted))
    assert bool(any(layer.shift)) == (shifted and window < max(grid))
    x = torch.randn(2, *grid, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), written_out(layer, x))


def test_borders_part_what_was_rolled_in() -> None:
    apart = border_mask((4, 4), (2, 2), (1, 1))
    assert apart.shape == (4, 4, 4)
    assert not apart[0].any()  # the first window lies inside the map
    assert torch.equal(apart[3], FAR * (1 - torch.eye(4)))  # the last one has a corner of the map in each place
    beside = torch.tensor([[0.0, FAR], [FAR, 0.0]]).repeat(2, 2)
    assert torch.equal(apart[1], beside)


def test_a_mask_is_a_constant_that_no_checkpoint_holds() -> None:
    layer = WindowAttention(8, 1, 8, (4, 4), 2, shifted=True)
    assert set(layer.state_dict()) == {"positions", "qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}
    assert "border_mask" in dict(layer.named_buffers())


def test_windows_never_exceed_the_map() -> None:
    found = {attention.grid: (attention.window, attention.shift) for attention in attentions(S3(PRESETS["s3-t"]))}
    expected = {(56, 56): (7, 3), (28, 28): (7, 3), (14, 14): (14, 0), (7, 7): (7, 0)}  # of each stage's last block
    assert found == {grid: ((window,) * 2, (shift,) * 2) for grid, (window, shift) in expected.items()}


# Sharing


@pytest.mark.parametrize("img_size", [32, (22, 36)])
@torch.no_grad()
def test_sliced_equals_extracted(img_size: Any) -> None:
    space = toy_space(img_size=img_size)
    supernet, x = randomise(Supernet(space)).eval(), images(space)
    for seed in range(4):
        arch = space.sample(seed)
        assert torch.equal(supernet(x, arch), supernet.extract(arch)(x)), seed


def test_slices_keep_heads_offsets_and_neighbours() -> None:
    space = toy_space()
    supernet = randomise(Supernet(space))
    shared = dict(supernet.weights.named_parameters())
    sliced = supernet.slices(space.arch(COLUMNS))
    name = "stages.1.blocks.1.attn."  # 3 of 3 heads, window 4 of 7, width 16 of 20
    assert torch.equal(sliced[f"{name}positions"], shared[f"{name}positions"][:, 3:-3, 3:-3])
    name = "stages.2.blocks.0.attn."  # 2 of 5 heads, window 2 of 3, width 30 of 30
    assert torch.equal(sliced[f"{name}positions"], shared[f"{name}positions"][:2, 1:-1, 1:-1])
    for part in ("qkv.weight", "qkv.bias"):
        parts = (weights[name + part].unflatten(0, (3, -1)) for weights in (sliced, shared))
        assert torch.equal(next(parts), next(parts)[:, :16])
    assert torch.equal(sliced[f"{name}proj.weight"], shared[f"{name}proj.weight"][:, :16])
    name = "stages.2.downsample."  # from 16 of 20 to 30
    for part in ("merge_norm.weight", "merge_norm.bias", "reduction.weight"):
        parts = (weights[name + part].unflatten(-1, (4, -1)) for weights in (sliced, shared))
        assert torch.equal(next(parts), next(parts)[..., :16])


def test_the_bias_of_an_offset_is_the_same_in_every_window() -> None:
    space = toy_space()
    supernet = randomise(Supernet(space))
    archs = [space.arch({**COLUMNS, "window": [3, size, 3, 2]}) for size in (3, 7)]
    small, large = (attentions(supernet.extract(arch))[2] for arch in archs)  # the first one of stage 2
    left, right = small.bias().unflatten(1, (3, 3)).unflatten(3, (3, 3)), large.bias()
    assert torch.equal(left, right.unflatten(1, (7, 7)).unflatten(3, (7, 7))[:, :3, :3, :3, :3])


# Options and image sizes


@pytest.mark.parametrize(
    "options",
    [
        {"img_size": (32, 48)},
        {"img_size": 30, "patch_size": 5},
        {"img_size": (18, 26)},
        {"num_classes": 0},
        {"in_chans": 1, "drop_path_rate": 0.0},
    ],
    ids=str,
)
def test_options_change_cost_and_model_alike(options: dict[str, Any]) -> None:
    space, model = toy_space(**options), toy_model(**options)
    cost = space.cost(model.arch)
    assert cost.params == numel(model)
    assert model(images(space)).shape == (2, model.num_classes or 32)
    with torch.device("meta"):
        twin = space.build(model.arch).eval()
    with FlopCounterMode(display=False) as counter:
        twin(images(space, batch=1).to("meta"))
    assert cost.macs == counter.get_total_flops() / 2  # padding is counted where windows do not divide the map


@pytest.mark.parametrize("img_size", [32, 48, (20, 64), 6])
def test_other_input_size(img_size: int | tuple[int, int]) -> None:
    model, space = toy_model(), toy_space(img_size=img_size)
    state = model.state_dict()
    model.set_input_size(img_size)
    fresh = space.build(model.arch).eval()
    kept = {name: weight for name, weight in state.items() if weight.shape == fresh.get_parameter(name).shape}
    tables = {name: weight for name, weight in model.state_dict().items() if name not in kept}
    assert all(name.endswith("positions") for name in tables)
    fresh.load_state_dict({**kept, **tables})  # all else is as if built at that size
    assert torch.equal(model(images(space)), fresh(images(space)))
    assert model.options["img_size"] == img_size


def test_tables_are_resampled_about_their_middle() -> None:
    layer = WindowAttention(8, 1, 8, (4, 4), 7, shifted=True)
    with torch.no_grad():
        layer.positions.copy_(torch.arange(-3.0, 4).expand(1, 7, 7))
    layer.set_grid((4, 10))
    assert (layer.window, layer.shift) == ((4, 7), (0, 3))
    table = layer.positions[0]
    assert table.shape == (7, 13)
    torch.testing.assert_close(table[:, 6], torch.zeros(7), rtol=0, atol=1e-5)
    torch.testing.assert_close(table[:, [0, -1]], torch.tensor([[-3.0, 3.0]]).expand(7, 2), rtol=0, atol=1e-5)
    assert (table.diff(dim=1) > 0).all()


def test_images_must_be_patches() -> None:
    with pytest.raises(UserError, match="img_size 33 is not a multiple of patch_size 2"):
        toy_model(img_size=33)
    with pytest.raises(UserError, match="global_pool is 'max', allowed: avg"):
        toy_model(global_pool="max")


def test_blocks_and_their_linears_are_found_by_proxies() -> None:
    model = toy_model()
    assert sum(is_block(name, module) for name, module in model.named_modules()) == 9
    assert len(attention_linears(model)) == len(mlp_linears(model)) == 18


def test_maps_stay_in_memory_as_blocks_want_them() -> None:
    """Channels last: a block turns the axes twice and copies nothing for it."""
    _, maps = toy_model().forward_intermediates(images(toy_space()))
    for found in maps:
        assert found.permute(0, 2, 3, 1).is_contiguous()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision(precision: torch.dtype) -> None:
    model, x = toy_model(), images(toy_space())
    with torch.no_grad(), torch.autocast("cpu", precision):
        found = model(x)
    assert (found.float() - model(x)).norm() < 0.05 * model(x).norm()
