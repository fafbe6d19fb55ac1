"""From one stage of a shifted-window transformer to the next: 2 x 2 positions become one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost, norm_cost
from nasformer.layers.grid import Grid, halved


class PatchMerging(nn.Module):
    """The channels of 2 x 2 positions side by side, a norm, a linear layer without bias; of maps, channels first.

    An odd row or column has zeros beside it. The four come column by column, as Swin has them.

    Args:
        grid: Rows and columns of the map that comes in.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.merge_norm = nn.LayerNorm(4 * in_dim)
        self.reduction = nn.Linear(4 * in_dim, out_dim, bias=False)
        nn.init.trunc_normal_(self.reduction.weight, std=0.02)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.grid
        x = x.permute(0, 2, 3, 1)
        if rows % 2 or columns % 2:
            x = F.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.reduction(self.merge_norm(x)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        rows, columns = halved(grid)
        return norm_cost(4 * in_dim) + linear_cost(rows * columns, 4 * in_dim, out_dim, bias=False)
