"""Blocks of transformers and convolutional nets: attention or convolution, and an MLP, around residuals."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.attention import RelativeAttention, SelfAttention
from nasformer.layers.basic import Cost, DropPath, init_weights, linear_cost, norm_cost
from nasformer.layers.stem import Grid


class QuickGELU(nn.Module):
    """The approximation of GELU by a sigmoid that OpenAI's CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Mlp(nn.Module):
    """Two linear layers with GELU, or an approximation of it, between them."""

    def __init__(self, embed_dim: int, hidden_dim: int, activation: str = "gelu") -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        tanh = "tanh" if activation == "gelu_tanh" else "none"
        self.act: nn.Module = QuickGELU() if activation == "quick_gelu" else nn.GELU(approximate=tanh)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        missing = -self.fc1.out_features % 8
        if missing and x.is_cuda and torch.is_autocast_enabled("cuda"):
            return self.forward_padded(x, missing)
        return self.fc2(self.act(self.fc1(x)))

    def forward_padded(self, x: Tensor, extra: int) -> Tensor:
        """The same output with idle hidden units, for widths such as 756 (216 * 3.5) that GPUs are slow on.

        Padding the small weights is far cheaper than padding every activation.
        """
        hidden = F.linear(x, F.pad(self.fc1.weight, (0, 0, 0, extra)), F.pad(self.fc1.bias, (0, extra)))
        return F.linear(self.act(hidden), F.pad(self.fc2.weight, (0, extra)), self.fc2.bias)

    @staticmethod
    def cost(tokens: int, embed_dim: int, hidden_dim: int) -> Cost:
        return linear_cost(tokens, embed_dim, hidden_dim) + linear_cost(tokens, hidden_dim, embed_dim)


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: `x + attn(norm1(x))`, then `x + mlp(norm2(x))`.

    Args:
        init_std: Standard deviation of the initial weights; None leaves torch's default, which depends on the width.
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
            init_weights(self, init_std)

    def set_grid(self, grid: Grid) -> None:
        self.attn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    @staticmethod
    def cost(embed_dim: int, num_heads: int, head_dim: int, hidden_dim: int, grid: Grid, **options: Any) -> Cost:
        for costless in ("stochastic_depth", "norm_eps", "init_std"):
            options.pop(costless, None)
        attention = RelativeAttention.cost(embed_dim, num_heads, head_dim, grid, **options)
        return attention + Mlp.cost(grid[0] * grid[1] + 1, embed_dim, hidden_dim) + norm_cost(embed_dim) * 2


class ConvNeXtBlock(nn.Module):
    """ConvNeXt's block (Liu et al., CVPR 2022): depthwise convolution, norm, MLP and layer scale, on a residual branch.

    Args:
        grid: Rows and columns of the map; only the cost depends on it.
        layer_scale: Initial scale of each channel.
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
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv_dw(x).flatten(2).transpose(1, 2)
        tokens = self.mlp(self.norm(tokens)) * self.gamma
        return x + self.drop_path(tokens.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def cost(embed_dim: int, hidden_dim: int, kernel: int, grid: Grid, **costless: Any) -> Cost:
        positions, filters = grid[0] * grid[1], kernel**2 * embed_dim
        # besides its filters, a channel has the convolution's bias and the layer scale
        depthwise = Cost(filters + 2 * embed_dim, positions * filters)
        return depthwise + norm_cost(embed_dim) + Mlp.cost(positions, embed_dim, hidden_dim)


class InvertedBottleneck(nn.Module):
    """MobileNetV2's block (Sandler et al., CVPR 2018): expand, depthwise convolution, project, each with batch norm.

    The activation is GELU and not ReLU6: MobileNetV2 clips for low-precision arithmetic, and the blocks it competes
    with here have GELU, so that proxies which score activations compare blocks and not activations.

    Args:
        grid: Rows and columns of the map; only the cost depends on it.
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
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.expand_act(self.expand_norm(self.expand(x)))
        hidden = self.depthwise_act(self.depthwise_norm(self.depthwise(hidden)))
        return x + self.drop_path(self.project_norm(self.project(hidden)))

    @staticmethod
    def cost(embed_dim: int, hidden_dim: int, kernel: int, grid: Grid, **costless: Any) -> Cost:
        positions, filters = grid[0] * grid[1], kernel**2 * hidden_dim
        expand = linear_cost(positions, embed_dim, hidden_dim, bias=False)
        project = linear_cost(positions, hidden_dim, embed_dim, bias=False)
        return expand + project + Cost(filters, positions * filters) + norm_cost(hidden_dim) * 2 + norm_cost(embed_dim)


class MapEncoder(nn.Module):
    """Transformer encoder on a feature map: `x + attn(norm1(x))` over all positions, then a convolutional block.

    Args:
        ffn: Class of the convolutional block; `options` are its other arguments (hidden_dim, kernel ...).
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
        **options: Any,
    ) -> Cost:
        attention = SelfAttention.cost(grid[0] * grid[1], embed_dim, qkv_dim)
        return norm_cost(embed_dim) + attention + ffn.cost(embed_dim, grid=grid, **options)
