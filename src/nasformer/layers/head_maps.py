"""Queries, keys and values of every position of a map, cut into heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost


class HeadMaps(nn.Module):
    """Three 1 x 1 convolutions without biases. A base class: what is attended to is up to who inherits.

    Products of queries and keys are not scaled, as in TrioNet's formula. With Kaiming's weights they would start with a
    deviation of about the root of the head's width, 11 in the widest blocks, and softmax would begin as good as
    one-hot. So the root is in the weights: queries start that much smaller, and products with a deviation of about 1.
    """

    def __init__(self, in_dim: int, query_dim: int, value_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query = nn.Conv2d(in_dim, query_dim, 1, bias=False)
        self.key = nn.Conv2d(in_dim, query_dim, 1, bias=False)
        self.value = nn.Conv2d(in_dim, value_dim, 1, bias=False)
        for conv in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        with torch.no_grad():
            self.query.weight.mul_((query_dim // num_heads) ** -0.5)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, heads, channels of a head, rows, columns]."""
        q, k, v = (conv(x).unflatten(1, (self.num_heads, -1)) for conv in (self.query, self.key, self.value))
        return q, k, v

    @property
    def rate(self) -> float:
        """Of the dropout of attention, which training alone has."""
        return self.dropout if self.training else 0.0


def project_cost(positions: int, in_dim: int, query_dim: int, value_dim: int) -> Cost:
    return linear_cost(positions, in_dim, 2 * query_dim + value_dim, bias=False)
