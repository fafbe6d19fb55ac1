"""Attention within windows of a map (Liu et al., Swin, ICCV 2021), perhaps shifted, with a bias for every offset.

The bias of a pair of positions is the table's entry for their offset. A view of the table that slides over it has all
pairs at once, so there is neither an index to keep nor one to look up. Bias and borders go to fused attention as one
mask that all images share: windows stand beside the heads, not beside the images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.blocks import Mlp
from nasformer.layers.cost import Cost, linear_cost, norm_cost
from nasformer.layers.drop_path import DropPath
from nasformer.layers.stem import Grid, halved

FAR = -100.0
"""What is added where a window would look across the border of the map: Swin's number, no infinity."""


def clamped(window: int, grid: Grid) -> Grid:
    """Rows and columns of the window, which is never larger than the map.

    >>> clamped(14, (56, 7))
    (14, 7)
    """
    return min(window, grid[0]), min(window, grid[1])


def padded(grid: Grid, window: Grid) -> Grid:
    """Rows and columns of the map when windows have filled it up.

    >>> padded((16, 14), (7, 7))
    (21, 14)
    """
    return -(-grid[0] // window[0]) * window[0], -(-grid[1] // window[1]) * window[1]


def to_windows(x: Tensor, window: Grid) -> Tensor:
    """From [batch, rows, columns, channels] to [batch, windows, positions of a window, channels]."""
    rows, columns = window
    x = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def from_windows(x: Tensor, window: Grid, grid: Grid) -> Tensor:
    """The way back to the map that the windows cover."""
    x = x.unflatten(1, (grid[0] // window[0], grid[1] // window[1])).unflatten(3, window)
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class WindowAttention(nn.Module):
    """Attention of [batch, rows, columns, embed_dim], each window of the map for itself.

    What windows do not cover exactly is padded with zeros behind the last row and column, and a shifted map is rolled
    before that, as in timm. An axis on which one window covers the map is not shifted.

    Args:
        num_heads: Heads, each head_dim wide; their width in all may be less or more than embed_dim.
        window: Its rows and columns, where the map has as many.
        shifted: Whether windows lie half a window off.
    """

    apart: Tensor | None

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int, grid: Grid, window: int, shifted: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.full_window, self.shifted = num_heads, head_dim, window, shifted
        self.qkv = nn.Linear(embed_dim, 3 * num_heads * head_dim)
        self.proj = nn.Linear(num_heads * head_dim, embed_dim)
        self.place(grid)
        rows, columns = self.window
        self.positions = nn.Parameter(torch.empty(num_heads, 2 * rows - 1, 2 * columns - 1))
        nn.init.trunc_normal_(self.positions, std=0.02)

    def place(self, grid: Grid, device: torch.device | None = None) -> None:
        """Lays the windows on a map: their size, how far they are shifted, and who is apart in them."""
        self.grid, self.window = grid, clamped(self.full_window, grid)
        half = self.full_window // 2 if self.shifted else 0
        self.shift = tuple(half if side > window else 0 for side, window in zip(grid, self.window, strict=True))
        apart = borders(padded(grid, self.window), self.window, self.shift, device) if any(self.shift) else None
        self.register_buffer("apart", apart, persistent=False)

    def set_grid(self, grid: Grid) -> None:
        """Another image size: where the map's side limits the window, the table is resampled, as Swin's is."""
        self.place(grid, self.positions.device)
        sides = [2 * side - 1 for side in self.window]
        if sides != list(self.positions.shape[1:]):
            resampled = F.interpolate(self.positions.data[None], sides, mode="bicubic", align_corners=True)
            self.positions = nn.Parameter(resampled[0])

    def forward(self, x: Tensor) -> Tensor:
        full = padded(self.grid, self.window)
        x = from_windows(self.attend(self.windows(x)), self.window, full)
        if full != self.grid:
            x = x[:, : self.grid[0], : self.grid[1]]
        return x.roll(self.shift, (1, 2)) if any(self.shift) else x

    def windows(self, x: Tensor) -> Tensor:
        """The map cut up: from [batch, rows, columns, channels] to [batch, windows, positions, channels]."""
        full, (rows, columns) = padded(self.grid, self.window), self.grid
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        if full != self.grid:
            x = F.pad(x, (0, 0, 0, full[1] - columns, 0, full[0] - rows))
        return to_windows(x, self.window)

    def attend(self, x: Tensor) -> Tensor:
        """Attention of [batch, windows, positions, embed_dim]."""
        count, heads = x.shape[1], self.num_heads
        parts = self.qkv(x).unflatten(3, (3, heads, self.head_dim)).permute(3, 0, 1, 4, 2, 5)
        q, k, v = parts.flatten(2, 3).unbind(0)  # batch, windows * heads, positions, head_dim
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(count).to(q.dtype))
        return self.proj(attended.unflatten(1, (count, heads)).transpose(2, 3).flatten(3))

    def mask(self, count: int) -> Tensor:
        """What is added to the products of all windows: [windows * heads, positions, positions]."""
        bias = self.bias()
        if self.apart is None:
            return bias.repeat(count, 1, 1)
        return (bias + self.apart[:, None]).flatten(0, 1)

    def bias(self) -> Tensor:
        """Entry [head, i, j] is the table's for the offset from j to i: [heads, positions, positions]."""
        rows, columns = self.window
        pairs = self.positions.unfold(1, rows, 1).unfold(2, columns, 1)  # entry [., y, x, v, u] is [., y + v, x + u]
        return pairs.flip(3, 4).flatten(3, 4).flatten(1, 2)

    @staticmethod
    def cost(embed_dim: int, num_heads: int, head_dim: int, grid: Grid, window: int, shifted: bool) -> Cost:
        rows, columns = clamped(window, grid)
        high, wide = padded(grid, (rows, columns))
        width, tokens = num_heads * head_dim, high * wide
        table = Cost(num_heads * (2 * rows - 1) * (2 * columns - 1))
        linears = linear_cost(tokens, embed_dim, 3 * width) + linear_cost(tokens, width, embed_dim)
        return table + linears + Cost(macs=2 * tokens * rows * columns * width)


def borders(grid: Grid, window: Grid, shift: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """For every window of a rolled map, which pairs of positions are no neighbours: [windows, positions, positions].

    The last windows hold what was rolled in from the other end of the map.
    """
    labels = []
    for side, size, step in zip(grid, window, shift, strict=True):
        place = torch.arange(side, device=device)
        labels.append((place >= side - size).int() + (place >= side - step).int())
    region = 3 * labels[0][:, None] + labels[1]
    parts = to_windows(region[None, :, :, None], window)[0, :, :, 0]
    return (parts[:, :, None] != parts[:, None, :]) * FAR


# ----------------------------------------------------------------------------------------------------------------------
# The shifted-window transformer's block, on maps.
# ----------------------------------------------------------------------------------------------------------------------


class WindowBlock(nn.Module):
    """``x + attn(norm1(x))`` in windows, then ``x + mlp(norm2(x))``, of [batch, channels, rows, columns].

    Inside, channels come last; in memory they do so between blocks as well, so that turning the axes copies nothing.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        window: int,
        shifted: bool,
        stochastic_depth: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = WindowAttention(embed_dim, num_heads, head_dim, grid, window, shifted)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        for linear in (self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def set_grid(self, grid: Grid) -> None:
        self.attn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x.permute(0, 3, 1, 2)

    @staticmethod
    def cost(
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        hidden_dim: int,
        grid: Grid,
        window: int,
        shifted: bool,
        stochastic_depth: bool = True,
    ) -> Cost:
        attention = WindowAttention.cost(embed_dim, num_heads, head_dim, grid, window, shifted)
        return attention + Mlp.cost(grid[0] * grid[1], embed_dim, hidden_dim) + norm_cost(embed_dim) * 2


# ----------------------------------------------------------------------------------------------------------------------
# From one stage of a shifted-window transformer to the next: 2 x 2 positions become one.
# ----------------------------------------------------------------------------------------------------------------------


class PatchMerging(nn.Module):
    """The channels of 2 x 2 positions side by side, a norm, a linear layer without bias; of maps, channels first.

    An odd row or column has zeros beside it. The four come column by column, as Swin has them.

    Args:
        grid: Rows and columns of the map that comes in.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.merge_norm = nn.LayerNorm(4 * in_dim)
        self.reduction = nn.Linear(4 * in_dim, out_dim, bias=False)
        nn.init.trunc_normal_(self.reduction.weight, std=0.02)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.grid
        x = x.permute(0, 2, 3, 1)
        if rows % 2 or columns % 2:
            x = F.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.reduction(self.merge_norm(x)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        rows, columns = halved(grid)
        return norm_cost(4 * in_dim) + linear_cost(rows * columns, 4 * in_dim, out_dim, bias=False)
