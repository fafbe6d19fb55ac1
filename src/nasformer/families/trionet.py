"""TrioNet: convolution, local and axial attention compete in every block (Pi et al., BMVC 2021, arXiv 2111.07547).

A ResNet of four stages of bottlenecks. The spatial operator of each block is a convolution, attention within a window
or attention along columns and then rows, between 1 x 1 convolutions that all three share. The paper's FLOPs are twice
our MACs.

No code was published. Its Table 2 settles most of what the text leaves open (tests/families/test_trionet.py has all
eighteen numbers):
- ResNet rows: torchvision's ResNet with 1 2 4 1, 2 3 5 2 or 3 4 6 3 blocks, the stride in the 3 x 3 convolution.
- Local rows: the same, with window 7 and 8 heads, mid channels a quarter of the output. Queries, keys and values are
  projected at the map that comes in, and 2 x 2 positions are averaged behind the attention where a stage strides.
  Positions in the window count as MACs (7.0 B with them, 6.8 without). A table of all positions for all channels of
  the queries, which the formula asks for, has 1 to 1.5 % more parameters than the rows say.
- Axial rows: half as wide (128 to 1024), mid channels half of the output, queries half of that, 8 heads, separate
  projections for both axes. Axial-26 and -38 fit within 2.5 %. Axial-50 does not (11.5 M and 5.2 B, not 12.4 and 5.6),
  and can fit no net of this kind: from 26 to 38 and from 38 to 50 the same four blocks are added, so that parameters
  must grow alike, but the table has 2.8 M and then 3.7 M. 12.4 M looks like a number of Axial-DeepLab's own net, which
  has norms and positions inside attention.
- Stages of the space: 128 to 1024, as the axial rows. TrioNet-A (5.1 M, 2.0 B) cannot be a member of a space of
  ResNet's widths, whose smallest net has 7.6 M and 2.2 B. Here the nets of 2.0 B have 5.0 M on the median, and
  TrioNet-D (4.7 B) is "close to the limit" as the paper says: that is 6.0 B. (`trionet-wide` has ResNet's widths.)
Ours besides:
- Attention is not scaled, as in the formula; the scale is in the initial weights (`MapAttention`). All other
  convolutions start as torchvision's.
- A block has attention, then pooling, then batch norm; conv, local and axial each have separate norms.
- Sharing: Multi-Head Sharing of queries, keys, values, and of all that reads values (the second axis, the last 1 x 1),
  or plain prefixes for comparison (head_sharing). Kernels and tables of positions by their centre. Running statistics
  of batch norm are prefixes in any case, for training writes to them; they are recalibrated before an arch is
  evaluated.
- Operators stand in the paper's order, which is that of their cheapest members. The most expensive is an axial block by
  MACs and a 7 x 7 convolution by parameters.
- No narrower space with all of the choices: here the narrowest of 8 heads has 2 channels; at half the widths it would
  have 1, too few for attention. So small images get another stem (`trionet-small`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nasformer.errors import UserError
from nasformer.layers.basic import MapHead, NoNorm
from nasformer.layers.resnet import AxialOperator, Bottleneck, ConvOperator, LocalOperator
from nasformer.layers.stem import TrioStem, half_grid, to_2tuple
from nasformer.models.base import STAGES, MapBackbone, Segment, check_option, drop_path_rates, total_depth
from nasformer.models.registry import register_space
from nasformer.models.sharing import MultiHeadSharing, SharingRules, centre_crop
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

OPERATORS: dict[str, Any] = {"conv": ConvOperator, "local": LocalOperator, "axial": AxialOperator}
HEAD_SHARING = ("multi-head", "prefix")


class TrioNet(MapBackbone):
    """The static TrioNet of an arch.

    >>> import torch
    >>> model = TrioNet(stand_alone("local", 26, width=128), img_size=32, stem_stride=1, num_classes=10).eval()
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> [(info["num_chs"], info["reduction"]) for info in model.feature_info]
    [(128, 1), (256, 2), (512, 4), (1024, 8)]
    """

    family = "trionet"
    stem_option = "stem_stride"

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 224,
        stem_stride: int = 4,
        stem_dim: int = 64,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["avg"] = "avg",
        last_gamma: float = 0.0,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        head_sharing: Literal["multi-head", "prefix"] = "multi-head",
    ) -> list[Segment]:
        """Stem, four stages of bottlenecks, of which the last three halve the map, and head.

        Args:
            img_size: Any; nothing but the cost depends on it.
            stem_stride: 4 for ResNet's stem, 2 or 1 for a single 3 x 3 convolution, for small images.
            last_gamma: Initial scale of the last norm of each block. With 0 all blocks start as shortcuts.
                Training-free scores always take 1.
            drop_rate: Dropout before the head.
            attn_drop_rate: Dropout of attention.
            drop_path_rate: Stochastic-depth rate of the last block; it grows linearly from 0.
            head_sharing: How members of a supernet share queries, keys and values.
        """
        check_option("global_pool", global_pool, ("avg",))
        check_option("head_sharing", head_sharing, HEAD_SHARING)
        if stem_stride not in (1, 2, 4):
            raise UserError(f"stem_stride is {stem_stride}, allowed: 1, 2, 4")
        grid, dim = to_2tuple(img_size), stem_dim
        stem = {"stride": stem_stride, "in_chans": in_chans, "embed_dim": stem_dim}
        segments = [Segment.of("stem", TrioStem, grid=grid, **stem)]
        for _ in range(stem_stride // 2):
            grid = half_grid(grid)
        common = {"last_gamma": last_gamma, "stochastic_depth": drop_path_rate > 0}
        rates = drop_path_rates(total_depth(arch), drop_path_rate)
        for stage, field in enumerate(STAGES):
            out_dim = arch[field].embed_dim
            for index, block in enumerate(arch[field].blocks):
                stride = 2 if stage and not index else 1
                shape: dict[str, Any] = {"in_dim": dim, "out_dim": out_dim, "grid": grid, "stride": stride}
                options = block_options(block, out_dim, attn_drop_rate)
                name = f"stages.{stage}.blocks.{index}"
                segments.append(Segment.of(name, Bottleneck, next(rates), **shape, **options, **common))
                grid, dim = half_grid(grid) if stride == 2 else grid, out_dim
        head: dict[str, Any] = {"num_classes": num_classes, "global_pool": global_pool, "drop_rate": drop_rate}
        return [*segments, Segment.of("norm", NoNorm), Segment.of("head", MapHead, embed_dim=dim, **head)]

    @classmethod
    def sharing(cls, *, head_sharing: str = "multi-head", **options: Any) -> SharingRules:
        """Rules by which channels are in the order of heads; the input of the first axis has no heads yet."""
        rules: dict[str, Any] = {"conv.conv.weight": centre_crop, "local.positions": centre_crop}
        if head_sharing == "multi-head":
            outputs, inputs = MultiHeadSharing(), MultiHeadSharing(dims=(1,))
            rules |= {"local.positions": MultiHeadSharing(crop=True), "expand.weight": inputs}
            for name in ("query", "key", "value"):
                rules |= {f"width.{name}.weight": MultiHeadSharing(dims=(0, 1)), f"{name}.weight": outputs}
            for name in ("local.norm", "axial.norm"):
                rules |= {f"{name}.weight": outputs, f"{name}.bias": outputs}
        return rules


def block_options(block: Arch, embed_dim: int, dropout: float) -> dict[str, Any]:
    """Options of the layer of a block such as ``{"conv": {"expansion": 0.25, "kernel": 3}}``."""
    ((operator, genes),) = block.items()
    mid_dim = round(embed_dim * genes.expansion)
    options = {"operator": OPERATORS[operator], "mid_dim": mid_dim}
    if operator == "conv":
        return {**options, "kernel": genes.kernel}
    dims = {"query_dim": round(mid_dim * genes.query_rate), "value_dim": round(mid_dim * genes.value_rate)}
    for name, dim in dims.items():
        if dim % genes.num_heads:
            raise UserError(f"{name} {dim} is not a multiple of num_heads {genes.num_heads}; change one of them")
    window = {"window": genes.window} if operator == "local" else {}
    return {**options, **dims, "num_heads": genes.num_heads, **window, "dropout": dropout}


def declare(
    embed_dim: tuple[int, ...],
    depth: tuple[tuple[int, ...], ...] = ((1, 2), (2, 3), (3, 4, 5, 6), (1, 2, 3)),
    kernel: tuple[int, ...] = (3, 5, 7),
    num_heads: tuple[int, ...] = (4, 8),
) -> Struct:
    """The declaration of a TrioNet space: a width and the depths for each stage."""
    side, heads = Choice(*kernel, role="topology"), Choice(*num_heads, role="topology")
    rates = {"query_rate": Choice(0.5, 1.0), "value_rate": Choice(0.5, 1.0), "num_heads": heads}
    wide = Choice(0.25, 0.5)
    block = OneOf(
        conv=Struct(expansion=Choice(0.125, 0.25), kernel=side),
        local=Struct(expansion=wide, window=side, **rates),
        axial=Struct(expansion=wide, **rates),
    )
    stages = zip(STAGES, embed_dim, depth, strict=True)
    return Struct(
        **{name: Struct(embed_dim=Choice(dim), blocks=Repeat(block, depth=Choice(*d))) for name, dim, d in stages}
    )


DEPTHS = {26: (1, 2, 4, 1), 38: (2, 3, 5, 2), 50: (3, 4, 6, 3)}
STAND_ALONE: dict[str, dict[str, Any]] = {
    "conv": {"expansion": 0.25, "kernel": 3},
    "local": {"expansion": 0.25, "window": 7, "query_rate": 1.0, "value_rate": 1.0, "num_heads": 8},
    "axial": {"expansion": 0.5, "query_rate": 0.5, "value_rate": 1.0, "num_heads": 8},
}


def stand_alone(operator: str, layers: int, width: int = 256) -> Arch:
    """The net of one operator and a number of layers in Table 2; `width` is that of the first stage."""
    blocks = {operator: STAND_ALONE[operator]}
    stages = enumerate(zip(STAGES, DEPTHS[layers], strict=True))
    return Arch.from_dict(
        {name: {"embed_dim": width * 2**number, "blocks": [blocks] * depth} for number, (name, depth) in stages}
    )


def presets(width: int) -> dict[str, Arch]:
    """The stand-alone nets, named by their layers; `width` is that of ResNet. Few of them are members of the space."""
    widths = {"resnet": ("conv", width), "local": ("local", width), "axial": ("axial", width // 2)}
    return {
        f"{name}-{layers}": stand_alone(operator, layers, first)
        for name, (operator, first) in widths.items()
        for layers in DEPTHS
    }


def register(name: str, about: str, root: Struct, presets: Mapping[str, Arch], **options: Any) -> None:
    register_space(Space(name, TrioNet, root, options, presets, about))


register("trionet", "the paper's space: about 2.4 to 19 M parameters", declare((128, 256, 512, 1024)), presets(256))
register(
    "trionet-wide", "with ResNet's widths: about 7.6 to 75 M parameters", declare((256, 512, 1024, 2048)), presets(256)
)
register(
    "trionet-small",
    "the archs of trionet for images of 32 pixels (stem_stride=2 for 64): about 1.4 to 18 M parameters",
    declare((128, 256, 512, 1024)),
    presets(128),
    img_size=32,
    stem_stride=1,
    num_classes=10,
)
register(
    "trionet-micro",
    "a space of TrioNet's shape for small images and small machines: about 0.04 to 0.23 M parameters",
    declare((64, 64, 128, 128), ((1, 2),) * 4, kernel=(3, 5), num_heads=(2, 4)),
    {},
    img_size=32,
    stem_stride=2,
    stem_dim=16,
    num_classes=10,
)
