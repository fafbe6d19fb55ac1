"""Stream: our own scores, read off the shape of a network alone.

In a residual network every block writes into one stream of features. ``stream`` counts that stream: the sum over the
blocks of its width, w_1 + ... + w_L. Parameters and multiply-accumulates count the square of the width, and what
attention and MLP do with it beside; accuracy follows the stream more closely than either (docs/results.md).

``stream-fit`` adds what weights inherited from AutoFormer's supernets show beyond that, with five constants fitted on
half of the rows of public tables: late blocks gain from a wide MLP and wide attention, early ones do not; and depth is
best near 13 or 14, on either side of which it falls for about a block and a half and then levels off.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from nasformer.families.segment import Segment
from nasformer.proxies.core import Inapplicable, Probe, is_attention, is_mlp, proxy
from nasformer.proxies.lockstep import Lockstep
from nasformer.space.arch import Arch

DEPTH, DEPTH_WEIGHT, LEVEL, MLP, ATTENTION = 13.52, 0.08, 2.14, 0.087, 0.08
"""Fitted: the best depth, the weight of its squared distance, where that levels off, the weights of late width."""


class Block(NamedTuple):
    """The widths of a block: of the stream, within its MLP, and of its queries, keys and values."""

    width: int
    hidden: int = 0
    attention: int = 0


def blocks_of(model: nn.Module) -> list[Block]:
    """The blocks of any network whose attention and MLP are named as in timm, in order.

    >>> import timm
    >>> blocks_of(timm.create_model("vit_tiny_patch16_224", depth=2))
    [Block(width=192, hidden=768, attention=192), Block(width=192, hidden=768, attention=192)]
    """
    found: dict[str, Block] = {}
    for name, layer in model.named_modules():
        block = found.get(block_name(name), Block(0))
        if is_attention(name, layer) and name.endswith("proj"):
            found[block_name(name)] = block._replace(width=layer.out_features, attention=layer.in_features)
        if is_mlp(name, layer) and name.endswith("fc1"):
            found[block_name(name)] = block._replace(width=layer.in_features, hidden=layer.out_features)
    return list(found.values())


@lru_cache(maxsize=100_000)
def blocks_in(kind: tuple[type[nn.Module], tuple[tuple[str, Hashable], ...]]) -> list[Block]:
    """The blocks of a layer that is described but not built."""
    with torch.device("meta"):
        return blocks_of(Segment("", *kind).build())


def block_name(linear: str) -> str:
    return ".".join(linear.split(".")[:-2])


def stream_of(blocks: Sequence[Block]) -> float:
    return float(sum(block.width for block in blocks))


def fitted_of(blocks: Sequence[Block]) -> float:
    depth = len(blocks)
    late = [
        (index + 0.5) / depth * (MLP * block.hidden + ATTENTION * block.attention) / block.width
        for index, block in enumerate(blocks)
    ]
    width = statistics.fmean(block.width for block in blocks)
    return math.log(width) + statistics.fmean(late) - DEPTH_WEIGHT * min((depth - DEPTH) ** 2, LEVEL)


def _register(name: str, formula: str, measure: Callable[[Sequence[Block]], float]) -> None:
    def score(model: nn.Module, probe: Probe) -> float:
        blocks = blocks_of(model)
        if not blocks:
            raise Inapplicable("the model has no blocks with layers named attn.proj or mlp.fc1")
        return measure(blocks)

    def many(lockstep: Lockstep, archs: Sequence[Arch], probe: Probe) -> list[float]:
        """No model is built: the layers of the plan know their widths."""
        plans = [lockstep.fresh.space.plan(arch) for arch in archs]
        shapes = [[block for segment in plan for block in blocks_in(segment.kind)] for plan in plans]
        return [measure(blocks) if blocks else math.nan for blocks in shapes]

    paper, higher = "nasformer", "a longer and wider residual stream"
    proxy(name, formula=formula, sees="nothing", higher=higher, paper=paper, many=many)(score)


_register("stream", "sum over blocks of the width of the residual stream", stream_of)
_register(
    "stream-fit",
    f"log(mean width) + mean_l t_l ({MLP} hidden_l + {ATTENTION} attention_l) / width_l"
    f" - {DEPTH_WEIGHT} min((depth - {DEPTH})^2, {LEVEL}), t_l = position of block l from 0 to 1",
    fitted_of,
)
