"""Scores read off the shape of a network alone: parameters, MACs, depth, and our own `stream` and `stream-fit`.

The first three are the baselines that every other proxy has to beat.

In a residual network every block adds to one stream of features. ``stream`` is the sum over the blocks of its width,
w_1 + ... + w_L. Parameters and multiply-accumulates count the square of the width, and what attention and MLP do with
it beside; accuracy follows the sum of widths more closely than either (docs/results.md).

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
from torch.utils.flop_counter import FlopCounterMode

from nasformer.models.base import Backbone, Segment
from nasformer.proxies.parts import Probe, attention_linears, is_block, mlp_linears, require_blocks, weight_layers
from nasformer.proxies.registry import register_proxy
from nasformer.proxies.untrained import SideBySide
from nasformer.space.arch import Arch


@register_proxy("params", formula="number of parameters", sees="nothing", higher="larger", paper="baseline")
def params(model: nn.Module, probe: Probe) -> float:
    """All parameters, each shared one counted once."""
    return float(sum(parameter.numel() for parameter in model.parameters()))


@register_proxy(
    "macs",
    formula="multiply-accumulates of one image's forward pass",
    sees="nothing (the shape of the images)",
    higher="larger",
    paper="baseline; the complexity term of AZ-NAS",
)
def macs(model: nn.Module, probe: Probe) -> float:
    """Multiply-accumulates of an image.

    For our own models by the closed form that budgets use (relative positions left out, as papers do); for any other
    model half of what torch's counter of operations sees: all matrix products and convolutions.
    """
    if isinstance(model, Backbone):
        return float(sum(segment.cost().macs for segment in model.plan(model.arch, **model.options)))
    # On the meta device nothing is computed, and every version of torch counts fused attention there.
    model.to("meta").requires_grad_(False)  # rather than no_grad, under which the counter fails on nested inputs
    with FlopCounterMode(display=False) as counter:
        model(probe.ones().to("meta"))
    return counter.get_total_flops() / 2


@register_proxy(
    "depth",
    formula="number of blocks (modules named blocks.<number>)",
    sees="nothing",
    higher="deeper",
    paper="baseline",
)
def depth(model: nn.Module, probe: Probe) -> float:
    """The number of blocks at any level: ``blocks.3`` as well as ``stages.1.blocks.3``."""
    return float(require_blocks(model))


class BlockShape(NamedTuple):
    """The widths of a block: of its output, within its MLP, and of its queries, keys and values."""

    width: int
    hidden: int = 0
    attention: int = 0


def block_shapes(model: nn.Module) -> list[BlockShape]:
    """The shapes of all blocks of a network, in order.

    >>> import timm
    >>> block_shapes(timm.create_model("vit_tiny_patch16_224", depth=1))
    [BlockShape(width=192, hidden=768, attention=192)]
    """
    require_blocks(model)
    return [shape_of(module) for name, module in model.named_modules() if is_block(name)]


def shape_of(block: nn.Module) -> BlockShape:
    """The shape of one block; the output of its last layer is added to the stream."""
    *_, last = weight_layers(block).values()
    width = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    hidden = sum(layer.out_features for name, layer in mlp_linears(block).items() if name.endswith("fc1"))
    attention = sum(layer.in_features for name, layer in attention_linears(block).items() if name.endswith("proj"))
    return BlockShape(width, hidden, attention)


@lru_cache(maxsize=100_000)
def _shape_of_kind(kind: tuple[type[nn.Module], tuple[tuple[str, Hashable], ...]]) -> BlockShape:
    """The shape of a block that is described but not built."""
    with torch.device("meta"):
        return shape_of(Segment("", *kind).build())


def _stream(blocks: Sequence[BlockShape]) -> float:
    return float(sum(block.width for block in blocks))


# Fitted: the best depth, the weight of the squared distance from it, where that levels off, the weights of late width.
DEPTH, DEPTH_WEIGHT, LEVEL, MLP, ATTENTION = 13.52, 0.08, 2.14, 0.087, 0.08


def _stream_fit(blocks: Sequence[BlockShape]) -> float:
    depth = len(blocks)
    late = [
        (index + 0.5) / depth * (MLP * block.hidden + ATTENTION * block.attention) / block.width
        for index, block in enumerate(blocks)
    ]
    width = statistics.fmean(block.width for block in blocks)
    return math.log(width) + statistics.fmean(late) - DEPTH_WEIGHT * min((depth - DEPTH) ** 2, LEVEL)


def _register(name: str, formula: str, measure: Callable[[Sequence[BlockShape]], float]) -> None:
    def score(model: nn.Module, probe: Probe) -> float:
        return measure(block_shapes(model))

    def many(nets: SideBySide, archs: Sequence[Arch], probe: Probe) -> list[float]:
        """The same without building a model: the segments of the plan have all widths."""
        plans = [nets.layers.space.plan(arch) for arch in archs]
        return [measure([_shape_of_kind(part.kind) for part in plan if is_block(part.name)]) for plan in plans]

    higher = "a longer and wider residual stream"
    register_proxy(name, formula=formula, sees="nothing", higher=higher, paper="nasformer", many=many)(score)


_register("stream", "sum over blocks of the width of the residual stream", _stream)
_register(
    "stream-fit",
    f"log(mean width) + mean_l t_l ({MLP} hidden_l + {ATTENTION} attention_l) / width_l"
    f" - {DEPTH_WEIGHT} min((depth - {DEPTH})^2, {LEVEL}), t_l = position of block l from 0 to 1",
    _stream_fit,
)
