"""The shifted-window transformer's block, on maps."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid
from nasformer.layers.mlp import Mlp
from nasformer.layers.window_attention import WindowAttention


class WindowBlock(nn.Module):
    """``x + attn(norm1(x))`` in windows, then ``x + mlp(norm2(x))``, of [batch, channels, rows, columns].

    Inside, channels come last; in memory they do so between blocks as well, so that turning the axes copies nothing.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        window: int,
        shifted: bool,
        stochastic_depth: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = WindowAttention(embed_dim, num_heads, head_dim, grid, window, shifted)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        for linear in (self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def set_grid(self, grid: Grid) -> None:
        self.attn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x.permute(0, 3, 1, 2)

    @staticmethod
    def cost(
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        window: int,
        shifted: bool,
        stochastic_depth: bool = True,
    ) -> Cost:
        attention = WindowAttention.cost(embed_dim, num_heads, head_dim, grid, window, shifted)
        return attention + Mlp.cost(grid[0] * grid[1], embed_dim, hidden_dim) + norm_cost(embed_dim) * 2
