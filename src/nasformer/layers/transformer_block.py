"""The pre-norm transformer block: attention and feed-forward, each on a residual branch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid
from nasformer.layers.mlp import Mlp
from nasformer.layers.relative_attention import RelativeAttention


class TransformerBlock(nn.Module):
    """``x + attn(norm1(x))``, then ``x + mlp(norm2(x))``.

    Args:
        init_std: Spread of the initial weights, whatever the width; None leaves torch's default, which depends on it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        max_distance: int | None = 14,
        qkv_bias: bool = True,
        stochastic_depth: bool = True,
        norm_eps: float = 1e-5,
        init_std: float | None = 0.02,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, norm_eps)
        self.attn = RelativeAttention(embed_dim, num_heads, head_dim, grid, max_distance, qkv_bias)
        self.norm2 = nn.LayerNorm(embed_dim, norm_eps)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        if init_std is not None:
            self.initialise(init_std)

    def initialise(self, std: float) -> None:
        for linear in (m for m in self.modules() if isinstance(m, nn.Linear)):
            nn.init.trunc_normal_(linear.weight, std=std)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def set_grid(self, grid: Grid) -> None:
        self.attn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    @staticmethod
    def cost(embed_dim: int, num_heads: int, head_dim: int, hidden_dim: int, grid: Grid, **options: Any) -> Cost:
        for free in ("stochastic_depth", "norm_eps", "init_std"):
            options.pop(free, None)
        attention = RelativeAttention.cost(embed_dim, num_heads, head_dim, grid, **options)
        return attention + Mlp.cost(grid[0] * grid[1] + 1, embed_dim, hidden_dim) + norm_cost(embed_dim) * 2
