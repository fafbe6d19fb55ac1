"""The feed-forward half of a transformer block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost


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
