"""Where on the map the queries and keys of an attention lie, whatever groups they were put in.

A layer cuts its map into windows, tiles or lines before it attends. Here a map of *numbers* goes the same way, so each
query and each key tells its place: positions have the numbers 1, 2, 3 ... row by row, and what lies on no map has the
number 0: the class token, or padding.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nasformer.layers.axial_operator import ORDERS, AxisAttention
from nasformer.layers.grid import Grid
from nasformer.layers.local_attention import tiled
from nasformer.layers.local_operator import LocalOperator
from nasformer.layers.relative_attention import RelativeAttention
from nasformer.layers.self_attention import SelfAttention
from nasformer.layers.window_attention import WindowAttention


class Placed(NamedTuple):
    """Attention of groups (windows, tiles, lines of a map) with the places of those who take part.

    Attributes:
        weights: [images, groups, heads, queries, keys].
        queries: [groups, queries], the numbers of their positions.
        keys: [groups, keys], likewise.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor

    def on_map(self, grid: Grid) -> Tensor:
        """[images, heads, 1 + positions, 1 + positions], by the numbers of query and key."""
        side = grid[0] * grid[1] + 1
        pairs = self.queries[:, :, None] * side + self.keys[:, None, :]
        images, _, heads = self.weights.shape[:3]
        whole = self.weights.new_zeros(images, heads, side * side)
        return whole.index_add(2, pairs.flatten(), self.weights.transpose(1, 2).flatten(2)).unflatten(2, (side, side))


def numbers(grid: Grid, device: torch.device) -> Tensor:
    """[rows, columns], counted from 1."""
    return torch.arange(1, grid[0] * grid[1] + 1, device=device).unflatten(0, grid)


@singledispatch
def placed(layer: nn.Module, weights: Tensor, grid: Grid) -> Placed:
    """The weights of a layer's fused attention, in groups and with their places on the layer's map.

    >>> layer = AxisAttention(in_dim=4, query_dim=4, value_dim=4, num_heads=2, axis="width")
    >>> found = placed(layer, torch.rand(6, 2, 3, 3), grid=(2, 3))
    >>> found.weights.shape, found.keys.tolist()  # 3 images of 2 rows
    (torch.Size([3, 2, 2, 3, 3]), [[1, 2, 3], [4, 5, 6]])
    """
    raise NotImplementedError(f"add to attention/places.py where {type(layer).__name__} looks")


@placed.register
def _(layer: RelativeAttention, weights: Tensor, grid: Grid) -> Placed:
    tokens = torch.arange(grid[0] * grid[1] + 1, device=weights.device)[None]  # the class token comes first
    return Placed(weights[:, None], tokens, tokens)


@placed.register
def _(layer: SelfAttention, weights: Tensor, grid: Grid) -> Placed:
    tokens = numbers(grid, weights.device).view(1, -1)
    return Placed(weights[:, None], tokens, tokens)


@placed.register
def _(layer: WindowAttention, weights: Tensor, grid: Grid) -> Placed:
    windows = layer.windows(numbers(grid, weights.device)[None, :, :, None])[0, :, :, 0]
    return Placed(weights.unflatten(1, (-1, layer.num_heads)), windows, windows)


@placed.register
def _(layer: LocalOperator, weights: Tensor, grid: Grid) -> Placed:
    both = tiled(numbers(grid, weights.device)[None, None, None], layer.window)
    queries, keys = (part[0, 0, :, :, 0] for part in both)
    return Placed(weights.unflatten(1, (layer.num_heads, -1)).transpose(1, 2), queries, keys)


@placed.register
def _(layer: AxisAttention, weights: Tensor, grid: Grid) -> Placed:
    lines = numbers(grid, weights.device)[None, None, None].permute(ORDERS[layer.axis])[0, :, 0, :, 0]
    return Placed(weights.unflatten(0, (-1, len(lines))), lines, lines)


KINDS = tuple(kind for kind in placed.registry if kind is not object)
"""The layers that attend."""
