"""ResNet's bottleneck (He et al., CVPR 2016) around any spatial operator."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid, halved


class Operator(Protocol):
    """What may stand in the middle: it mixes positions, strides and norms; its `name` is that of its weights."""

    name: ClassVar[str]

    def __call__(self, mid_dim: int, grid: Grid, stride: int, **options: Any) -> nn.Module: ...

    @staticmethod
    def cost(mid_dim: int, grid: Grid, stride: int, **options: Any) -> Cost: ...


class Bottleneck(nn.Module):
    """1 x 1 convolution, the operator, 1 x 1 convolution, each with batch norm; all of it beside a shortcut.

    The 1 x 1 convolutions have the same names whatever the operator is, so in a supernet all operators share them.
    The shortcut is a 1 x 1 convolution with batch norm where the shape changes.

    Args:
        mid_dim: Channels that the operator reads. It gives as many, or `value_dim`, if that is among the options.
        grid: Rows and columns of the map that comes in, which only the cost depends on.
        operator: Class of the spatial operator; `options` are its other arguments (kernel, window, num_heads ...).
        last_gamma: What the last norm scales by at the start. With 0 a block starts as its shortcut.
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
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.reduce_act(self.reduce_norm(self.reduce(x)))
        hidden = self.operator_act(getattr(self, self.operator)(hidden))
        branch = self.drop_path(self.expand_norm(self.expand(hidden)))
        shortcut = self.shortcut_norm(self.shortcut(x)) if hasattr(self, "shortcut") else x
        return self.act(shortcut + branch)

    @staticmethod
    def cost(
        in_dim: int,
        mid_dim: int,
        out_dim: int,
        grid: Grid,
        operator: Operator,
        stride: int = 1,
        last_gamma: float = 0.0,
        stochastic_depth: bool = True,
        **options: Any,
    ) -> Cost:
        before = grid[0] * grid[1]
        rows, columns = halved(grid) if stride == 2 else grid
        after = rows * columns
        cost = linear_cost(before, in_dim, mid_dim, bias=False) + norm_cost(mid_dim)
        cost += operator.cost(mid_dim, grid=grid, stride=stride, **options)
        cost += linear_cost(after, options.get("value_dim", mid_dim), out_dim, bias=False) + norm_cost(out_dim)
        if changes_shape(in_dim, out_dim, stride):
            cost += linear_cost(after, in_dim, out_dim, bias=False) + norm_cost(out_dim)
        return cost


def changes_shape(in_dim: int, out_dim: int, stride: int) -> bool:
    return stride != 1 or in_dim != out_dim


def shrink(stride: int) -> nn.Module:
    """How attention strides: by the mean of 2 x 2 positions, fewer at an odd edge."""
    return nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
