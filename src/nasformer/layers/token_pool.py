"""From one stage of a transformer to the next: fewer tokens, more channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost
from nasformer.layers.grid import Grid, halved


class TokenPool(nn.Module):
    """PiT's pooling: a depthwise 3 x 3 convolution with stride 2 for the patches, a linear layer for the class token.

    Output channel c is made from input channel c // (out_dim // in_dim), so out_dim is a multiple of in_dim.

    Args:
        grid: Rows and columns of patches before pooling.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, out_dim, kernel_size=3, stride=2, padding=1, groups=in_dim)
        self.fc = nn.Linear(in_dim, out_dim)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, 1:].transpose(1, 2).unflatten(2, self.grid)
        pooled = self.conv(patches).flatten(2).transpose(1, 2)
        return torch.cat([self.fc(x[:, :1]), pooled], dim=1)

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        rows, columns = halved(grid)
        return linear_cost(1, in_dim, out_dim) + Cost((9 + 1) * out_dim, rows * columns * 9 * out_dim)
