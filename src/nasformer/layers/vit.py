"""Layers of the plain vision transformers that timm has: ViT, DeiT, DINOv2, and the image towers of CLIP and SigLIP.

They compute what timm's layers compute (the tests compare them), and can lack a branch: a block without heads has no
attention, one without neurons no MLP, so that a net can be cut anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.attention import SelfAttention
from nasformer.layers.basic import Cost, DropPath, TokenHead, init_weights, linear_cost, norm_cost
from nasformer.layers.blocks import Mlp
from nasformer.layers.stem import Grid


class LayerScale(nn.Module):
    """A learned scale of each channel."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((embed_dim,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class GatedMlp(nn.Module):
    """SwiGLU (Shazeer 2020): one half of the hidden layer, through SiLU, scales the other."""

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, 2 * hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, values = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * values)

    @staticmethod
    def cost(tokens: int, embed_dim: int, hidden_dim: int) -> Cost:
        return linear_cost(tokens, embed_dim, 2 * hidden_dim) + linear_cost(tokens, hidden_dim, embed_dim)


ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "swiglu")


def make_mlp(embed_dim: int, hidden_dim: int, activation: str) -> nn.Module:
    """The MLP with one of the activations; `swiglu` makes it a gated one."""
    return GatedMlp(embed_dim, hidden_dim) if activation == "swiglu" else Mlp(embed_dim, hidden_dim, activation)


class ViTBlock(nn.Module):
    """Pre-norm block of a ViT, without attention where it has no heads, without MLP where it has no neurons.

    Args:
        grid: Rows and columns of patches; only the cost depends on it and on `prefix_tokens`, those before them.
        qk_norm: Whether queries and keys of each head are normalised.
        layer_scale: Whether each branch ends in a learned scale of its channels.
        activation: One of `ACTIVATIONS`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        prefix_tokens: int = 1,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        layer_scale: bool = False,
        activation: str = "gelu",
        norm_eps: float = 1e-6,
        stochastic_depth: bool = False,
    ) -> None:
        super().__init__()
        if num_heads:
            self.norm1 = nn.LayerNorm(embed_dim, norm_eps)
            self.attn = SelfAttention(embed_dim, num_heads * head_dim, head_dim, qkv_bias, qk_norm, norm_eps)
            self.ls1 = LayerScale(embed_dim) if layer_scale else nn.Identity()
        if hidden_dim:
            self.norm2 = nn.LayerNorm(embed_dim, norm_eps)
            self.mlp = make_mlp(embed_dim, hidden_dim, activation)
            self.ls2 = LayerScale(embed_dim) if layer_scale else nn.Identity()
            init_weights(self.mlp)
        self.num_heads, self.hidden_dim = num_heads, hidden_dim
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.num_heads:
            x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        if self.hidden_dim:
            x = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return x

    @staticmethod
    def cost(
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        prefix_tokens: int = 1,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        layer_scale: bool = False,
        activation: str = "gelu",
        **costless: Any,
    ) -> Cost:
        tokens = grid[0] * grid[1] + prefix_tokens
        cost, branch = Cost(), norm_cost(embed_dim) + Cost(params=embed_dim * layer_scale)
        if num_heads:
            width = num_heads * head_dim
            cost += branch + SelfAttention.cost(tokens, embed_dim, width)
            cost += Cost(params=4 * head_dim * qk_norm - (0 if qkv_bias else 3 * width))
        if hidden_dim:
            mlp = GatedMlp if activation == "swiglu" else Mlp
            cost += branch + mlp.cost(tokens, embed_dim, hidden_dim)
        return cost


class AttentionPool(nn.Module):
    """A learned query that attends to all tokens, then an MLP: the pooling of SigLIP.

    Args:
        width: Of the attention, which stays as it is where the embedding is narrower.
    """

    def __init__(
        self, embed_dim: int, width: int, num_heads: int, hidden_dim: int, activation: str, norm_eps: float
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.q = nn.Linear(embed_dim, width)
        self.kv = nn.Linear(embed_dim, 2 * width)
        self.proj = nn.Linear(width, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, norm_eps)
        self.mlp = make_mlp(embed_dim, hidden_dim, activation)
        nn.init.trunc_normal_(self.latent, std=embed_dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.latent.expand(x.shape[0], -1, -1).to(x.dtype)).unflatten(2, (self.num_heads, -1))
        k, v = self.kv(x).unflatten(2, (2, self.num_heads, -1)).unbind(2)
        pooled = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        x = self.proj(pooled.transpose(1, 2).flatten(2))
        return (x + self.mlp(self.norm(x)))[:, 0]

    @staticmethod
    def cost(embed_dim: int, width: int, hidden_dim: int, tokens: int, activation: str) -> Cost:
        mlp = GatedMlp if activation == "swiglu" else Mlp
        linears = linear_cost(1, embed_dim, width) + linear_cost(tokens, embed_dim, 2 * width)
        rest = linear_cost(1, width, embed_dim) + mlp.cost(1, embed_dim, hidden_dim) + norm_cost(embed_dim)
        return linears + rest + Cost(params=embed_dim, macs=2 * tokens * width)


class ViTHead(TokenHead):
    """Classifier on the class token, on the mean of the patches, or on an attention pool (`map`), perhaps normalised.

    Args:
        prefix_tokens: How many tokens precede the patches; the mean and the attention pool leave them out.
        fc_norm: Whether the pooled vector is normalised.
        pool_width, pool_heads, pool_hidden: Sizes of the attention pool.
    """

    def __init__(
        self,
        embed_dim: int,
        num_classes: int,
        tokens: int,
        global_pool: str = "token",
        prefix_tokens: int = 1,
        fc_norm: bool = False,
        norm_eps: float = 1e-6,
        activation: str = "gelu",
        pool_width: int = 0,
        pool_heads: int = 0,
        pool_hidden: int = 0,
    ) -> None:
        super().__init__(embed_dim, num_classes, global_pool)
        self.prefix_tokens = prefix_tokens
        self.fc_norm = nn.LayerNorm(embed_dim, norm_eps) if fc_norm else nn.Identity()
        if global_pool == "map":
            self.attn_pool = AttentionPool(embed_dim, pool_width, pool_heads, pool_hidden, activation, norm_eps)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.fc_norm(self.pool(x))
        return x if pre_logits else self.fc(x)

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        patches = x[:, self.prefix_tokens :]
        return self.attn_pool(patches) if self.global_pool == "map" else patches.mean(dim=1)

    @staticmethod
    def cost(  # type: ignore[override]
        embed_dim: int,
        num_classes: int,
        tokens: int,
        global_pool: str = "token",
        prefix_tokens: int = 1,
        fc_norm: bool = False,
        activation: str = "gelu",
        pool_width: int = 0,
        pool_hidden: int = 0,
        **costless: Any,
    ) -> Cost:
        cost = TokenHead.cost(embed_dim, num_classes) + (norm_cost(embed_dim) if fc_norm else Cost())
        if global_pool == "map":
            cost += AttentionPool.cost(embed_dim, pool_width, pool_hidden, tokens - prefix_tokens, activation)
        return cost
