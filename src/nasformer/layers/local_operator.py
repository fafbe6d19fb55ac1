"""The spatial operator of stand-alone self-attention (Ramachandran et al., NeurIPS 2019): attention in a window."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from nasformer.layers.bottleneck import shrink
from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid
from nasformer.layers.head_maps import HeadMaps, project_cost
from nasformer.layers.local_attention import local_attention


class LocalOperator(HeadMaps):
    """Every position attends to the window around it, by content and by where in the window; then batch norm.

    `positions` has a vector for each place in the window and each head, in the channels of the queries.
    """

    name: ClassVar[str] = "local"

    def __init__(
        self,
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        window: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(mid_dim, query_dim, value_dim, num_heads, dropout)
        self.window = window
        # Deviation 1, since queries start with the inverse root of their width: place weighs as much as content.
        self.positions = nn.Parameter(torch.randn(query_dim, window, window))
        self.pool = shrink(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.positions.unflatten(0, (self.num_heads, -1))
        attended = local_attention(*self.project(x), positions, self.window, self.rate)
        return self.norm(self.pool(attended.flatten(1, 2)))

    @staticmethod
    def cost(
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        window: int,
        dropout: float = 0.0,
    ) -> Cost:
        """Places count among the MACs: the published numbers of local attention fit with them and not without."""
        positions = grid[0] * grid[1]
        table = Cost(query_dim * window**2, positions * window**2 * (2 * query_dim + value_dim))
        return project_cost(positions, mid_dim, query_dim, value_dim) + table + norm_cost(value_dim)
