"""AutoFormer: searching transformers for visual recognition (Chen et al., ICCV 2021, arXiv 2107.00651).

A plain vision transformer whose embedding width and depth are chosen for the whole net, heads and MLP ratio for each
layer. Head dimension is 64 whatever the width, positions are absolute and relative (on keys and values), the head
reads the mean of the patch tokens. The same spaces serve TF-TAS (Zhou et al., CVPR 2022).

Where paper and published code disagree, our choices:
- Tiny: MLP ratios 3.5 and 4.0 as in the paper. The published net T also uses 3.0, so it is a member of
  ``autoformer-tiny-mlp3`` and not of ``autoformer-tiny``.
- Base: 8, 9 or 10 heads as in the paper; the published supernet file has 9 and 10.
- The bias of q, k and v is shared by head, like their weights. The published code slices it contiguously, so that one
  entry serves q in one subnet and k in another; ``qkv_bias_sharing="contiguous"`` does the same, for its checkpoints.
- A supernet is as wide as its largest member (240 for tiny); the published one is wider (256) without using the rest.
- TF-TAS: where its supplement and its code print different nets, the code's file is the preset (it matches the
  parameter counts others report), the supplement's net has ``-supplement`` in its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families.backbone import Backbone
from nasformer.families.registry import register
from nasformer.families.segment import Segment
from nasformer.families.sharing import Rule, grouped_prefix, prefix
from nasformer.families.space import Space
from nasformer.layers.head import TokenHead
from nasformer.layers.norm import LayerNorm
from nasformer.layers.patch_embed import PatchEmbed
from nasformer.layers.relative_attention import Grid, RelativeAttention
from nasformer.layers.transformer_block import TransformerBlock
from nasformer.space import Arch, Choice, Repeat, Struct


class AutoFormer(Backbone):
    """The static AutoFormer network of an arch.

    >>> arch = Arch.from_dict({"embed_dim": 64, "blocks": [{"num_heads": 1, "mlp_ratio": 4.0}] * 2})
    >>> model = AutoFormer(arch, img_size=32, patch_size=8, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    family = "autoformer"
    undecayed = frozenset({"patch_embed.pos_embed", "patch_embed.cls_token"})
    patch_embed: PatchEmbed
    blocks: nn.Sequential
    norm: nn.Module

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
            drop_path_rate: The rate of the last block of the deepest net; it grows linearly from 0.
            super_depth: Depth of the deepest net of the space. A shallower one uses the first of its rates.
        """
        check_option("global_pool", global_pool, ("avg", "token"))
        check_option("qkv_bias_sharing", qkv_bias_sharing, ("by_head", "contiguous"))
        grid, dim = patch_grid(img_size, patch_size), arch.embed_dim
        last = max((super_depth or len(arch.blocks)) - 1, 1)
        stem = Segment.of("patch_embed", PatchEmbed, grid=grid, patch_size=patch_size, in_chans=in_chans, embed_dim=dim)
        blocks = [
            Segment.of(
                f"blocks.{index}",
                TransformerBlock,
                drop_path=drop_path_rate * index / last,
                embed_dim=dim,
                num_heads=block.num_heads,
                head_dim=head_dim or dim // block.num_heads,
                hidden_dim=int(dim * block.mlp_ratio),
                grid=grid,
                max_distance=max_relative_position if relative_position else None,
                qkv_bias=qkv_bias,
                stochastic_depth=drop_path_rate > 0,
            )
            for index, block in enumerate(arch.blocks)
        ]
        norm = Segment.of("norm", LayerNorm, embed_dim=dim)
        head = Segment.of("head", TokenHead, embed_dim=dim, num_classes=num_classes, global_pool=global_pool)
        return [stem, *blocks, norm, head]

    @classmethod
    def sharing(cls, *, qkv_bias_sharing: str = "by_head", **options: Any) -> Mapping[str, Rule]:
        by_head = grouped_prefix(3)
        return {"qkv.weight": by_head, "qkv.bias": by_head if qkv_bias_sharing == "by_head" else prefix}

    @classmethod
    def columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turns ``{"embed_dim", "depth", "num_heads": [...], "mlp_ratio": [...]}`` into blocks."""
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

    @property
    def num_features(self) -> int:
        return self.arch.embed_dim

    embed_dim = head_hidden_size = num_features

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        patch = self.options["patch_size"]
        return [
            {"num_chs": self.num_features, "reduction": patch, "module": name}
            for name in self.segment_names
            if name.startswith("blocks.")
        ]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {"stem": r"^patch_embed", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The patch tokens after the chosen blocks (all, the last n, or a list), as maps or as tokens."""
        depth = len(self.blocks)
        chosen = range(depth)[-indices:] if isinstance(indices, int) else indices or range(depth)
        wanted, maps = {range(depth)[index] for index in chosen}, []
        x = self.patch_embed(x)
        for index, block in enumerate(self.blocks):
            if stop_early and index > max(wanted):
                break
            x = block(x)
            if index in wanted:
                maps.append(self.as_map(self.norm(x) if norm else x, output_fmt))
        return maps if intermediates_only else (self.norm(x), maps)

    def as_map(self, tokens: Tensor, output_fmt: str) -> Tensor:
        patches = tokens[:, 1:]
        if output_fmt == "NLC":
            return patches
        return patches.transpose(1, 2).unflatten(2, self.patch_embed.grid)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops the blocks behind the last one wanted, and the head."""
        depth = len(self.blocks)
        chosen = list(range(depth))[-indices:] if isinstance(indices, int) else [range(depth)[i] for i in indices]
        self.blocks = self.blocks[: max(chosen) + 1]
        last = [f"blocks.{i}" for i in range(max(chosen) + 1)]
        self.segment_names = ["patch_embed", *last, "norm", "head"]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return chosen

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Goes on at another image size: absolute positions are resampled, relative ones go by distance."""
        grid = patch_grid(img_size, self.options["patch_size"])
        stem = self.patch_embed
        resampled = resample_abs_pos_embed(stem.pos_embed.data, list(grid), list(stem.grid), num_prefix_tokens=1)
        stem.pos_embed, stem.grid = nn.Parameter(resampled), grid
        for attention in self.modules():
            if isinstance(attention, RelativeAttention):
                attention.set_grid(grid)
        self.options["img_size"] = img_size


def check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")


def patch_grid(img_size: int | tuple[int, int], patch_size: int) -> Grid:
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if patch_size < 1 or height % patch_size or width % patch_size or min(height, width) < patch_size:
        raise UserError(f"img_size {img_size} is not a multiple of patch_size {patch_size}; change one of them")
    return height // patch_size, width // patch_size


def declare(
    embed_dim: tuple[int, ...],
    num_heads: tuple[int, ...],
    mlp_ratio: tuple[float, ...],
    depth: tuple[int, ...],
) -> Struct:
    """The declaration that all AutoFormer spaces share."""
    block = Struct(num_heads=Choice(*num_heads), mlp_ratio=Choice(*mlp_ratio))
    return Struct(embed_dim=Choice(*embed_dim), blocks=Repeat(block, depth=Choice(*depth)))


def published(embed_dim: int, num_heads: str, mlp_ratio: str) -> Arch:
    """An arch from the columns of a paper, heads as a string of numbers and ratios likewise."""
    heads, ratios = [int(h) for h in num_heads.split()], [float(r) for r in mlp_ratio.split()]
    return Arch.from_dict(AutoFormer.columns({"embed_dim": embed_dim, "num_heads": heads, "mlp_ratio": ratios}))


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


def add(name: str, about: str, root: Struct, **options: Any) -> None:
    depth = root.fields["blocks"].depth.largest()  # type: ignore[attr-defined]
    register(Space(name, AutoFormer, root, {"super_depth": depth, **options}, PRESETS, about))


add(
    "autoformer-tiny",
    "AutoFormer's supernet T: about 5.5 to 10 M parameters",
    declare((192, 216, 240), (3, 4), (3.5, 4.0), (12, 13, 14)),
)
add(
    "autoformer-tiny-mlp3",
    "supernet T with the MLP ratio 3.0 that the published AutoFormer-T uses",
    declare((192, 216, 240), (3, 4), (3.0, 3.5, 4.0), (12, 13, 14)),
)
add(
    "autoformer-small",
    "AutoFormer's supernet S: about 14 to 34 M parameters",
    declare((320, 384, 448), (5, 6, 7), (3.0, 3.5, 4.0), (12, 13, 14)),
)
add(
    "autoformer-base",
    "AutoFormer's supernet B: about 42 to 75 M parameters",
    declare((528, 576, 624), (8, 9, 10), (3.0, 3.5, 4.0), (14, 15, 16)),
)
add(
    "autoformer-micro",
    "a space of AutoFormer's shape for small images and small machines: about 0.03 to 0.4 M parameters",
    declare((32, 48, 64), (2, 3, 4), (2.0, 3.0, 4.0), (3, 4, 5, 6)),
    head_dim=16,
    img_size=32,
    patch_size=4,
    num_classes=10,
    max_relative_position=8,
)
