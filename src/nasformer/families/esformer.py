"""ESFormer: the hybrid networks of Entropic Score (Cavagnero et al., ICCV Workshops 2023, arXiv 2310.04179).

Four stages of feature maps for small devices. Every block is an inverted bottleneck, a ConvNeXt block, or a transformer
encoder whose feed-forward half is one of these two. Kernels, expansions, the width of queries, keys and values
(whatever the embedding's), depths and widths are chosen.

No code was published and the supplement lists no ranges. It says which blocks there are, that kernel, type of the
feed-forward half and q-k-v dimension are chosen, and how the found nets look. All else is ours:
- Stem, downsampling and ranges are EdgeNeXt's (Maaz et al., ECCV-W 2022), to which the paper compares its nets: the
  three spaces lie around EdgeNeXt XXS, XS and S. The last norm comes before pooling, so that the features are normed.
- Encoders in stages 3 and 4 only, where the supplement has them: attention over the 64 x 64 positions of stage 1 is
  too much for a small device. They have no position embeddings; the convolutions around them supply positions.
- Heads are 16 wide: with 32, the narrow stages had one or two.
- Initial weights: truncated normal 0.02, biases 0, as EdgeNeXt's; so a slice starts like a separate net.
- Sharing (the paper has no supernet): by prefix; q, k and v each; a small kernel is the centre of a large one. The
  alternatives of a block have separate weights, and so have the two feed-forward halves of an encoder.
- Presets are EdgeNeXt's layouts in our blocks, as a baseline; nobody published them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from nasformer.errors import UserError
from nasformer.layers.basic import MapHead, MapNorm
from nasformer.layers.blocks import ConvNeXtBlock, InvertedBottleneck, MapEncoder
from nasformer.layers.stem import Downsample, Grid, MapStem, to_2tuple
from nasformer.models.base import STAGES, MapBackbone, Segment, check_option, drop_path_rates, total_depth
from nasformer.models.registry import register_space
from nasformer.models.sharing import SharingRules, centre_crop, grouped_prefix
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

KERNELS = (3, 5, 7, 9)
EXPANSIONS = (2, 3, 4, 6)


class ESFormer(MapBackbone):
    """The static ESFormer of an arch.

    >>> import torch
    >>> model = ESFormer(PRESETS["edgenext-like-xxs"], img_size=32, patch_size=1, num_classes=10).eval()
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> [(info["num_chs"], info["reduction"]) for info in model.feature_info]
    [(24, 1), (48, 2), (88, 4), (168, 8)]
    """

    family = "esformer"

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 256,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["avg"] = "avg",
        head_dim: int = 16,
        layer_scale: float = 1e-6,
        drop_path_rate: float = 0.1,
    ) -> list[Segment]:
        """Stem, four stages of blocks with downsampling between them, norm and head.

        Args:
            patch_size: Side of the stem's patches: 4, or 2 or 1 for small images.
            head_dim: Width of an attention head; every qkv_dim is a multiple of it.
            layer_scale: Initial layer scale of ConvNeXt blocks.
            drop_path_rate: Stochastic-depth rate of the last block; it grows linearly from 0.
        """
        check_option("global_pool", global_pool, ("avg",))
        grids, dims = stage_grids(img_size, patch_size), [arch[stage].embed_dim for stage in STAGES]
        stem = {"patch_size": patch_size, "in_chans": in_chans, "embed_dim": dims[0]}
        common = {"layer_scale": layer_scale, "stochastic_depth": drop_path_rate > 0}
        rates = drop_path_rates(total_depth(arch), drop_path_rate)
        segments = [Segment.of("stem", MapStem, grid=grids[0], **stem)]
        for stage, grid in enumerate(grids):
            if stage:
                name = f"stages.{stage}.downsample"
                segments.append(Segment.of(name, Downsample, grid=grid, in_dim=dims[stage - 1], out_dim=dims[stage]))
            for index, block in enumerate(arch[STAGES[stage]].blocks):
                layer, options = block_layer(block, dims[stage], head_dim, common)
                name = f"stages.{stage}.blocks.{index}"
                segments.append(Segment.of(name, layer, next(rates), grid=grid, **options))  # type: ignore[arg-type]
        norm = Segment.of("norm", MapNorm, embed_dim=dims[-1])
        head = Segment.of("head", MapHead, embed_dim=dims[-1], num_classes=num_classes, global_pool=global_pool)
        return [*segments, norm, head]

    @classmethod
    def sharing(cls, **options: Any) -> SharingRules:
        q_k_v = grouped_prefix(3)
        return {"qkv.weight": q_k_v, "qkv.bias": q_k_v, "conv_dw.weight": centre_crop, "depthwise.weight": centre_crop}


def stage_grids(img_size: int | tuple[int, int], patch_size: int) -> list[Grid]:
    """Rows and columns of the map in each stage.

    >>> stage_grids((256, 128), 4)
    [(64, 32), (32, 16), (16, 8), (8, 4)]
    """
    if patch_size not in (1, 2, 4):
        raise UserError(f"patch_size is {patch_size}, allowed: 1, 2, 4")
    height, width = to_2tuple(img_size)
    unit = 8 * patch_size
    if min(height, width) < unit or height % unit or width % unit:
        raise UserError(f"img_size {img_size} is not a multiple of {unit}, 8 times patch_size; change one of them")
    return [(height // step, width // step) for step in (patch_size, 2 * patch_size, 4 * patch_size, unit)]


def block_layer(
    block: Arch, embed_dim: int, head_dim: int, common: Mapping[str, Any]
) -> tuple[type[nn.Module], dict[str, Any]]:
    """The layer of a block such as ``{"ibn": {"kernel": 3, "expansion": 4}}``, and its options without the grid."""
    ((operator, genes),) = block.items()
    if operator == "encoder":
        if genes.qkv_dim % head_dim:
            raise UserError(f"qkv_dim {genes.qkv_dim} is not a multiple of head_dim {head_dim}; change one of them")
        ffn, options = block_layer(genes.ffn, embed_dim, head_dim, common)
        return MapEncoder, {"qkv_dim": genes.qkv_dim, "head_dim": head_dim, "ffn": ffn, **options}
    options = {"embed_dim": embed_dim, "hidden_dim": embed_dim * genes.expansion, "kernel": genes.kernel, **common}
    if operator == "convnext":
        return ConvNeXtBlock, options
    del options["layer_scale"]
    return InvertedBottleneck, options


def declare(
    embed_dim: tuple[tuple[int, ...], ...],
    depth: tuple[tuple[int, ...], ...],
    qkv_dim: tuple[tuple[int, ...], ...],
    kernel: tuple[int, ...] = KERNELS,
    expansion: tuple[int, ...] = EXPANSIONS,
) -> Struct:
    """The declaration of an ESFormer space: widths, depths and q-k-v dimensions for each stage.

    A stage without q-k-v dimensions has no encoders.
    """
    stages = {}
    for name, dims, depths, widths in zip(STAGES, embed_dim, depth, qkv_dim, strict=True):
        block = Struct(kernel=Choice(*kernel, role="topology"), expansion=Choice(*expansion))
        operators: dict[str, Any] = {"convnext": block, "ibn": block}  # in the order of their costs
        if widths:
            operators["encoder"] = Struct(qkv_dim=Choice(*widths), ffn=OneOf(**operators))
        stages[name] = Struct(embed_dim=Choice(*dims), blocks=Repeat(OneOf(**operators), depth=Choice(*depths)))
    return Struct(**stages)


def edgenext_like(embed_dim: str, depth: str, qkv_dim: str) -> Arch:
    """EdgeNeXt's layout: kernels that grow from 3 to 9, expansion 4, and encoders at the end of stages 3 and 4."""
    stages = {}
    widths = [None, None, *map(int, qkv_dim.split())]
    for name, dim, count, kernel, width in zip(STAGES, embed_dim.split(), depth.split(), KERNELS, widths, strict=True):
        blocks: list[Any] = [{"convnext": {"kernel": kernel, "expansion": 4}}] * int(count)
        if width:
            blocks[-1] = {"encoder": {"qkv_dim": width, "ffn": blocks[-1]}}
        stages[name] = {"embed_dim": int(dim), "blocks": blocks}
    return Arch.from_dict(stages)


