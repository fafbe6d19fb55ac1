"""A small net of each family, with every kind of attention that the family has."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from families.small import SPACES, images, randomise
from nasformer.models.base import Backbone
from nasformer.report.attention import attention_blocks, attention_layers, find_block

torch.set_num_threads(1)

# The cheapest space of each.
FAMILIES = {"autoformer": "autoformer-micro", "pit": "pit-tiny", "esformer": "esformer-s0", "trionet": "trionet-micro"}
FAMILIES |= {"s3": "s3-micro", "vit": "vit-micro"}
each_family = pytest.mark.parametrize("family", FAMILIES)


def kinds(model: Backbone) -> set[str]:
    blocks = [model.get_submodule(find_block(model, block)) for block in attention_blocks(model)]
    return {name for block in blocks for name in attention_layers(block)}


@cache
def net(family: str) -> Backbone:
    space, wanted = SPACES[FAMILIES[family]], {"local", "height", "width"} if family == "trionet" else {"attn"}
    with torch.device("meta"):
        arch = next(arch for arch in map(space.sample, range(50)) if kinds(space.build(arch)) == wanted)
    return randomise(space.build(arch)).eval()


def pictures(family: str) -> Tensor:
    return images(SPACES[FAMILIES[family]])


def block_with(model: Backbone, kind: str) -> str:
    """The first block that has a layer of this name."""
    found = {
        block: attention_layers(model.get_submodule(find_block(model, block))) for block in attention_blocks(model)
    }
    return next(block for block, layers in found.items() if kind in layers)
