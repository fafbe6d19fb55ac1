"""Local self-attention (Ramachandran et al., NeurIPS 2019): every position attends to the window around it.

    y_o = sum over the neighbours p of o of   softmax_p(q_o . k_p + q_o . r_(p - o)) v_p

Unfolding copies every key and value window² times. Here queries go in square tiles, and a tile shares one copy of the
keys and values that any of its queries sees, itself and a rim of window // 2: with a window of 7 and tiles of 4 that is
6 copies and not 49, and what is left is ordinary attention with a mask. On a small map the one tile is the map itself.
The paper leaves open what lies beyond the map: here nothing does, so a softmax at the border has fewer terms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.errors import UserError


class Plan(NamedTuple):
    """How the queries of one map are put into tiles; `rim` is how far the keys of a tile reach beyond it."""

    tile: tuple[int, int]
    rim: int
    grid: tuple[int, int]

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns that fill up the last tiles."""
        return -self.grid[0] % self.tile[0], -self.grid[1] % self.tile[1]


class Sight(NamedTuple):
    """Which key of its tile lies where in the window of a query.

    Attributes:
        place: [tiles, queries, keys], the place of a key in the query's window; window² if it is not seen.
        unseen: [tiles, queries, keys], whether it is not.
        key: [tiles, queries, places], the key at a place; 0 if there is none.
        empty: [tiles, queries, places], whether there is none.
    """

    place: Tensor
    unseen: Tensor
    key: Tensor
    empty: Tensor


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
    plan = _plan(q, window, tile)
    if torch.compiler.is_compiling():  # also while exporting, where the batch must not be cut
        return _attend(q, k, v, positions, plan, dropout)
    size = _images_at_once(q, plan)
    parts = zip(q.split(size), k.split(size), v.split(size), strict=True)
    done = [_attend(*part, positions, plan, dropout) for part in parts]
    return done[0] if len(done) == 1 else torch.cat(done)


