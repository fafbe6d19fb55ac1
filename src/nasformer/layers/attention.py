"""Multi-head self-attention without positions: for tokens that convolutions have told where they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost
from nasformer.layers.stem import Grid


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


# ----------------------------------------------------------------------------------------------------------------------
# Multi-head attention with 2-D relative positions on keys and values, through fused attention.
#
# The published form adds to every pair of tokens (i, j) a learned vector r(i, j) = vertical[row_j - row_i] +
# horizontal[column_j - column_i], for keys and for values, and builds N x N x head_dim tensors to do so. The vector,
# however, depends on key j only through its *places*: its row, its column, or being the class token. So
#
#     q_i . r_k(i, j)          = sum over the places p of j of   q_i . r_k(i, p)
#     sum_j a_ij r_v(i, j)     = sum over all places p of        (attention mass of i on p) r_v(i, p)
#
# and both follow from one ordinary attention whose queries carry q_i . r_k(i, p) as extra columns, and whose keys and
# values carry the places of token j as zeros and ones. Exact, for any grid, with any fused attention kernel.
# ----------------------------------------------------------------------------------------------------------------------


def place_count(grid: Grid) -> int:
    """Rows + columns + class token, rounded up to a multiple of 8 as fused kernels want their head dimension."""
    return -(-(grid[0] + grid[1] + 1) // 8) * 8


def token_places(grid: Grid) -> Tensor:
    """Which places each token has: [tokens, places] of zeros and ones, the class token first.

    >>> token_places((1, 2))[:, :4].tolist()  # columns: row 0, column 0, column 1, class token
    [[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]
    """
    height, width = grid
    places = torch.zeros(height * width + 1, place_count(grid))
    row = torch.arange(height).repeat_interleave(width)
    column = torch.arange(width).repeat(height)
    tokens = torch.arange(1, height * width + 1)
    places[tokens, row] = 1
    places[tokens, height + column] = 1
    places[0, height + width] = 1
    return places


def place_index(grid: Grid, max_distance: int) -> Tensor:
    """For each query token and place, the row of `RelativePositions.vectors` that lies between them."""
    height, width = grid
    entries = 2 * max_distance + 2
    row = torch.arange(height).repeat_interleave(width)
    column = torch.arange(width).repeat(height)

    def entry(query: Tensor, size: int) -> Tensor:
        distance = torch.arange(size) - query[:, None]
        return distance.clamp(-max_distance, max_distance) + max_distance + 1

    # Pairs with the class token use entry 0 of both tables; their sum is the last row of `vectors`. Places that only
    # pad have no token, so what they point at never counts.
    index = torch.full((height * width + 1, place_count(grid)), 2 * entries)
    index[1:, :height] = entry(row, height)
    index[1:, height : height + width] = entry(column, width) + entries
    index[0, :height] = 0
    index[0, height : height + width] = entries
    return index


class RelativePositions(nn.Module):
    """A vertical and a horizontal table of vectors by distance; entry 0 is for pairs with the class token."""

    def __init__(self, max_distance: int, head_dim: int) -> None:
        super().__init__()
        self.vertical = nn.Parameter(torch.empty(2 * max_distance + 2, head_dim))
        self.horizontal = nn.Parameter(torch.empty(2 * max_distance + 2, head_dim))
        nn.init.trunc_normal_(self.vertical, std=0.02)
        nn.init.trunc_normal_(self.horizontal, std=0.02)

    def forward(self, index: Tensor) -> Tensor:
        """The vector between each query token and each place: [tokens, places, head_dim]."""
        vectors = torch.cat([self.vertical, self.horizontal, self.vertical[:1] + self.horizontal[:1]])
        return F.embedding(index, vectors)


def relative_attention(
    q: Tensor, k: Tensor, v: Tensor, key_vectors: Tensor, value_vectors: Tensor, places: Tensor
) -> Tensor:
    """Attention of [batch, heads, tokens, head_dim] tensors with relative vectors on keys and values."""
    head_dim, number = q.shape[-1], places.shape[-1]
    terms = torch.einsum("bhnd,npd->bhnp", q, key_vectors.to(q.dtype))
    places = places.to(q.dtype).expand(*k.shape[:2], -1, -1)
    output = F.scaled_dot_product_attention(
        torch.cat([q, terms], -1),
        torch.cat([k, places], -1),
        torch.cat([v, places], -1),
        scale=head_dim**-0.5,
    )
    values, mass = output.split([head_dim, number], -1)
    return values + torch.einsum("bhnp,npd->bhnd", mass, value_vectors.to(q.dtype))


class RelativeAttention(nn.Module):
    """Self-attention of a vision transformer; the width num_heads * head_dim need not be embed_dim.

    Args:
        grid: Rows and columns of patches; one class token precedes them.
        max_distance: Distances beyond it share a vector; None leaves relative positions out (a plain ViT).
    """

    index: Tensor
    places: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        grid: Grid,
        max_distance: int | None = 14,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.num_heads, self.head_dim, self.max_distance = num_heads, head_dim, max_distance
        self.qkv = nn.Linear(embed_dim, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, embed_dim)
        if max_distance is not None:
            self.rel_pos_k = RelativePositions(max_distance, head_dim)
            self.rel_pos_v = RelativePositions(max_distance, head_dim)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        """Another image size needs no other weights: the tables go by distance."""
        self.grid = grid
        if self.max_distance is not None:
            device = self.proj.weight.device
            self.register_buffer("index", place_index(grid, self.max_distance).to(device), persistent=False)
            self.register_buffer("places", token_places(grid).to(device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.max_distance is None:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = relative_attention(q, k, v, self.rel_pos_k(self.index), self.rel_pos_v(self.index), self.places)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, -1))

    @staticmethod
    def cost(
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        grid: Grid,
        max_distance: int | None = 14,
        qkv_bias: bool = True,
    ) -> Cost:
        tokens, width = grid[0] * grid[1] + 1, num_heads * head_dim
        cost = linear_cost(tokens, embed_dim, 3 * width, qkv_bias) + linear_cost(tokens, width, embed_dim)
        cost += Cost(macs=2 * tokens**2 * width)
        if max_distance is None:
            return cost
        places = place_count(grid)
        return cost + Cost(
            params=4 * (2 * max_distance + 2) * head_dim,
            position_macs=2 * tokens * places * num_heads * (tokens + head_dim),
            position_macs_literal=2 * tokens**2 * width,
        )