PRESETS = {
    "edgenext-like-xxs": edgenext_like("24 48 88 168", "2 2 6 2", "64 128"),
    "edgenext-like-xs": edgenext_like("32 64 104 192", "3 3 9 3", "64 160"),
    "edgenext-like-s": edgenext_like("48 96 160 304", "3 3 9 3", "128 256"),
}


def register(name: str, about: str, root: Struct) -> None:
    register_space(Space(name, ESFormer, root, {}, PRESETS, about))


register(
    "esformer-s0",
    "hybrid nets around EdgeNeXt XXS: about 0.4 to 4.9 M parameters",
    declare(
        embed_dim=((16, 24, 32), (40, 48, 56), (72, 88, 104), (136, 168, 200)),
        depth=((1, 2, 3), (1, 2, 3), (4, 5, 6, 7, 8), (1, 2, 3)),
        qkv_dim=((), (), (32, 64, 96, 128), (64, 128, 192, 256)),
    ),
)
register(
    "esformer-s1",
    "hybrid nets around EdgeNeXt XS: about 0.7 to 7.9 M parameters",
    declare(
        embed_dim=((24, 32, 40), (48, 64, 80), (88, 104, 120), (160, 192, 224)),
        depth=((2, 3, 4), (2, 3, 4), (6, 7, 8, 9, 10), (2, 3, 4)),
        qkv_dim=((), (), (32, 64, 96, 128), (96, 160, 224, 288)),
    ),
)
register(
    "esformer-s2",
    "hybrid nets around EdgeNeXt S: about 1.5 to 18 M parameters",
    declare(
        embed_dim=((40, 48, 56), (80, 96, 112), (136, 160, 184), (256, 304, 352)),
        depth=((2, 3, 4), (2, 3, 4), (6, 7, 8, 9, 10), (2, 3, 4)),
        qkv_dim=((), (), (64, 128, 192, 256), (128, 256, 384)),
    ),
)
