"""S3: searching the search space of vision transformers (Chen et al., NeurIPS 2021, arXiv 2111.14725).

A shifted-window transformer (Swin) of four stages. Depth and width are chosen for each stage; window, heads and MLP
ratio for each block. Heads are 32 wide, so their number is the width of queries, keys and values, which need not be
that of the embedding: the paper finds that deep layers want less.

Published are the paper, three nets and the code that runs them; neither supernet nor search. That code cannot express
heads that do not add up to the width; here `proj` reads as many channels as the heads have. The nets are Swins but for
depths and windows; timm has them too, and ours equal timm's (`S3.from_timm` reads its weights). S3-S's file has windows
of 14 in stage 4, whose map is 7 x 7; we write 7, as timm does. It is the same net at 224 pixels.

Start spaces. A reader quotes one stage of the paper's first space: 2, 3, 4 blocks, width 224, 256, 288, windows 7, 14,
heads 7, 8, 9, MLP ratios 3, 3.5, 4. Hence in all of ours: 2 to 4 blocks a stage, these windows and ratios, heads from
one less to one more than a middle, widths of 32 a head. Ours, since no source has it:
- Middles double from stage to stage, as in Swin: 2 4 8 16 heads (`s3-tiny`, where stage 3 is the one quoted), Swin-T's
  3 6 12 24 (`s3-small`), Swin-B's 4 8 16 32 (`s3-base`, where it would be stage 2).
- Windows of 7 alone in stage 4, where 14 would be the same net at 224 pixels.
- `s3` is a space around the three published nets, which are members: `s3-small` with 6 to 30 blocks in stage 3.
- `s3-micro`: the same shape for small images, with heads of 16.

Ours besides:
- A window is never larger than the map, nor is its table of positions then. A map need not be a multiple of the window:
  it is padded as in timm, where padded positions are attended to, and rolled before, so that its last shifted window
  may see across the border. Larger windows can thus be cheaper; at 224 pixels nothing is padded.
- Initial weights: truncated normal 0.02, biases 0, as Swin's; also in the first convolution, which a norm follows.
- Tables of positions do not decay, as in Swin.
- Sharing (the paper does not say): by prefix, so by heads for q, k and v each. The table of a small window is the
  centre of that of a large one: every offset keeps its entry. Patch merging concatenates four positions: the prefix of
  each.
- Windows are topology; depth, width, heads and ratio are size.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Literal

from torch import Tensor

from nasformer.errors import UserError
from nasformer.layers.basic import MapHead, MapNorm
from nasformer.layers.stem import Grid, MapStem, half_grid
from nasformer.layers.window import PatchMerging, WindowBlock
from nasformer.models.base import (
    STAGES,
    MapBackbone,
    Segment,
    check_option,
    drop_path_rates,
    patch_grid,
    rename,
    total_depth,
)
from nasformer.models.registry import register_space
from nasformer.models.sharing import SharingRules, centre_crop, grouped_prefix
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Repeat, Struct

GENES = ("window", "num_heads", "mlp_ratio")
HEAD_DIM = 32
NORM_EPS = 1e-5
MOST_PATCHES = 2**22  # attention stays within windows, so that images may be large


class S3(MapBackbone):
    """The static S3 net of an arch.

    >>> import torch
    >>> model = S3(PRESETS["s3-t"], img_size=32, num_classes=10).eval()
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> [(info["num_chs"], info["reduction"]) for info in model.feature_info]
    [(96, 4), (192, 8), (384, 16), (768, 32)]
    """

    family = "s3"
    no_decay_suffixes = frozenset({"attn.positions"})

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["avg"] = "avg",
        head_dim: int = HEAD_DIM,
        drop_path_rate: float = 0.1,
    ) -> list[Segment]:
        """Stem, four stages of blocks with merging between them, norm and head.

        Args:
            img_size: Any multiple of patch_size; maps with an odd side are padded where they are merged.
            patch_size: Side of the stem's patches: 4, or less for small images.
            head_dim: Width of an attention head.
            drop_path_rate: Stochastic-depth rate of the last block; it grows linearly from 0.
        """
        check_option("global_pool", global_pool, ("avg",))
        grid, dims = patch_grid(img_size, patch_size, most=MOST_PATCHES), [arch[stage].embed_dim for stage in STAGES]
        stem: dict[str, Any] = {"patch_size": patch_size, "in_chans": in_chans, "embed_dim": dims[0]}
        segments = [Segment.of("stem", MapStem, grid=grid, norm_eps=NORM_EPS, **stem)]
        common = {"head_dim": head_dim, "stochastic_depth": drop_path_rate > 0}
        rates = drop_path_rates(total_depth(arch), drop_path_rate)
        for stage, dim in enumerate(dims):
            if stage:
                name = f"stages.{stage}.downsample"
                segments.append(Segment.of(name, PatchMerging, grid=grid, in_dim=dims[stage - 1], out_dim=dim))
                grid = half_grid(grid)
            for index, block in enumerate(arch[STAGES[stage]].blocks):
                options = block_options(block, dim, grid, shifted=index % 2 == 1)
                name = f"stages.{stage}.blocks.{index}"
                segments.append(Segment.of(name, WindowBlock, next(rates), **options, **common))
        norm = Segment.of("norm", MapNorm, embed_dim=dims[-1], norm_eps=NORM_EPS)
        head = Segment.of("head", MapHead, embed_dim=dims[-1], num_classes=num_classes, global_pool=global_pool)
        return [*segments, norm, head]

    @classmethod
    def sharing(cls, **options: Any) -> SharingRules:
        q_k_v, quarters = grouped_prefix(3), grouped_prefix(4)
        return {
            "qkv.weight": q_k_v,
            "qkv.bias": q_k_v,
            "positions": centre_crop,
            "merge_norm.weight": quarters,
            "merge_norm.bias": quarters,
            "reduction.weight": grouped_prefix(4, dims=(1,)),
        }

    @classmethod
    def limits(
        cls, *, img_size: int | tuple[int, int] = 224, patch_size: int = 4, **options: Any
    ) -> Mapping[str, tuple[float | None, float | None]]:
        """Windows from 1 to the longer side of the stage's map."""
        grid, limits = patch_grid(img_size, patch_size, most=MOST_PATCHES), {}
        for stage in STAGES:
            limits[f"{stage}.blocks.window"] = (1.0, float(max(grid)))
            grid = half_grid(grid)
        return limits

    @classmethod
    def from_columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Stages from the columns ``"depth": [2, 2, 6, 2]`` and lists of four for embed_dim and the genes of a block.

        An entry of a gene is that of all blocks of a stage, or a list with one for each block.
        """
        if "depth" not in values:
            return values
        names = ("depth", "embed_dim", *GENES)
        if values.keys() != set(names):
            raise UserError(f"an arch with depth has {', '.join(values)}, expected: {', '.join(names)}")
        for name in names:
            if not isinstance(values[name], list | tuple) or len(values[name]) != len(STAGES):
                raise UserError(f"{name} is {values[name]}, expected a list of {len(STAGES)}: one for each stage")
        stages = {}
        for index, stage in enumerate(STAGES):
            genes = {name: by_block(name, values[name][index], values["depth"][index]) for name in GENES}
            blocks = [dict(zip(genes, block, strict=True)) for block in zip(*genes.values(), strict=True)]
            stages[stage] = {"embed_dim": values["embed_dim"][index], "blocks": blocks}
        return stages

    @classmethod
    def space_of(cls, model: Any) -> tuple[Struct, dict[str, Any]] | None:
        """The cuts of a Swin: 0 to all heads of a block (0: no attention), and an eighth to all of its neurons."""
        from timm.models.swin_transformer import SwinTransformer

        if type(model) is not SwinTransformer:
            return None
        stages, block = {}, model.layers[0].blocks[0]
        for name, layer in zip(STAGES, model.layers, strict=True):
            heads, dim = layer.blocks[0].attn.num_heads, layer.blocks[0].norm1.normalized_shape[0]
            ratio = layer.blocks[0].mlp.fc1.out_features / dim
            genes = {
                "window": Choice(max(layer.blocks[0].window_size), role="topology"),
                "num_heads": Choice(*range(heads + 1)),
                "mlp_ratio": Choice(*(ratio * eighth / 8 for eighth in range(1, 9))),
            }
            blocks = Repeat(Struct(**genes), depth=Choice(len(layer.blocks)))
            stages[name] = Struct(embed_dim=Choice(dim), blocks=blocks)
        rows, columns = model.patch_embed.img_size
        options = {
            "img_size": rows if rows == columns else (rows, columns),
            "patch_size": model.patch_embed.patch_size[0],
            "in_chans": model.patch_embed.proj.in_channels,
            "num_classes": model.num_classes,
            "head_dim": block.attn.qkv.out_features // (3 * block.attn.num_heads),
        }
        return Struct(**stages), options | {"drop_path_rate": 0.0}

    @classmethod
    def from_timm(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a timm Swin under our names; its lists of offsets become tables, [heads, rows, columns]."""
        return {
            rename(name, NAMES): as_table(weight) if name.endswith(TABLE) else weight for name, weight in state.items()
        }


