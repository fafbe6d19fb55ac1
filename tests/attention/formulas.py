"""What each kind of attention gives by its formula, when its weights on the map are known."""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor, nn

from nasformer.layers.attention import RelativeAttention, RelativePositions, SelfAttention
from nasformer.layers.resnet import AxisAttention, LocalOperator
from nasformer.layers.stem import Grid
from nasformer.layers.window import WindowAttention
from nasformer.report.attention import Recorder, grouped_weights


def weights_on_map(layer: nn.Module, x: Tensor, grid: Grid) -> Tensor:
    with torch.no_grad(), Recorder() as recorder:
        layer.eval()(x)
    return grouped_weights(layer, torch.cat([call.weights for call in recorder.calls]), grid).on_map(grid)


@singledispatch
def output_by_formula(layer: nn.Module, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    """What a layer gives by its formula: weights on the values of all positions, then what comes behind."""
    raise AssertionError(layer)


def values(qkv: Tensor, heads: int) -> Tensor:
    """[images, heads, tokens, head_dim] of what a layer made of [images, tokens, channels]."""
    return qkv.unflatten(2, (3, heads, -1))[:, :, 2].transpose(1, 2)


@output_by_formula.register
def _(layer: SelfAttention, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    seen = weights[:, :, 1:, 1:] @ values(layer.qkv(x), weights.shape[1])
    return layer.proj(seen.transpose(1, 2).flatten(2))


@output_by_formula.register
def _(layer: RelativeAttention, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    seen = weights @ values(layer.qkv(x), layer.num_heads)
    if layer.max_distance is not None:
        seen = seen + torch.einsum("bhij,ijd->bhid", weights, between(layer.rel_pos_v, grid, layer.max_distance))
    return layer.proj(seen.transpose(1, 2).flatten(2))


def between(table: RelativePositions, grid: Grid, farthest: int) -> Tensor:
    """The vector of each pair of tokens, the class token first."""
    rows, columns = (part.flatten() for part in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
    vectors = (table.vertical[0] + table.horizontal[0]).expand(len(rows) + 1, len(rows) + 1, -1).clone()
    entries = ((x - x[:, None]).clamp(-farthest, farthest) + farthest + 1 for x in (rows, columns))
    vertical, horizontal = entries
    vectors[1:, 1:] = table.vertical[vertical] + table.horizontal[horizontal]
    return vectors


@output_by_formula.register
def _(layer: WindowAttention, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    tokens = torch.cat([x.new_zeros(x.shape[0], 1, x.shape[3]), x.flatten(1, 2)], 1)  # padding is a token of zeros
    seen = weights[:, :, 1:] @ values(layer.qkv(tokens), layer.num_heads)
    return layer.proj(seen.transpose(1, 2).flatten(2)).unflatten(1, grid)


@output_by_formula.register
def _(layer: LocalOperator, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    return layer.norm(layer.pool(on_values(layer, weights, x)))


@output_by_formula.register
def _(layer: AxisAttention, weights: Tensor, x: Tensor, grid: Grid) -> Tensor:
    return on_values(layer, weights, x)


def on_values(layer: LocalOperator | AxisAttention, weights: Tensor, x: Tensor) -> Tensor:
    value = layer.project(x)[2]
    seen = weights[:, :, 1:, 1:] @ value.flatten(3).transpose(2, 3)
    return seen.transpose(2, 3).unflatten(3, value.shape[3:]).flatten(1, 2)
