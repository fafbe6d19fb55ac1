"""ConvNeXt's block (Liu et al., CVPR 2022): a depthwise convolution, then an MLP at every position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid
from nasformer.layers.mlp import Mlp


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm, MLP and a scale for each channel; all of it beside a residual.

    Args:
        grid: Rows and columns of the map, which only the cost depends on.
        layer_scale: The scale at the start.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        kernel: int,
        grid: Grid,
        layer_scale: float = 1e-6,
        stochastic_depth: bool = True,
    ) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(embed_dim, embed_dim, kernel, padding=kernel // 2, groups=embed_dim)
        self.norm = nn.LayerNorm(embed_dim, 1e-6)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.gamma = nn.Parameter(torch.full((embed_dim,), layer_scale))
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        for layer in (self.conv_dw, self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv_dw(x).flatten(2).transpose(1, 2)
        tokens = self.mlp(self.norm(tokens)) * self.gamma
        return x + self.drop_path(tokens.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def cost(
        embed_dim: int,
        hidden_dim: int,
        kernel: int,
        grid: Grid,
        layer_scale: float = 1e-6,
        stochastic_depth: bool = True,
    ) -> Cost:
        positions, filters = grid[0] * grid[1], kernel**2 * embed_dim
        # beside its filters a channel has the convolution's bias and the scale
        depthwise = Cost(filters + 2 * embed_dim, positions * filters)
        return depthwise + norm_cost(embed_dim) + Mlp.cost(positions, embed_dim, hidden_dim)
