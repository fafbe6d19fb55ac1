"""From one stage of maps to the next: half the rows and columns, other channels."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid
from nasformer.layers.map_norm import MapNorm


class Downsample(nn.Module):
    """A norm, and a 2 x 2 convolution with stride 2.

    Args:
        grid: Rows and columns of the map that it makes.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.norm = MapNorm(in_dim)
        self.conv = nn.Conv2d(in_dim, out_dim, kernel_size=2, stride=2)
        nn.init.trunc_normal_(self.conv.weight, std=0.02)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x))

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        inputs = 4 * in_dim
        return norm_cost(in_dim) + Cost((inputs + 1) * out_dim, grid[0] * grid[1] * inputs * out_dim)
