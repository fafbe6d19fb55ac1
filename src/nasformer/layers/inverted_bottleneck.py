"""MobileNetV2's block (Sandler et al., CVPR 2018): widen, convolve every channel alone, narrow."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid


class InvertedBottleneck(nn.Module):
    """1 x 1 convolution, depthwise convolution, 1 x 1 convolution, each with batch norm; all of it beside a residual.

    Nothing is activated after the last. The activation is GELU and not ReLU6: MobileNetV2 clips for the sake of few
    bits, and here the blocks that it competes with have GELU, so that scores which look at activations compare blocks
    and not activations.

    Args:
        grid: Rows and columns of the map, which only the cost depends on.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, kernel: int, grid: Grid, stochastic_depth: bool = True) -> None:
        super().__init__()
        self.expand = nn.Conv2d(embed_dim, hidden_dim, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(hidden_dim)
        self.expand_act = nn.GELU()
        self.depthwise = nn.Conv2d(hidden_dim, hidden_dim, kernel, padding=kernel // 2, groups=hidden_dim, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(hidden_dim)
        self.depthwise_act = nn.GELU()
        self.project = nn.Conv2d(hidden_dim, embed_dim, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(embed_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        for conv in (self.expand, self.depthwise, self.project):
            nn.init.trunc_normal_(conv.weight, std=0.02)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.expand_act(self.expand_norm(self.expand(x)))
        hidden = self.depthwise_act(self.depthwise_norm(self.depthwise(hidden)))
        return x + self.drop_path(self.project_norm(self.project(hidden)))

    @staticmethod
    def cost(embed_dim: int, hidden_dim: int, kernel: int, grid: Grid, stochastic_depth: bool = True) -> Cost:
        positions, filters = grid[0] * grid[1], kernel**2 * hidden_dim
        widen = linear_cost(positions, embed_dim, hidden_dim, bias=False)
        narrow = linear_cost(positions, hidden_dim, embed_dim, bias=False)
        return widen + narrow + Cost(filters, positions * filters) + norm_cost(hidden_dim) * 2 + norm_cost(embed_dim)
