"""ResNet's bottleneck (He et al., CVPR 2016) around a spatial operator: convolution, local or axial attention."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.attention import local_attention
from nasformer.layers.basic import Cost, DropPath, linear_cost, norm_cost
from nasformer.layers.stem import Grid, half_grid


class Operator(Protocol):
    """Spatial operator of a bottleneck: mixes positions, strides and norms; `name` is the name of its weights."""

    name: ClassVar[str]

    def __call__(self, mid_dim: int, grid: Grid, stride: int, **options: Any) -> nn.Module: ...

    @staticmethod
    def cost(mid_dim: int, *, grid: Grid, stride: int, **options: Any) -> Cost: ...


class Bottleneck(nn.Module):
    """1 x 1 convolution, spatial operator, 1 x 1 convolution, each with batch norm, on a residual branch.

    The 1 x 1 convolutions have the same names whatever the operator is, so in a supernet all operators share them.
    Where the shape changes, the shortcut is a 1 x 1 convolution with batch norm.

    Args:
        mid_dim: Input channels of the operator. Its output has as many, or `value_dim`, if that is an option.
        grid: Rows and columns of the input map; only the cost depends on it.
        operator: Class of the spatial operator; `options` are its other arguments (kernel, window, num_heads ...).
        last_gamma: Initial scale of the last norm. With 0 a block starts as its shortcut.
    """

    def __init__(
        self,
        in_dim: int,
        mid_dim: int,
        out_dim: int,
        grid: Grid,
        operator: Operator,
        stride: int = 1,
        last_gamma: float = 0.0,
        stochastic_depth: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(in_dim, mid_dim, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(mid_dim)
        self.reduce_act = nn.ReLU()
        self.operator = operator.name
        self.add_module(self.operator, operator(mid_dim, grid=grid, stride=stride, **options))
        self.operator_act = nn.ReLU()
        self.expand = nn.Conv2d(options.get("value_dim", mid_dim), out_dim, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(out_dim)
        if changes_shape(in_dim, out_dim, stride):
            self.shortcut = nn.Conv2d(in_dim, out_dim, 1, stride, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(out_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        self.act = nn.ReLU()
        for name, conv in self.named_children():
            if name in ("reduce", "expand", "shortcut"):
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # type: ignore[arg-type]
        nn.init.constant_(self.expand_norm.weight, last_gamma)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.reduce_act(self.reduce_norm(self.reduce(x)))
        hidden = self.operator_act(getattr(self, self.operator)(hidden))
        branch = self.drop_path(self.expand_norm(self.expand(hidden)))
        shortcut = self.shortcut_norm(self.shortcut(x)) if hasattr(self, "shortcut") else x
        return self.act(shortcut + branch)

    @staticmethod
    def cost(
        in_dim: int, mid_dim: int, out_dim: int, grid: Grid, operator: Operator, stride: int = 1, **options: Any
    ) -> Cost:
        before = grid[0] * grid[1]
        rows, columns = half_grid(grid) if stride == 2 else grid
        after = rows * columns
        cost = linear_cost(before, in_dim, mid_dim, bias=False) + norm_cost(mid_dim)
        cost += operator.cost(mid_dim, grid=grid, stride=stride, **options)
        cost += linear_cost(after, options.get("value_dim", mid_dim), out_dim, bias=False) + norm_cost(out_dim)
        if changes_shape(in_dim, out_dim, stride):
            cost += linear_cost(after, in_dim, out_dim, bias=False) + norm_cost(out_dim)
        return cost


def changes_shape(in_dim: int, out_dim: int, stride: int) -> bool:
    """Whether the shortcut of a block needs a convolution."""
    return stride != 1 or in_dim != out_dim


class ConvOperator(nn.Module):
    """ResNet's operator: a convolution of any odd kernel that keeps the number of channels, and batch norm."""

    name: ClassVar[str] = "conv"

    def __init__(self, mid_dim: int, grid: Grid, stride: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(mid_dim, mid_dim, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(mid_dim)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, stride: int, kernel: int, **costless: Any) -> Cost:
        rows, columns = half_grid(grid) if stride == 2 else grid
        filters = kernel**2 * mid_dim**2
        return Cost(filters, rows * columns * filters) + norm_cost(mid_dim)


class MapAttention(nn.Module):
    """Base of attention on feature maps: queries, keys and values by 1 x 1 convolutions without biases.

    As in TrioNet's formula, products of queries and keys are not scaled. With Kaiming's weights their standard
    deviation would start at about the root of the head's width, 11 in the widest blocks, and softmax almost one-hot.
    So queries start smaller by that root, and products with a deviation of about 1.
    """

    def __init__(self, in_dim: int, query_dim: int, value_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query = nn.Conv2d(in_dim, query_dim, 1, bias=False)
        self.key = nn.Conv2d(in_dim, query_dim, 1, bias=False)
        self.value = nn.Conv2d(in_dim, value_dim, 1, bias=False)
        for conv in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        with torch.no_grad():
            self.query.weight.mul_((query_dim // num_heads) ** -0.5)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, heads, channels of a head, rows, columns]."""
        q, k, v = (conv(x).unflatten(1, (self.num_heads, -1)) for conv in (self.query, self.key, self.value))
        return q, k, v

    @property
    def dropout_rate(self) -> float:
        """Dropout rate of attention: 0 outside training."""
        return self.dropout if self.training else 0.0


def project_cost(positions: int, in_dim: int, query_dim: int, value_dim: int) -> Cost:
    """Cost of `MapAttention.project`."""
    return linear_cost(positions, in_dim, 2 * query_dim + value_dim, bias=False)


def pooling(stride: int) -> nn.Module:
    """The stride of attention: the mean of 2 x 2 positions, of fewer at an odd edge."""
    return nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()


class LocalOperator(MapAttention):
    """Stand-alone self-attention (Ramachandran et al., NeurIPS 2019): each position attends to the window around it.

    `positions` has a vector for each offset in the window and each head, in the channels of the queries.
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
        # Queries start with the inverse root of their width: with deviation 1, position weighs as much as content.
        self.positions = nn.Parameter(torch.randn(query_dim, window, window))
        self.pool = pooling(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.positions.unflatten(0, (self.num_heads, -1))
        attended = local_attention(*self.project(x), positions, self.window, self.dropout_rate)
        return self.norm(self.pool(attended.flatten(1, 2)))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, query_dim: int, value_dim: int, window: int, **costless: Any) -> Cost:
        """Positions count among the MACs: the published numbers of local attention fit with them and not without."""
        positions = grid[0] * grid[1]
        table = Cost(query_dim * window**2, positions * window**2 * (2 * query_dim + value_dim))
        return project_cost(positions, mid_dim, query_dim, value_dim) + table + norm_cost(value_dim)


ORDERS = {"height": (0, 4, 1, 3, 2), "width": (0, 3, 1, 4, 2)}
"""Permutation of [batch, heads, channels, rows, columns] to [batch, other axis, heads, axis, channels]."""


class AxisAttention(MapAttention):
    """Attention of each position to all positions of its column (axis "height") or row (axis "width")."""

    def __init__(
        self, in_dim: int, query_dim: int, value_dim: int, num_heads: int, axis: str, dropout: float = 0.0
    ) -> None:
        super().__init__(in_dim, query_dim, value_dim, num_heads, dropout)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        order = ORDERS[self.axis]
        q, k, v = (part.permute(order).flatten(0, 1) for part in self.project(x))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_rate, scale=1.0)
        back = [order.index(dim) for dim in range(5)]
        return attended.unflatten(0, (x.shape[0], -1)).permute(back).flatten(1, 2)


class AxialOperator(nn.Module):
    """Axial attention (Wang et al., ECCV 2020): along columns, then along rows, then batch norm.

    As in TrioNet, there are no positions and no norms inside. Each position sees the whole map.
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
        self.pool = pooling(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(self.width(self.height(x))))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, query_dim: int, value_dim: int, **costless: Any) -> Cost:
        positions = grid[0] * grid[1]
        first = project_cost(positions, mid_dim, query_dim, value_dim)
        second = project_cost(positions, value_dim, query_dim, value_dim)
        products = Cost(macs=positions * sum(grid) * (query_dim + value_dim))
        return first + second + products + norm_cost(value_dim)
