"""From an image to the first map: patches that do not overlap."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid
from nasformer.layers.map_norm import MapNorm
from nasformer.layers.patch_embed import check_size


class MapStem(nn.Module):
    """A convolution whose stride is its size, and a norm.

    Args:
        grid: Rows and columns of the map that it makes.
    """

    def __init__(self, grid: Grid, patch_size: int, in_chans: int, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.norm = MapNorm(embed_dim, norm_eps)
        nn.init.trunc_normal_(self.conv.weight, std=0.02)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        check_size(x, *(side * self.conv.stride[0] for side in self.grid))
        return self.norm(self.conv(x))

    @staticmethod
    def cost(grid: Grid, patch_size: int, in_chans: int, embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        inputs = in_chans * patch_size**2
        return norm_cost(embed_dim) + Cost((inputs + 1) * embed_dim, grid[0] * grid[1] * inputs * embed_dim)
