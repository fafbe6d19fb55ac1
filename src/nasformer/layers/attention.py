"""Multi-head self-attention of tokens: plain, and with 2-D relative positions on keys and values (AutoFormer).

The published form of relative positions adds to every pair of tokens (i, j) a learned vector r(i, j) =
vertical[row_j - row_i] + horizontal[column_j - column_i], for keys and for values, and builds N x N x head_dim tensors
to do so. The vector, however, depends on key j only through its *coordinates*: its row, its column, or being the class
token. So

    q_i . r_k(i, j)          = sum over the coordinates c of j of   q_i . r_k(i, c)
    sum_j a_ij r_v(i, j)     = sum over all coordinates c of        (attention mass of i on c) r_v(i, c)

and both follow from one ordinary attention whose queries carry q_i . r_k(i, c) as extra columns, and whose keys and
values carry the coordinates of token j as zeros and ones. Exact, for any grid, with any fused attention kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.basic import Cost, init_weights, linear_cost
from nasformer.layers.stem import Grid


class SelfAttention(nn.Module):
    """Attention of [batch, tokens, embed_dim] without positions; its width, qkv_dim, may be less or more.

    Args:
        qk_norm: Whether queries and keys of each head are normalised, all heads by one norm.
    """

    def __init__(
        self,
        embed_dim: int,
        qkv_dim: int,
        head_dim: int,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv = nn.Linear(embed_dim, 3 * qkv_dim, bias=qkv_bias)
        self.proj = nn.Linear(qkv_dim, embed_dim)
        self.q_norm, self.k_norm = (nn.LayerNorm(head_dim, norm_eps) if qk_norm else nn.Identity() for _ in "qk")
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(2, (3, -1, self.head_dim))  # batch, tokens, q k v, heads, head_dim
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    @staticmethod
    def cost(tokens: int, embed_dim: int, qkv_dim: int) -> Cost:
        linears = linear_cost(tokens, embed_dim, 3 * qkv_dim) + linear_cost(tokens, qkv_dim, embed_dim)
        return linears + Cost(macs=2 * tokens**2 * qkv_dim)


class RelativePositions(nn.Module):
    """A vertical and a horizontal table of vectors by distance; entry 0 is for pairs with the class token."""

    def __init__(self, max_distance: int, head_dim: int) -> None:
        super().__init__()
        self.vertical = nn.Parameter(torch.empty(2 * max_distance + 2, head_dim))
        self.horizontal = nn.Parameter(torch.empty(2 * max_distance + 2, head_dim))
        nn.init.trunc_normal_(self.vertical, std=0.02)
        nn.init.trunc_normal_(self.horizontal, std=0.02)

    def forward(self, index: Tensor) -> Tensor:
        """The vector between each query token and each coordinate: [tokens, coordinates, head_dim]."""
        vectors = torch.cat([self.vertical, self.horizontal, self.vertical[:1] + self.horizontal[:1]])
        return F.embedding(index, vectors)


class RelativeAttention(nn.Module):
    """Self-attention of a vision transformer; the width num_heads * head_dim need not be embed_dim.

    Args:
        grid: Rows and columns of patches; one class token precedes them.
        max_distance: Distances beyond it share a vector; None leaves relative positions out (a plain ViT).
    """

    index: Tensor
    coordinates: Tensor

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
        """Takes another image size; weights stay, since the tables go by distance."""
        self.grid = grid
        if self.max_distance is not None:
            device = self.proj.weight.device
            self.register_buffer("index", distance_index(grid, self.max_distance).to(device), persistent=False)
            self.register_buffer("coordinates", token_coordinates(grid).to(device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.max_distance is None:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = relative_attention(q, k, v, self.rel_pos_k(self.index), self.rel_pos_v(self.index), self.coordinates)
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
        return cost + Cost(
            params=4 * (2 * max_distance + 2) * head_dim,
            position_macs=2 * tokens * coordinate_count(grid) * num_heads * (tokens + head_dim),
            position_macs_literal=2 * tokens**2 * width,
        )


def relative_attention(
    q: Tensor, k: Tensor, v: Tensor, key_vectors: Tensor, value_vectors: Tensor, coordinates: Tensor
) -> Tensor:
    """Attention of [batch, heads, tokens, head_dim] tensors with relative vectors on keys and values."""
    head_dim, count = q.shape[-1], coordinates.shape[-1]
    terms = torch.einsum("bhnd,npd->bhnp", q, key_vectors.to(q.dtype))
    coordinates = coordinates.to(q.dtype).expand(*k.shape[:2], -1, -1)
    output = F.scaled_dot_product_attention(
        torch.cat([q, terms], -1),
        torch.cat([k, coordinates], -1),
        torch.cat([v, coordinates], -1),
        scale=head_dim**-0.5,
    )
    values, mass = output.split([head_dim, count], -1)
    return values + torch.einsum("bhnp,npd->bhnd", mass, value_vectors.to(q.dtype))


def coordinate_count(grid: Grid) -> int:
    """Rows + columns + class token, rounded up to a multiple of 8 as fused kernels want their head dimension."""
    return -(-(grid[0] + grid[1] + 1) // 8) * 8


def token_coordinates(grid: Grid) -> Tensor:
    """Row and column of each token as zeros and ones: [tokens, coordinates], the class token first.

    >>> token_coordinates((1, 2))[:, :4].tolist()  # row 0, column 0, column 1, class token
    [[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]
    """
    height, width = grid
    coordinates = torch.zeros(height * width + 1, coordinate_count(grid))
    tokens = torch.arange(1, height * width + 1)
    coordinates[tokens, torch.arange(height).repeat_interleave(width)] = 1
    coordinates[tokens, height + torch.arange(width).repeat(height)] = 1
    coordinates[0, height + width] = 1
    return coordinates


def distance_index(grid: Grid, max_distance: int) -> Tensor:
    """The row of `RelativePositions.forward`'s vectors for each query token and coordinate: [tokens, coordinates]."""
    height, width = grid
    entries = 2 * max_distance + 2

    def entry(query: Tensor, size: int) -> Tensor:
        distance = torch.arange(size) - query[:, None]
        return distance.clamp(-max_distance, max_distance) + max_distance + 1

    # Pairs with the class token use entry 0 of both tables; their sum is the last vector. Coordinates that only pad
    # belong to no token, so their entry never counts.
    index = torch.full((height * width + 1, coordinate_count(grid)), 2 * entries)
    index[1:, :height] = entry(torch.arange(height).repeat_interleave(width), height)
    index[1:, height : height + width] = entry(torch.arange(width).repeat(height), width) + entries
    index[0, :height] = 0
    index[0, height : height + width] = entries
    return index