def block_options(block: Arch, embed_dim: int, grid: Grid, shifted: bool) -> dict[str, Any]:
    """Options of a block's layer, which itself fits the window to the map."""
    return {
        "embed_dim": embed_dim,
        "num_heads": block.num_heads,
        "hidden_dim": int(embed_dim * block.mlp_ratio),
        "grid": grid,
        "window": block.window,
        "shifted": shifted,
    }


def by_block(name: str, entry: Any, depth: int) -> list[Any]:
    """The entry of each block of a stage."""
    entries = list(entry) if isinstance(entry, list | tuple) else [entry] * depth
    if len(entries) != depth:
        raise UserError(f"{name} has {len(entries)} entries for a stage of {depth} blocks, expected one for each")
    return entries


def declare(
    embed_dim: tuple[tuple[int, ...], ...],
    num_heads: tuple[tuple[int, ...], ...],
    depth: tuple[tuple[int, ...], ...] = ((2, 3, 4),) * 4,
    window: tuple[tuple[int, ...], ...] = ((7, 14), (7, 14), (7, 14), (7,)),
    mlp_ratio: tuple[float, ...] = (3, 3.5, 4),
) -> Struct:
    """The declaration of an S3 space: widths, heads, depths and windows for each stage."""
    stages = {}
    for name, dims, heads, depths, sides in zip(STAGES, embed_dim, num_heads, depth, window, strict=True):
        genes = {"window": Choice(*sides, role="topology"), "num_heads": Choice(*heads)}
        block = Struct(**genes, mlp_ratio=Choice(*mlp_ratio))
        stages[name] = Struct(embed_dim=Choice(*dims), blocks=Repeat(block, depth=Choice(*depths)))
    return Struct(**stages)


