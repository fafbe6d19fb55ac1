"""The feed-forward half of a transformer block."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.attention import RelativeAttention, SelfAttention
from nasformer.layers.cost import Cost, linear_cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.stem import Grid


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        odd = -self.fc1.out_features % 8
        if odd and x.is_cuda and torch.is_autocast_enabled("cuda"):
            return self.forward_padded(x, odd)
        return self.fc2(self.act(self.fc1(x)))

    def forward_padded(self, x: Tensor, extra: int) -> Tensor:
        """The same with some idle hidden units: a width such as 216 * 3.5 = 756 is no multiple of what the GPU's
        matrix units want, and padding the small weights is far cheaper than padding every activation."""
        hidden = F.linear(x, F.pad(self.fc1.weight, (0, 0, 0, extra)), F.pad(self.fc1.bias, (0, extra)))
        return F.linear(self.act(hidden), F.pad(self.fc2.weight, (0, extra)), self.fc2.bias)

    @staticmethod
    def cost(tokens: int, embed_dim: int, hidden_dim: int) -> Cost:
        return linear_cost(tokens, embed_dim, hidden_dim) + linear_cost(tokens, hidden_dim, embed_dim)


# ----------------------------------------------------------------------------------------------------------------------
# The pre-norm transformer block: attention and feed-forward, each on a residual branch.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# ConvNeXt's block (Liu et al., CVPR 2022): a depthwise convolution, then an MLP at every position.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# MobileNetV2's block (Sandler et al., CVPR 2018): widen, convolve every channel alone, narrow.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# A transformer encoder on maps, whose feed-forward half is a convolutional block.
# ----------------------------------------------------------------------------------------------------------------------


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
