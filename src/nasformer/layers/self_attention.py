"""Multi-head self-attention without positions: for tokens that convolutions have told where they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost


class SelfAttention(nn.Module):
    """Attention of [batch, tokens, embed_dim]; its own width, qkv_dim, may be less or more than embed_dim."""

    def __init__(self, embed_dim: int, qkv_dim: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv = nn.Linear(embed_dim, 3 * qkv_dim)
        self.proj = nn.Linear(qkv_dim, embed_dim)
        for linear in (self.qkv, self.proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(2, (3, -1, self.head_dim))  # batch, tokens, q k v, heads, head_dim
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    @staticmethod
    def cost(tokens: int, embed_dim: int, qkv_dim: int) -> Cost:
        linears = linear_cost(tokens, embed_dim, 3 * qkv_dim) + linear_cost(tokens, qkv_dim, embed_dim)
        return linears + Cost(macs=2 * tokens**2 * qkv_dim)
