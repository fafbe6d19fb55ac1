"""A small AutoFormer space, a family with alternatives, which AutoFormer does not have, and one with batch norm."""

from __future__ import annotations

from typing import Any

from families.small import randomise
from nasformer.families.autoformer import AutoFormer, declare
from nasformer.families.esformer import ESFormer, declare as declare_esformer
from nasformer.layers.basic import LayerNorm, TokenHead
from nasformer.layers.blocks import Mlp
from nasformer.layers.stem import PatchEmbed
from nasformer.models.base import Backbone, Segment
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct
from nasformer.supernet.supernet import Supernet


def toy_space(**options: Any) -> Space:
    root = declare((32, 40, 48), (1, 2, 3), (2.0, 3.0), (2, 3, 4))
    small = {"img_size": 16, "patch_size": 4, "num_classes": 10, "head_dim": 8, "super_depth": 4}
    return Space("toy", AutoFormer, root, {**small, **options})


def toy_supernet(**options: Any) -> Supernet:
    """Every weight is random, biases and scales included."""
    return randomise(Supernet(toy_space(**options))).eval()


class Alternatives(Backbone):
    """Each block is a norm or an MLP, which share no weights, or a wide MLP, which shares those of the other."""

    family = "alternatives"

    @classmethod
    def plan(cls, arch: Arch, *, img_size: int = 8, num_classes: int = 10) -> list[Segment]:
        dim, patch = arch.embed_dim, img_size // 2
        blocks = []
        for index, block in enumerate(arch.blocks):
            ((kind, choices),) = block.items()
            if kind == "norm":
                blocks.append(Segment.of(f"blocks.{index}.norm", LayerNorm, embed_dim=dim))
            else:
                blocks.append(Segment.of(f"blocks.{index}.mlp", Mlp, embed_dim=dim, hidden_dim=choices.hidden_dim))
        return [
            Segment.of("patch_embed", PatchEmbed, grid=(2, 2), patch_size=patch, in_chans=3, embed_dim=dim),
            *blocks,
            Segment.of("head", TokenHead, embed_dim=dim, num_classes=num_classes),
        ]


def alternatives_space() -> Space:
    block = OneOf(norm=Struct(), mlp=Struct(hidden_dim=Choice(4, 6)), wide=Struct(hidden_dim=Choice(8, 10)))
    root = Struct(embed_dim=Choice(8, 12), blocks=Repeat(block, depth=Choice(1, 2)))
    return Space("alternatives", Alternatives, root)


def toy_esformer(**options: Any) -> Space:
    """A family with batch norm and with alternatives, for images of 8 x 8 pixels."""
    root = declare_esformer(
        embed_dim=((8, 16),) * 4,
        depth=((1, 2),) * 4,
        qkv_dim=((), (), (16, 32), (16, 32)),
        kernel=(3, 5),
        expansion=(2, 3),
    )
    small = {"img_size": 8, "patch_size": 1, "in_chans": 1, "num_classes": 10, "layer_scale": 0.5}
    return Space("toy-esformer", ESFormer, root, {**small, **options})
