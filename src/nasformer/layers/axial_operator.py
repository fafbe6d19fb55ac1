"""The spatial operator of axial attention (Wang et al., ECCV 2020): along columns, then along rows."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.bottleneck import shrink
from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid
from nasformer.layers.head_maps import HeadMaps, project_cost

ORDERS = {"height": (0, 4, 1, 3, 2), "width": (0, 3, 1, 4, 2)}
"""From [batch, heads, channels, rows, columns] to what stands beside the axis, and then [heads, axis, channels]."""


class AxisAttention(HeadMaps):
    """Every position attends to all positions of its column (axis height) or its row (width)."""

    def __init__(
        self, in_dim: int, query_dim: int, value_dim: int, num_heads: int, axis: str, dropout: float = 0.0
    ) -> None:
        super().__init__(in_dim, query_dim, value_dim, num_heads, dropout)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        order = ORDERS[self.axis]
        q, k, v = (part.permute(order).flatten(0, 1) for part in self.project(x))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate, scale=1.0)
        back = [order.index(place) for place in range(5)]
        return attended.unflatten(0, (x.shape[0], -1)).permute(back).flatten(1, 2)


class AxialOperator(nn.Module):
    """Attention along the height, attention along the width of what that gives, batch norm.

    Neither positions nor norms inside, as TrioNet has it; so every position sees the whole map.
    """

    name: ClassVar[str] = "axial"

    def __init__(
        self,
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.height = AxisAttention(mid_dim, query_dim, value_dim, num_heads, "height", dropout)
        self.width = AxisAttention(value_dim, query_dim, value_dim, num_heads, "width", dropout)
        self.pool = shrink(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(self.width(self.height(x))))

    @staticmethod
    def cost(
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        dropout: float = 0.0,
    ) -> Cost:
        positions = grid[0] * grid[1]
        first = project_cost(positions, mid_dim, query_dim, value_dim)
        second = project_cost(positions, value_dim, query_dim, value_dim)
        products = Cost(macs=positions * sum(grid) * (query_dim + value_dim))
        return first + second + products + norm_cost(value_dim)
