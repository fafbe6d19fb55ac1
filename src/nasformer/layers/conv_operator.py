"""The spatial operator of ResNet: a convolution, here with a kernel of any odd side."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid, halved


class ConvOperator(nn.Module):
    """A convolution that keeps the number of channels, and batch norm."""

    name: ClassVar[str] = "conv"

    def __init__(self, mid_dim: int, grid: Grid, stride: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(mid_dim, mid_dim, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(mid_dim)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, stride: int, kernel: int) -> Cost:
        rows, columns = halved(grid) if stride == 2 else grid
        filters = kernel**2 * mid_dim**2
        return Cost(filters, rows * columns * filters) + norm_cost(mid_dim)
