"""AutoFormer: searching transformers for visual recognition (Chen et al., ICCV 2021, arXiv 2107.00651).

A plain vision transformer. Embedding width and depth are chosen for the whole net, heads and MLP ratio for each layer.
Heads are 64 wide whatever the embedding, positions are absolute and relative (on keys and values), the head reads the
mean of the patch tokens. The same spaces serve TF-TAS (Zhou et al., CVPR 2022).

Where paper and published code disagree, our choices:
- Tiny: MLP ratios 3.5 and 4.0 as in the paper. The published net T also uses 3.0, so it is a member of
  ``autoformer-tiny-mlp3`` and not of ``autoformer-tiny``.
- Base: 8, 9 or 10 heads as in the paper; the published supernet file has 9 and 10.
- The bias of q, k and v is shared by head, like their weights. The published code slices it contiguously, so that one
  entry serves q in one subnet and k in another; ``qkv_bias_sharing="contiguous"`` does the same, for its checkpoints.
- A supernet is as wide as its largest member (240 for tiny); the published one is wider (256) without using the rest.
- TF-TAS: where its supplement and its code print different nets, the code's file is the preset (it matches the
  parameter counts others report), the supplement's net has ``-supplement`` in its name.

The published supernet checkpoints are read at the end, so that a downloaded supernet can be searched at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from nasformer.errors import UserError
from nasformer.layers.basic import LayerNorm, TokenHead
from nasformer.layers.blocks import TransformerBlock
from nasformer.layers.stem import Grid, PatchEmbed
from nasformer.models.base import Segment, TokenBackbone, check_option, patch_grid, rename
from nasformer.models.registry import register_space
from nasformer.models.sharing import SharingRules, grouped_prefix, prefix
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Repeat, Struct


class AutoFormer(TokenBackbone):
    """The static AutoFormer network of an arch.

    >>> arch = Arch.from_dict({"embed_dim": 64, "blocks": [{"num_heads": 1, "mlp_ratio": 4.0}] * 2})
    >>> model = AutoFormer(arch, img_size=32, patch_size=8, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    family = "autoformer"
    patch_embed: PatchEmbed

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["avg", "token"] = "avg",
        head_dim: int | None = 64,
        relative_position: bool = True,
        max_relative_position: int = 14,
        qkv_bias: bool = True,
        qkv_bias_sharing: Literal["by_head", "contiguous"] = "by_head",
        drop_path_rate: float = 0.1,
        super_depth: int | None = None,
    ) -> list[Segment]:
        """Patch embedding, blocks, norm and head.

        Args:
            head_dim: None means embed_dim // num_heads, as in a plain ViT.
            qkv_bias_sharing: How a supernet slices that bias; the static model does not depend on it.
            drop_path_rate: Stochastic-depth rate of the deepest net's last block; it grows linearly from 0.
            super_depth: Depth of the deepest net of the space. A shallower one has the first of its rates.
        """
        check_option("global_pool", global_pool, ("avg", "token"))
        check_option("qkv_bias_sharing", qkv_bias_sharing, ("by_head", "contiguous"))
        grid, dim = patch_grid(img_size, patch_size), arch.embed_dim
        last = max((super_depth or len(arch.blocks)) - 1, 1)
        stem = Segment.of("patch_embed", PatchEmbed, grid=grid, patch_size=patch_size, in_chans=in_chans, embed_dim=dim)
        distance = max_relative_position if relative_position else None
        blocks = [
            _block(index, block, dim, head_dim, grid, distance, qkv_bias, drop_path_rate, last)
            for index, block in enumerate(arch.blocks)
        ]
        norm = Segment.of("norm", LayerNorm, embed_dim=dim)
        head = Segment.of("head", TokenHead, embed_dim=dim, num_classes=num_classes, global_pool=global_pool)
        return [stem, *blocks, norm, head]

    @classmethod
    def sharing(cls, *, qkv_bias_sharing: str = "by_head", **options: Any) -> SharingRules:
        by_head = grouped_prefix(3)
        return {"qkv.weight": by_head, "qkv.bias": by_head if qkv_bias_sharing == "by_head" else prefix}

    @classmethod
    def from_columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Blocks from the columns ``{"embed_dim", "depth", "num_heads": [...], "mlp_ratio": [...]}``."""
        if "blocks" in values or not {"num_heads", "mlp_ratio"} <= set(values):
            return values
        heads, ratios = values["num_heads"], values["mlp_ratio"]
        if not isinstance(heads, list | tuple) or not isinstance(ratios, list | tuple):
            raise UserError("num_heads and mlp_ratio must be lists with one entry for each layer")
        depth = values.get("depth", len(heads))
        if not len(heads) == len(ratios) == depth:
            raise UserError(
                f"depth is {depth}, num_heads has {len(heads)} entries and mlp_ratio {len(ratios)}; all must agree"
            )
        rest = {key: value for key, value in values.items() if key not in ("depth", "num_heads", "mlp_ratio")}
        blocks = [{"num_heads": h, "mlp_ratio": r} for h, r in zip(heads, ratios, strict=True)]
        return {**rest, "blocks": blocks}

    @classmethod
    def derived_options(cls, root: Struct) -> Mapping[str, Any]:
        return {"super_depth": root.fields["blocks"].depth.largest()}  # type: ignore[attr-defined]


@lru_cache(100_000, typed=True)  # keys are shorter than those of Segment.of: a plan takes half the time
def _block(
    index: int,
    block: Arch,
    embed_dim: int,
    head_dim: int | None,
    grid: Grid,
    max_distance: int | None,
    qkv_bias: bool,
    drop_path_rate: float,
    last: int,
) -> Segment:
    return Segment.of(
        f"blocks.{index}",
        TransformerBlock,
        drop_path=drop_path_rate * index / last,
        embed_dim=embed_dim,
        num_heads=block.num_heads,
        head_dim=head_dim or embed_dim // block.num_heads,
        hidden_dim=int(embed_dim * block.mlp_ratio),
        grid=grid,
        max_distance=max_distance,
        qkv_bias=qkv_bias,
        stochastic_depth=drop_path_rate > 0,
    )


def declare(
    embed_dim: tuple[int, ...],
    num_heads: tuple[int, ...],
    mlp_ratio: tuple[float, ...],
    depth: tuple[int, ...],
) -> Struct:
    """The declaration of an AutoFormer space."""
    block = Struct(num_heads=Choice(*num_heads), mlp_ratio=Choice(*mlp_ratio))
    return Struct(embed_dim=Choice(*embed_dim), blocks=Repeat(block, depth=Choice(*depth)))


def published(embed_dim: int, num_heads: str, mlp_ratio: str) -> Arch:
    """An arch from the columns of a paper: heads and ratios, one for each layer."""
    heads, ratios = [int(h) for h in num_heads.split()], [float(r) for r in mlp_ratio.split()]
    return Arch.from_dict(AutoFormer.from_columns({"embed_dim": embed_dim, "num_heads": heads, "mlp_ratio": ratios}))


PRESETS = {
    "autoformer-t": published(192, "3 3 3 3 3 3 3 3 3 3 4 3 3", "3.5 3.5 3 3.5 3 3 4 4 3.5 4 3.5 4 3.5"),
    "autoformer-s": published(384, "6 6 5 7 5 5 5 6 6 7 7 6 7", "3 3.5 3 3.5 4 4 4 4 4 4 4 3.5 4"),
    "autoformer-b": published(576, "9 9 9 9 9 10 9 9 10 9 10 9 9 10", "3.5 3.5 4 3.5 4 3.5 3.5 3 4 4 3 4 3 3.5"),
    "tf-tas-ti": published(192, "4 3 3 3 3 4 4 3 3 3 4 3 3", "3.5 4 3.5 3.5 4 3.5 3.5 3.5 4 4 4 4 3.5"),
    "tf-tas-ti-supplement": published(192, "4 3 3 3 3 4 4 3 3 3 4 3 3", "3.5 4 3.5 3.5 4 3.5 3.5 4 4 4 4 4 3.5"),
    "tf-tas-s": published(384, "6 6 6 6 7 6 5 7 5 5 5 7 6 7", "4 4 4 3 4 3 3 3.5 4 3.5 3.5 4 3 3.5"),
    "tf-tas-b": published(576, "9 10 10 10 10 10 10 9 9 10 9 9 9 9 9", "3 3.5 4 4 3 4 3 3 3.5 3 3 3.5 4 3 4"),
    "tf-tas-b-supplement": published(
        576, "9 10 10 10 10 9 10 9 9 10 9 9 9 10 9", "4 4 4 3.5 3 3 3 4 3 3 3.5 4 3.5 4 3"
    ),
}


def register(name: str, about: str, root: Struct, **options: Any) -> None:
    register_space(Space(name, AutoFormer, root, {**AutoFormer.derived_options(root), **options}, PRESETS, about))


register(
    "autoformer-tiny",
    "AutoFormer's supernet T: about 5.5 to 10 M parameters",
    declare((192, 216, 240), (3, 4), (3.5, 4.0), (12, 13, 14)),
)
register(
    "autoformer-tiny-mlp3",
    "supernet T with the MLP ratio 3.0 that the published AutoFormer-T uses",
    declare((192, 216, 240), (3, 4), (3.0, 3.5, 4.0), (12, 13, 14)),
)
register(
    "autoformer-small",
    "AutoFormer's supernet S: about 14 to 34 M parameters",
    declare((320, 384, 448), (5, 6, 7), (3.0, 3.5, 4.0), (12, 13, 14)),
)
register(
    "autoformer-base",
    "AutoFormer's supernet B: about 42 to 75 M parameters",
    declare((528, 576, 624), (8, 9, 10), (3.0, 3.5, 4.0), (14, 15, 16)),
)
register(
    "autoformer-micro",
    "a space of AutoFormer's shape for small images and small machines: about 0.03 to 0.4 M parameters",
    declare((32, 48, 64), (2, 3, 4), (2.0, 3.0, 4.0), (3, 4, 5, 6)),
    head_dim=16,
    img_size=32,
    patch_size=4,
    num_classes=10,
    max_relative_position=8,
)


# The published supernet checkpoints. Their layout: rows of q, k and v interleaved modulo 3 in one matrix, its bias
# plain, other names, tensors wider than the largest member. The bias was trained under contiguous slicing, so the space
# takes qkv_bias_sharing="contiguous".

NAMES = (
    (r"^patch_embed_super\.", "patch_embed."),
    (r"^(cls_token|pos_embed)$", r"patch_embed.\1"),
    (r"^head\.", "head.fc."),
    (r"\.attn_layer_norm\.", ".norm1."),
    (r"\.ffn_layer_norm\.", ".norm2."),
    (r"\.(fc1|fc2)\.", r".mlp.\1."),
    (r"rel_pos_embed_(k|v)\.embeddings_table_v$", r"rel_pos_\1.vertical"),
    (r"rel_pos_embed_(k|v)\.embeddings_table_h$", r"rel_pos_\1.horizontal"),
)


def is_official(state: Mapping[str, Tensor]) -> bool:
    """Whether weights have the published layout."""
    return "patch_embed_super.proj.weight" in state


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the published layout in ours: under our names, with the rows of q, k and v each together."""
    return {rename(name, NAMES): deinterleave(name, weight) for name, weight in state.items()}


def deinterleave(name: str, weight: Tensor) -> Tensor:
    if not name.endswith("qkv.weight"):
        return weight
    return torch.cat([weight[part::3] for part in range(3)])