def around_swin(num_heads: int, **others: Any) -> Struct:
    """The space around a Swin with `num_heads` in its first stage: one head more or less, and 32 of width."""
    heads = tuple((count - 1, count, count + 1) for count in (num_heads * 2**stage for stage in range(len(STAGES))))
    return declare(tuple(tuple(HEAD_DIM * count for count in counts) for counts in heads), heads, **others)


def published(depth: str, window: str) -> Arch:
    """A released net: all of them are as wide as Swin-T and have an MLP ratio of 4."""
    widths = {"embed_dim": [96, 192, 384, 768], "num_heads": [3, 6, 12, 24], "mlp_ratio": [4] * 4}
    columns = {"depth": [int(d) for d in depth.split()], "window": [int(w) for w in window.split()]}
    return Arch.from_dict(S3.from_columns({**columns, **widths}))


PRESETS = {
    "s3-t": published("2 2 6 2", "7 7 14 7"),
    "s3-s": published("2 2 18 2", "14 14 14 7"),
    "s3-b": published("2 2 30 2", "7 7 14 7"),
}


def register(name: str, about: str, root: Struct, **options: Any) -> None:
    register_space(Space(name, S3, root, options, {} if options else PRESETS, about))


LONG = ((2, 3, 4), (2, 3, 4), (6, 10, 14, 18, 22, 26, 30), (2, 3, 4))
register("s3", "around the three published nets: about 21 to 99 M parameters", around_swin(3, depth=LONG))
register("s3-tiny", "a start space after the paper's: about 7 to 21 M parameters", around_swin(2))
register("s3-small", "a start space as wide as Swin-T: about 16 to 45 M parameters", around_swin(3))
register("s3-base", "a start space as wide as Swin-B: about 29 to 77 M parameters", around_swin(4))
register(
    "s3-micro",
    "a space of S3's shape for small images and small machines: about 0.09 to 0.64 M parameters",
    declare(
        embed_dim=((16, 24, 32), (32, 40, 48), (48, 64, 80), (80, 96, 112)),
        num_heads=((1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5)),
        depth=((1, 2), (1, 2), (1, 2, 3), (1, 2)),
        window=((4, 8), (4, 8), (2, 4), (2,)),
        mlp_ratio=(2, 3, 4),
    ),
    img_size=32,
    patch_size=2,
    num_classes=10,
    head_dim=16,
)


# timm's S3 nets: their pretrained weights serve as ours.

TABLE = "relative_position_bias_table"
NAMES = (
    (r"^patch_embed\.proj\.", "stem.conv."),
    (r"^patch_embed\.norm\.", "stem.norm."),
    (r"^layers\.", "stages."),
    (r"\.downsample\.norm\.", ".downsample.merge_norm."),
    (rf"\.{TABLE}$", ".positions"),
)


def as_table(listed: Tensor) -> Tensor:
    """The table [heads, rows, columns] of a square window, from a list [rows * columns, heads].

    >>> import torch
    >>> as_table(torch.arange(18).reshape(9, 2))[1].tolist()
    [[1, 3, 5], [7, 9, 11], [13, 15, 17]]
    """
    side = isqrt(listed.shape[0])
    if side**2 != listed.shape[0]:
        raise UserError(f"a table of {listed.shape[0]} offsets is not that of a square window; take a square image")
    return listed.T.unflatten(1, (side, side))