def tiled(x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """A map [batch, heads, dim, height, width] as queries and as keys: [batch, heads, tiles, positions, dim] each.

    What lies beyond the map is 0. On a GPU there may be more channels behind those of the map.
    """
    plan = _plan(x, window, None)
    return _tiles(x, plan, rim=0), _tiles(x, plan, plan.rim)


def _plan(q: Tensor, window: int, tile: int | None) -> Plan:
    """The fastest, by benchmarks/local_attention.py, forward and backward with a window of 7.

    On a CPU naive unfolding takes 7 times as long as tiles of 4 at 56 x 56 and 15 times as long as the whole map at
    14 x 14, which there beats any tiles by 2; from 16 x 16 on, where most keys of the whole map are seen by nobody, it
    does not. Larger tiles than 4 are slower for the same reason. An H200 minds superfluous keys less: there the whole
    map wins up to 16 x 16 (by 1.6 in bf16), tiles of 4 at 28 x 28, and tiles of 8, with the least memory, from 32 x 32.
    """
    height, width = q.shape[-2:]
    if tile is None:
        whole = height * width <= (6 if q.is_cuda else 4) * window**2
        tile = max(height, width) if whole else 8 if q.is_cuda and min(height, width) >= 32 else 4
    if tile >= max(height, width):
        return Plan((height, width), 0, (height, width))
    return Plan((tile, tile), window // 2, (height, width))


def _images_at_once(q: Tensor, plan: Plan) -> int:
    """So many that what lives only during the attention stays small beside what is kept for the backward pass."""
    rows, columns = (side + 2 * plan.rim for side in plan.tile)
    logits = q.shape[1] * q.shape[3] * q.shape[4] * rows * columns
    return max(1, (2**26 if q.is_cuda else 2**22) // logits)


def _attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, plan: Plan, dropout: float) -> Tensor:
    sight = _sight(plan, positions.shape[-1], q.device)
    queries = _tiles(q, plan, rim=0)
    places = sight.key.shape[-1] - positions.shape[-1] ** 2
    positions = _padded(positions.flatten(2), (0, places, 0, _missing_channels(q)))
    terms = torch.einsum("bhtqd,hdp->bhtqp", queries, positions.to(q.dtype))
    mask = _Spread.apply(terms.flatten(1, 2), *sight)
    y = F.scaled_dot_product_attention(
        queries.flatten(1, 2),
        _tiles(k, plan, plan.rim).flatten(1, 2),
        _tiles(v, plan, plan.rim).flatten(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        scale=1.0,
    )
    return _untiled(y.unflatten(1, (q.shape[1], -1))[..., : v.shape[2]], plan)


def _missing_channels(x: Tensor) -> int:
    """On a GPU fused attention wants head dimensions to be multiples of 8, and something slow steps in otherwise."""
    return -x.shape[2] % 8 if x.is_cuda else 0


def _places(window: int, device: torch.device) -> int:
    """Those of the window and one for what is not seen; on a GPU a multiple of 8: other products are slow."""
    places = window**2 + 1
    return places + -places % 8 if device.type == "cuda" else places


def _tiles(x: Tensor, plan: Plan, rim: int) -> Tensor:
    """[batch, heads, dim, height, width] to [batch, heads, tiles, positions of a tile and its rim, dim]."""
    (rows, columns), (below, right) = plan.tile, plan.padding
    x = _padded(x, (rim, rim + right, rim, rim + below, 0, _missing_channels(x)))
    if plan.tile == plan.grid:
        return x.flatten(3).transpose(2, 3).contiguous().unsqueeze(2)
    x = x.unfold(3, rows + 2 * rim, rows).unfold(4, columns + 2 * rim, columns)
    return x.permute(0, 1, 3, 4, 5, 6, 2).flatten(4, 5).flatten(2, 3)


def _padded(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return F.pad(x, sizes) if any(sizes) else x  # to pad by nothing is a copy, too


def _untiled(x: Tensor, plan: Plan) -> Tensor:
    (height, width), (rows, columns), (below, _) = plan.grid, plan.tile, plan.padding
    x = x.unflatten(2, ((height + below) // rows, -1)).unflatten(4, (rows, columns))
    x = x.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
    return x[..., :height, :width]


def _sight(plan: Plan, window: int, device: torch.device) -> Sight:
    # A traced tensor must not get into the cache.
    look = _look.__wrapped__ if torch.compiler.is_compiling() else _look
    return look(plan, window, device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is made in inference mode could not be used in training later
def _look(plan: Plan, window: int, device: torch.device) -> Sight:
    rows, columns = (_look_along(plan, side, window, device) for side in (0, 1))
    # [row tiles, 1, query rows, 1, key rows, 1] beside [1, column tiles, 1, query columns, 1, key columns]
    row, column = rows[:, None, :, None, :, None], columns[None, :, None, :, None, :]
    seen = (row >= 0) & (column >= 0)
    place = torch.where(seen, row * window + column, window**2)
    place = place.flatten(4, 5).flatten(2, 3).flatten(0, 1)
    keys = torch.arange(place.shape[2], device=device).expand_as(place)
    key = place.new_full((*place.shape[:2], _places(window, device)), -1).scatter(2, place, keys)
    key[..., window**2] = -1  # where the keys that are not seen have gone
    return Sight(place, place == window**2, key.clamp(min=0), key < 0)


def _look_along(plan: Plan, side: int, window: int, device: torch.device) -> Tensor:
    """Along one side of the map, the place of a key in the window of a query, or -window² : [tiles, queries, keys]."""
    size, tile = plan.grid[side], plan.tile[side]
    first = torch.arange(0, size, tile, device=device)[:, None]
    query = (first + torch.arange(tile, device=device))[:, :, None]
    key = (first + torch.arange(-plan.rim, tile + plan.rim, device=device))[:, None, :]
    place = key - query + window // 2
    inside = (key >= 0) & (key < size)
    # Queries that only fill up a tile see as if the map went on, for a softmax of nothing is not a number.
    seen = (place >= 0) & (place < window) & (inside | (query >= size))
    return torch.where(seen, place, -(window**2))


class _Spread(torch.autograd.Function):
    """From [.., queries, places] terms to a mask [.., queries, keys], -inf where nothing is seen.

    A place has one key and a key one place, so that both ways are lookups; the gradient that autograd would take of
    `gather` adds all the unseen keys up in one spot, which is slow on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, terms: Tensor, place: Tensor, unseen: Tensor, key: Tensor, empty: Tensor) -> Tensor:
        ctx.save_for_backward(key, empty)
        return _lookup(terms, place, unseen, -torch.inf)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        key, empty = ctx.saved_tensors
        return _lookup(grad, key, empty, 0.0), None, None, None, None


def _lookup(x: Tensor, index: Tensor, missing: Tensor, default: float) -> Tensor:
    """[batch, heads * tiles, queries, n] by an index of [tiles, queries, m]; a default where something is missing."""
    index = index.expand(*x.shape[:1], x.shape[1] // index.shape[0], *index.shape)
    found = x.unflatten(1, index.shape[1:3]).gather(-1, index)
    return found.masked_fill_(missing, default).flatten(1, 2)
