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

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.basic import Cost, linear_cost
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
        for linear in (self.qkv, self.proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

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


# Local self-attention (Ramachandran et al., NeurIPS 2019): every position attends to the window around it.
#
#     y_o = sum over the neighbours p of o of   softmax_p(q_o . k_p + q_o . r_(p - o)) v_p
#
# Unfolding copies every key and value window² times. Here the queries of a square tile share one copy of the keys and
# values that any of them sees: the tile itself and a rim of window // 2. With a window of 7 and tiles of 4 that is 6
# copies and not 49, and what remains is ordinary attention with a mask. On a small map the only tile is the map itself.
# The paper leaves open what lies beyond the map: here nothing does, so a softmax at the border has fewer terms.


class Tiling(NamedTuple):
    """How the queries of a map are put into tiles; `rim` is how far the keys of a tile reach beyond it."""

    tile: tuple[int, int]
    rim: int
    grid: tuple[int, int]

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns that fill up the last tiles."""
        return -self.grid[0] % self.tile[0], -self.grid[1] % self.tile[1]


class WindowIndex(NamedTuple):
    """Which key of its tile lies at which offset in the window of a query.

    Attributes:
        offset: [tiles, queries, keys], the offset of a key in the query's window, row by row; window² if outside.
        outside: [tiles, queries, keys], whether the key is outside of the window.
        key: [tiles, queries, offsets], the key at an offset; 0 if there is none.
        missing: [tiles, queries, offsets], whether there is no key at the offset.
    """

    offset: Tensor
    outside: Tensor
    key: Tensor
    missing: Tensor


def local_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int, dropout: float = 0.0, tile: int | None = None
) -> Tensor:
    """Attention of every position of a map to the window x window positions around it.

    Args:
        q: [batch, heads, q_head_dim, height, width], as are k and, with a head dimension of its own, v.
        positions: [heads, q_head_dim, window, window], the vectors r_(p - o) by row and column of p in o's window.
        dropout: Share of the attention weights to drop; pass 0 outside training.
        tile: Queries of tile x tile positions share their keys; by default what was fastest for the map.

    >>> q = k = v = torch.arange(3.0).reshape(1, 1, 1, 1, 3)
    >>> local_attention(0 * q, k, v, torch.zeros(1, 1, 3, 3), window=3).flatten().tolist()  # means of 2, 3 and 2 values
    [0.5, 1.0, 1.5]
    """
    if window % 2 == 0:
        raise UserError(f"local attention was given a window of {window}; a window has a centre, so take an odd number")
    tiling = _choose_tiling(q, window, tile)
    if torch.compiler.is_compiling():  # also while exporting, where the batch must not be cut
        return _attend(q, k, v, positions, tiling, dropout)
    size = _images_at_once(q, tiling)
    parts = zip(q.split(size), k.split(size), v.split(size), strict=True)
    outputs = [_attend(*part, positions, tiling, dropout) for part in parts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def tiled(x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """A map [batch, heads, dim, height, width] as queries and as keys: [batch, heads, tiles, positions, dim] each.

    What lies beyond the map is 0. On a GPU there may be padding channels behind those of the map.
    """
    tiling = _choose_tiling(x, window, None)
    return _to_tiles(x, tiling, rim=0), _to_tiles(x, tiling, tiling.rim)


def _choose_tiling(q: Tensor, window: int, tile: int | None) -> Tiling:
    """The fastest tiling by benchmarks/local_attention.py, forward and backward with a window of 7.

    On a CPU naive unfolding takes 7 times as long as tiles of 4 at 56 x 56 and 15 times as long as the whole map at
    14 x 14, which there beats any tiles by 2; from 16 x 16 on, where most keys of the whole map are outside of every
    window, it does not. Larger tiles than 4 are slower for the same reason. An H200 minds superfluous keys less: the
    whole map wins up to 16 x 16 (by 1.6 in bf16), tiles of 4 at 28 x 28, and tiles of 8, with the least memory, from
    32 x 32.
    """
    height, width = q.shape[-2:]
    if tile is None:
        whole = height * width <= (6 if q.is_cuda else 4) * window**2
        tile = max(height, width) if whole else 8 if q.is_cuda and min(height, width) >= 32 else 4
    if tile >= max(height, width):
        return Tiling((height, width), 0, (height, width))
    return Tiling((tile, tile), window // 2, (height, width))


def _images_at_once(q: Tensor, tiling: Tiling) -> int:
    """So many images that temporary tensors stay small compared to what is kept for the backward pass."""
    rows, columns = (side + 2 * tiling.rim for side in tiling.tile)
    logits = q.shape[1] * q.shape[3] * q.shape[4] * rows * columns
    return max(1, (2**26 if q.is_cuda else 2**22) // logits)


def _attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, tiling: Tiling, dropout: float) -> Tensor:
    index = _window_index(tiling, positions.shape[-1], q.device)
    queries = _to_tiles(q, tiling, rim=0)
    padding = index.key.shape[-1] - positions.shape[-1] ** 2
    positions = _pad(positions.flatten(2), (0, padding, 0, _missing_channels(q)))
    terms = torch.einsum("bhtqd,hdp->bhtqp", queries, positions.to(q.dtype))
    mask = _OffsetsToKeys.apply(terms.flatten(1, 2), *index)
    y = F.scaled_dot_product_attention(
        queries.flatten(1, 2),
        _to_tiles(k, tiling, tiling.rim).flatten(1, 2),
        _to_tiles(v, tiling, tiling.rim).flatten(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        scale=1.0,
    )
    return _from_tiles(y.unflatten(1, (q.shape[1], -1))[..., : v.shape[2]], tiling)


# Maps in tiles and back.


def _to_tiles(x: Tensor, tiling: Tiling, rim: int) -> Tensor:
    """[batch, heads, dim, height, width] to [batch, heads, tiles, positions of a tile and its rim, dim]."""
    (rows, columns), (below, right) = tiling.tile, tiling.padding
    x = _pad(x, (rim, rim + right, rim, rim + below, 0, _missing_channels(x)))
    if tiling.tile == tiling.grid:
        return x.flatten(3).transpose(2, 3).contiguous().unsqueeze(2)
    x = x.unfold(3, rows + 2 * rim, rows).unfold(4, columns + 2 * rim, columns)
    return x.permute(0, 1, 3, 4, 5, 6, 2).flatten(4, 5).flatten(2, 3)


def _from_tiles(x: Tensor, tiling: Tiling) -> Tensor:
    (height, width), (rows, columns), (below, _) = tiling.grid, tiling.tile, tiling.padding
    x = x.unflatten(2, ((height + below) // rows, -1)).unflatten(4, (rows, columns))
    x = x.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
    return x[..., :height, :width]


def _pad(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return F.pad(x, sizes) if any(sizes) else x  # padding by nothing would copy, too


def _missing_channels(x: Tensor) -> int:
    """On a GPU fused attention wants head dimensions that are multiples of 8; otherwise a slow kernel steps in."""
    return -x.shape[2] % 8 if x.is_cuda else 0


# Offsets in windows and keys of tiles.


def _window_index(tiling: Tiling, window: int, device: torch.device) -> WindowIndex:
    # A traced tensor must not get into the cache.
    make = _make_index.__wrapped__ if torch.compiler.is_compiling() else _make_index
    return make(tiling, window, device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is made in inference mode could not be used in training later
def _make_index(tiling: Tiling, window: int, device: torch.device) -> WindowIndex:
    rows, columns = (_offsets_along(tiling, axis, window, device) for axis in (0, 1))
    # [row tiles, 1, query rows, 1, key rows, 1] and [1, column tiles, 1, query columns, 1, key columns]
    row, column = rows[:, None, :, None, :, None], columns[None, :, None, :, None, :]
    inside = (row >= 0) & (column >= 0)
    offset = torch.where(inside, row * window + column, window**2)
    offset = offset.flatten(4, 5).flatten(2, 3).flatten(0, 1)
    keys = torch.arange(offset.shape[2], device=device).expand_as(offset)
    key = offset.new_full((*offset.shape[:2], _offset_count(window, device)), -1).scatter(2, offset, keys)
    key[..., window**2] = -1  # where the keys outside of the window have gone
    return WindowIndex(offset, offset == window**2, key.clamp(min=0), key < 0)


def _offset_count(window: int, device: torch.device) -> int:
    """Offsets of the window and one for keys outside; on a GPU a multiple of 8, since other products are slow."""
    offsets = window**2 + 1
    return offsets + -offsets % 8 if device.type == "cuda" else offsets


def _offsets_along(tiling: Tiling, axis: int, window: int, device: torch.device) -> Tensor:
    """Offset of a key in a query's window along one axis, or -window² outside: [tiles, queries, keys]."""
    size, tile = tiling.grid[axis], tiling.tile[axis]
    first = torch.arange(0, size, tile, device=device)[:, None]
    query = (first + torch.arange(tile, device=device))[:, :, None]
    key = (first + torch.arange(-tiling.rim, tile + tiling.rim, device=device))[:, None, :]
    offset = key - query + window // 2
    on_map = (key >= 0) & (key < size)
    # Queries that only fill up a tile see keys as if the map went on, since a softmax over nothing is not a number.
    inside = (offset >= 0) & (offset < window) & (on_map | (query >= size))
    return torch.where(inside, offset, -(window**2))


class _OffsetsToKeys(torch.autograd.Function):
    """From terms by offset [.., queries, offsets] to a mask by key [.., queries, keys], -inf outside of the window.

    An offset has one key and a key one offset, so both directions are lookups. Autograd's gradient of `gather` would
    add all keys outside of the window up in one entry, which is slow on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, terms: Tensor, offset: Tensor, outside: Tensor, key: Tensor, missing: Tensor) -> Tensor:
        ctx.save_for_backward(key, missing)
        return _lookup(terms, offset, outside, -torch.inf)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        key, missing = ctx.saved_tensors
        return _lookup(grad, key, missing, 0.0), None, None, None, None


def _lookup(x: Tensor, index: Tensor, invalid: Tensor, default: float) -> Tensor:
    """[batch, heads * tiles, queries, n] by an index of [tiles, queries, m]; a default where it is invalid."""
    index = index.expand(*x.shape[:1], x.shape[1] // index.shape[0], *index.shape)
    values = x.unflatten(1, index.shape[1:3]).gather(-1, index)
    return values.masked_fill_(invalid, default).flatten(1, 2)
