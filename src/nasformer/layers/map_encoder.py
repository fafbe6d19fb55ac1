"""A transformer encoder on maps, whose feed-forward half is a convolutional block."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nasformer.layers.convnext_block import ConvNeXtBlock
from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.grid import Grid
from nasformer.layers.inverted_bottleneck import InvertedBottleneck
from nasformer.layers.self_attention import SelfAttention


class MapEncoder(nn.Module):
    """``x + attn(norm1(x))`` over all positions of the map, then a block that has its own residual.

    Args:
        ffn: The class of that block; `options` are its other arguments (hidden_dim, kernel ...).
    """

    def __init__(
        self,
        embed_dim: int,
        qkv_dim: int,
        head_dim: int,
        grid: Grid,
        ffn: type[ConvNeXtBlock | InvertedBottleneck],
        stochastic_depth: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, 1e-6)
        self.attn = SelfAttention(embed_dim, qkv_dim, head_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        self.ffn = ffn(embed_dim, grid=grid, stochastic_depth=stochastic_depth, **options)

    def set_grid(self, grid: Grid) -> None:
        self.ffn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.attn(self.norm1(x.flatten(2).transpose(1, 2)))
        return self.ffn(x + self.drop_path(tokens.transpose(1, 2).reshape(x.shape)))

    @staticmethod
    def cost(
        embed_dim: int,
        qkv_dim: int,
        head_dim: int,
        grid: Grid,
        ffn: type[ConvNeXtBlock | InvertedBottleneck],
        stochastic_depth: bool = True,
        **options: Any,
    ) -> Cost:
        attention = SelfAttention.cost(grid[0] * grid[1], embed_dim, qkv_dim)
        return norm_cost(embed_dim) + attention + ffn.cost(embed_dim, grid=grid, **options)
