"""ResNet's bottleneck (He et al., CVPR 2016) around a spatial operator: convolution, local or axial attention.

At the end: local attention as fused attention of tiles.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.basic import Cost, DropPath, linear_cost, norm_cost
from nasformer.layers.stem import Grid, half_grid


class Operator(Protocol):
    """Spatial operator of a bottleneck: mixes positions, strides and norms; `name` is the name of its weights."""

    name: ClassVar[str]

    def __call__(self, mid_dim: int, grid: Grid, stride: int, **options: Any) -> nn.Module: ...

    @staticmethod
    def cost(mid_dim: int, *, grid: Grid, stride: int, **options: Any) -> Cost: ...


class Bottleneck(nn.Module):
    """1 x 1 convolution, spatial operator, 1 x 1 convolution, each with batch norm, on a residual branch.

    The 1 x 1 convolutions have the same names whatever the operator is, so in a supernet all operators share them.
    Where the shape changes, the shortcut is a 1 x 1 convolution with batch norm.

    Args:
        mid_dim: Input channels of the operator. Its output has as many, or `value_dim`, if that is an option.
        grid: Rows and columns of the input map; only the cost depends on it.
        operator: Class of the spatial operator; `options` are its other arguments (kernel, window, num_heads ...).
        last_gamma: Initial scale of the last norm. With 0 a block starts as its shortcut.
    """

    def __init__(
        self,
        in_dim: int,
        mid_dim: int,
        out_dim: int,
        grid: Grid,
        operator: Operator,
        stride: int = 1,
        last_gamma: float = 0.0,
        stochastic_depth: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(in_dim, mid_dim, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(mid_dim)
        self.reduce_act = nn.ReLU()
        self.operator = operator.name
        self.add_module(self.operator, operator(mid_dim, grid=grid, stride=stride, **options))
        self.operator_act = nn.ReLU()
        self.expand = nn.Conv2d(options.get("value_dim", mid_dim), out_dim, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(out_dim)
        if changes_shape(in_dim, out_dim, stride):
            self.shortcut = nn.Conv2d(in_dim, out_dim, 1, stride, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(out_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        self.act = nn.ReLU()
        for name, conv in self.named_children():
            if name in ("reduce", "expand", "shortcut"):
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # type: ignore[arg-type]
        nn.init.constant_(self.expand_norm.weight, last_gamma)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.reduce_act(self.reduce_norm(self.reduce(x)))
        hidden = self.operator_act(getattr(self, self.operator)(hidden))
        branch = self.drop_path(self.expand_norm(self.expand(hidden)))
        shortcut = self.shortcut_norm(self.shortcut(x)) if hasattr(self, "shortcut") else x
        return self.act(shortcut + branch)

    @staticmethod
    def cost(
        in_dim: int, mid_dim: int, out_dim: int, grid: Grid, operator: Operator, stride: int = 1, **options: Any
    ) -> Cost:
        before = grid[0] * grid[1]
        rows, columns = half_grid(grid) if stride == 2 else grid
        after = rows * columns
        cost = linear_cost(before, in_dim, mid_dim, bias=False) + norm_cost(mid_dim)
        cost += operator.cost(mid_dim, grid=grid, stride=stride, **options)
        cost += linear_cost(after, options.get("value_dim", mid_dim), out_dim, bias=False) + norm_cost(out_dim)
        if changes_shape(in_dim, out_dim, stride):
            cost += linear_cost(after, in_dim, out_dim, bias=False) + norm_cost(out_dim)
        return cost


def changes_shape(in_dim: int, out_dim: int, stride: int) -> bool:
    """Whether the shortcut of a block needs a convolution."""
    return stride != 1 or in_dim != out_dim


class ConvOperator(nn.Module):
    """ResNet's operator: a convolution of any odd kernel that keeps the number of channels, and batch norm."""

    name: ClassVar[str] = "conv"

    def __init__(self, mid_dim: int, grid: Grid, stride: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(mid_dim, mid_dim, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(mid_dim)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, stride: int, kernel: int, **costless: Any) -> Cost:
        rows, columns = half_grid(grid) if stride == 2 else grid
        filters = kernel**2 * mid_dim**2
        return Cost(filters, rows * columns * filters) + norm_cost(mid_dim)


class MapAttention(nn.Module):
    """Base of attention on feature maps: queries, keys and values by 1 x 1 convolutions without biases.

    As in TrioNet's formula, products of queries and keys are not scaled. With Kaiming's weights their standard
    deviation would start at about the root of the head's width, 11 in the widest blocks, and softmax almost one-hot.
    So queries start smaller by that root, and products with a deviation of about 1.
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
    def dropout_rate(self) -> float:
        """Dropout rate of attention: 0 outside training."""
        return self.dropout if self.training else 0.0


def project_cost(positions: int, in_dim: int, query_dim: int, value_dim: int) -> Cost:
    """Cost of `MapAttention.project`."""
    return linear_cost(positions, in_dim, 2 * query_dim + value_dim, bias=False)


def pooling(stride: int) -> nn.Module:
    """The stride of attention: the mean of 2 x 2 positions, of fewer at an odd edge."""
    return nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()


class LocalOperator(MapAttention):
    """Stand-alone self-attention (Ramachandran et al., NeurIPS 2019): each position attends to the window around it.

    `positions` has a vector for each offset in the window and each head, in the channels of the queries.
    """

    name: ClassVar[str] = "local"

    def __init__(
        self,
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        window: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(mid_dim, query_dim, value_dim, num_heads, dropout)
        self.window = window
        # Queries start with the inverse root of their width: with deviation 1, position weighs as much as content.
        self.positions = nn.Parameter(torch.randn(query_dim, window, window))
        self.pool = pooling(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.positions.unflatten(0, (self.num_heads, -1))
        attended = local_attention(*self.project(x), positions, self.window, self.dropout_rate)
        return self.norm(self.pool(attended.flatten(1, 2)))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, query_dim: int, value_dim: int, window: int, **costless: Any) -> Cost:
        """Positions count among the MACs: the published numbers of local attention fit with them and not without."""
        positions = grid[0] * grid[1]
        table = Cost(query_dim * window**2, positions * window**2 * (2 * query_dim + value_dim))
        return project_cost(positions, mid_dim, query_dim, value_dim) + table + norm_cost(value_dim)


ORDERS = {"height": (0, 4, 1, 3, 2), "width": (0, 3, 1, 4, 2)}
"""Permutation of [batch, heads, channels, rows, columns] to [batch, other axis, heads, axis, channels]."""


class AxisAttention(MapAttention):
    """Attention of each position to all positions of its column (axis "height") or row (axis "width")."""

    def __init__(
        self, in_dim: int, query_dim: int, value_dim: int, num_heads: int, axis: str, dropout: float = 0.0
    ) -> None:
        super().__init__(in_dim, query_dim, value_dim, num_heads, dropout)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        order = ORDERS[self.axis]
        q, k, v = (part.permute(order).flatten(0, 1) for part in self.project(x))
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_rate, scale=1.0)
        back = [order.index(dim) for dim in range(5)]
        return attended.unflatten(0, (x.shape[0], -1)).permute(back).flatten(1, 2)


class AxialOperator(nn.Module):
    """Axial attention (Wang et al., ECCV 2020): along columns, then along rows, then batch norm.

    As in TrioNet, there are no positions and no norms inside. Each position sees the whole map.
    """

    name: ClassVar[str] = "axial"

    def __init__(
        self,
        mid_dim: int,
        grid: Grid,
        stride: int,
        query_dim: int,
        value_dim: int,
        num_heads: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.height = AxisAttention(mid_dim, query_dim, value_dim, num_heads, "height", dropout)
        self.width = AxisAttention(value_dim, query_dim, value_dim, num_heads, "width", dropout)
        self.pool = pooling(stride)
        self.norm = nn.BatchNorm2d(value_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(self.width(self.height(x))))

    @staticmethod
    def cost(mid_dim: int, grid: Grid, query_dim: int, value_dim: int, **costless: Any) -> Cost:
        positions = grid[0] * grid[1]
        first = project_cost(positions, mid_dim, query_dim, value_dim)
        second = project_cost(positions, value_dim, query_dim, value_dim)
        products = Cost(macs=positions * sum(grid) * (query_dim + value_dim))
        return first + second + products + norm_cost(value_dim)


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
    """How many images to process at once, so that temporary tensors stay small beside those for the backward pass."""
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
