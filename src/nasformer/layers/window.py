"""Layers of the shifted-window transformer (Liu et al., Swin, ICCV 2021): window attention, block, patch merging.

The bias of a pair of positions is the table's entry for their offset. A sliding view of the table has the entries of
all pairs at once, so no index is kept or looked up. Bias and border mask go to fused attention as one mask that all
images share: windows are folded into the dimension of the heads, not into the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.basic import Cost, DropPath, init_weights, linear_cost, norm_cost
from nasformer.layers.blocks import Mlp
from nasformer.layers.stem import Grid, half_grid

FAR = -100.0
"""Added to the logits of pairs that the shift brought into one window across the border of the map; Swin's number."""


def clamp_window(window: int, grid: Grid) -> Grid:
    """Rows and columns of a window, which is never larger than the map.

    >>> clamp_window(14, (56, 7))
    (14, 7)
    """
    return min(window, grid[0]), min(window, grid[1])


def padded_grid(grid: Grid, window: Grid) -> Grid:
    """Rows and columns of the map, padded to a multiple of the window.

    >>> padded_grid((16, 14), (7, 7))
    (21, 14)
    """
    return -(-grid[0] // window[0]) * window[0], -(-grid[1] // window[1]) * window[1]


def window_partition(x: Tensor, window: Grid) -> Tensor:
    """Cuts [batch, rows, columns, channels] into [batch, windows, positions of a window, channels]."""
    rows, columns = window
    x = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def window_reverse(x: Tensor, window: Grid, grid: Grid) -> Tensor:
    """Puts windows together into the map that they cover."""
    x = x.unflatten(1, (grid[0] // window[0], grid[1] // window[1])).unflatten(3, window)
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class WindowAttention(nn.Module):
    """Attention of [batch, rows, columns, embed_dim] within windows of the map.

    As in timm, a shifted map is rolled first, then padded with zeros behind its last row and column where windows do
    not cover it exactly. An axis on which one window covers the map is not shifted.

    Args:
        num_heads: Heads, each head_dim wide; together they may be narrower or wider than embed_dim.
        window: Rows and columns of a window, where the map has as many.
        shifted: Whether windows are shifted by half a window.
    """

    border_mask: Tensor | None

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int, grid: Grid, window: int, shifted: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.full_window, self.shifted = num_heads, head_dim, window, shifted
        self.qkv = nn.Linear(embed_dim, 3 * num_heads * head_dim)
        self.proj = nn.Linear(num_heads * head_dim, embed_dim)
        self.place_windows(grid)
        rows, columns = self.window
        self.positions = nn.Parameter(torch.empty(num_heads, 2 * rows - 1, 2 * columns - 1))
        nn.init.trunc_normal_(self.positions, std=0.02)

    def place_windows(self, grid: Grid, device: torch.device | None = None) -> None:
        """Fits the windows to a map: their size, their shift, and the mask of its borders."""
        self.grid, self.window = grid, clamp_window(self.full_window, grid)
        half = self.full_window // 2 if self.shifted else 0
        self.shift = tuple(half if side > window else 0 for side, window in zip(grid, self.window, strict=True))
        mask = border_mask(padded_grid(grid, self.window), self.window, self.shift, device) if any(self.shift) else None
        self.register_buffer("border_mask", mask, persistent=False)

    def set_grid(self, grid: Grid) -> None:
        """Takes another image size; where the map limits the window, the table of positions is resampled."""
        self.place_windows(grid, self.positions.device)
        sides = [2 * side - 1 for side in self.window]
        if sides != list(self.positions.shape[1:]):
            resampled = F.interpolate(self.positions.data[None], sides, mode="bicubic", align_corners=True)
            self.positions = nn.Parameter(resampled[0])

    def forward(self, x: Tensor) -> Tensor:
        full = padded_grid(self.grid, self.window)
        x = window_reverse(self.attend(self.windows(x)), self.window, full)
        if full != self.grid:
            x = x[:, : self.grid[0], : self.grid[1]]
        return x.roll(self.shift, (1, 2)) if any(self.shift) else x

    def windows(self, x: Tensor) -> Tensor:
        """Shifts, pads and cuts the map: [batch, windows, positions, channels]."""
        full, (rows, columns) = padded_grid(self.grid, self.window), self.grid
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        if full != self.grid:
            x = F.pad(x, (0, 0, 0, full[1] - columns, 0, full[0] - rows))
        return window_partition(x, self.window)

    def attend(self, x: Tensor) -> Tensor:
        """Attention of [batch, windows, positions, embed_dim]."""
        count, heads = x.shape[1], self.num_heads
        parts = self.qkv(x).unflatten(3, (3, heads, self.head_dim)).permute(3, 0, 1, 4, 2, 5)
        q, k, v = parts.flatten(2, 3).unbind(0)  # batch, windows * heads, positions, head_dim
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(count).to(q.dtype))
        return self.proj(attended.unflatten(1, (count, heads)).transpose(2, 3).flatten(3))

    def mask(self, count: int) -> Tensor:
        """Position bias and border mask of all windows: [windows * heads, positions, positions]."""
        bias = self.bias()
        if self.border_mask is None:
            return bias.repeat(count, 1, 1)
        return (bias + self.border_mask[:, None]).flatten(0, 1)

    def bias(self) -> Tensor:
        """Position bias of a window: entry [head, i, j] is the table's for the offset from j to i."""
        rows, columns = self.window
        pairs = self.positions.unfold(1, rows, 1).unfold(2, columns, 1)  # entry [., y, x, v, u] is [., y + v, x + u]
        return pairs.flip(3, 4).flatten(3, 4).flatten(1, 2)

    @staticmethod
    def cost(embed_dim: int, num_heads: int, head_dim: int, grid: Grid, window: int, shifted: bool) -> Cost:
        rows, columns = clamp_window(window, grid)
        high, wide = padded_grid(grid, (rows, columns))
        width, tokens = num_heads * head_dim, high * wide
        table = Cost(num_heads * (2 * rows - 1) * (2 * columns - 1))
        linears = linear_cost(tokens, embed_dim, 3 * width) + linear_cost(tokens, width, embed_dim)
        return table + linears + Cost(macs=2 * tokens * rows * columns * width)


def border_mask(grid: Grid, window: Grid, shift: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """`FAR` for pairs of positions of a window that the roll brought together: [windows, positions, positions].

    The last windows hold what was rolled in from the other end of the map.
    """
    labels = []
    for side, size, step in zip(grid, window, shift, strict=True):
        position = torch.arange(side, device=device)
        labels.append((position >= side - size).int() + (position >= side - step).int())
    region = 3 * labels[0][:, None] + labels[1]
    parts = window_partition(region[None, :, :, None], window)[0, :, :, 0]
    return (parts[:, :, None] != parts[:, None, :]) * FAR


class WindowBlock(nn.Module):
    """Swin block of [batch, channels, rows, columns]: `x + attn(norm1(x))` in windows, then `x + mlp(norm2(x))`.

    Without heads it has no attention. Channels come last inside, and in memory also between blocks, so that permuting
    the axes copies nothing.
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
        self.num_heads = num_heads
        if num_heads:
            self.norm1 = nn.LayerNorm(embed_dim)
            self.attn = WindowAttention(embed_dim, num_heads, head_dim, grid, window, shifted)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.drop_path: nn.Module = DropPath() if stochastic_depth else nn.Identity()
        init_weights(self)

    def set_grid(self, grid: Grid) -> None:
        if self.num_heads:
            self.attn.set_grid(grid)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        if self.num_heads:
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
        **costless: Any,
    ) -> Cost:
        mlp = Mlp.cost(grid[0] * grid[1], embed_dim, hidden_dim) + norm_cost(embed_dim)
        if not num_heads:
            return mlp
        return mlp + norm_cost(embed_dim) + WindowAttention.cost(embed_dim, num_heads, head_dim, grid, window, shifted)


class PatchMerging(nn.Module):
    """Swin's downsampling: the channels of 2 x 2 positions concatenated, a norm, and a linear layer without bias.

    An odd row or column is padded with zeros. The four positions come column by column, as in Swin.

    Args:
        grid: Rows and columns of the input map.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.merge_norm = nn.LayerNorm(4 * in_dim)
        self.reduction = nn.Linear(4 * in_dim, out_dim, bias=False)
        init_weights(self)
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
        rows, columns = half_grid(grid)
        return norm_cost(4 * in_dim) + linear_cost(rows * columns, 4 * in_dim, out_dim, bias=False)
