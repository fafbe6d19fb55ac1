"""Windows and tiles alone, on maps that fit badly, against the same written out position by position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attention.formulas import output_by_formula, weights_on_map
from families.small import randomise
from nasformer.layers.resnet import LocalOperator
from nasformer.layers.stem import Grid
from nasformer.layers.window import FAR, WindowAttention


def window_layer(grid: Grid, window: int, shifted: bool) -> WindowAttention:
    torch.manual_seed(0)
    return randomise(WindowAttention(6, 2, 4, grid, window, shifted)).eval()


@pytest.mark.parametrize("grid", [(8, 8), (6, 5), (4, 10), (9, 3)])
@pytest.mark.parametrize("shifted", [False, True])
@torch.no_grad()
def test_windows_by_hand(grid: Grid, shifted: bool) -> None:
    """Position by position, as Swin describes it: rolled by half a window, padded, cut, far ends kept apart."""
    layer, x = window_layer(grid, 4, shifted), torch.randn(1, *grid, 6)
    found = weights_on_map(layer, x, grid)[0]
    sides = [-(-side // window) * window for side, window in zip(grid, layer.window, strict=True)]
    cells = [(row, column) for row in range(sides[0]) for column in range(sides[1])]  # of the rolled and padded map
    q, k, _ = layer.qkv(torch.stack([source(x[0], cell, layer) for cell in cells])).unflatten(1, (3, 2, 4)).unbind(1)
    expected = torch.zeros_like(found)
    for i, cell in enumerate(cells):
        others = [j for j, other in enumerate(cells) if window_of(other, layer) == window_of(cell, layer)]
        for head in range(2):
            logits = [q[i, head] @ k[j, head] / 2 + bias(layer, head, cell, cells[j], sides) for j in others]
            for j, weight in zip(others, torch.stack(logits).softmax(0), strict=True):
                expected[head, place(cell, layer), place(cells[j], layer)] += weight
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], rtol=1e-4, atol=1e-6)
    padded = sides != list(grid)
    assert (found[:, 1:, 0].max() > 0) == padded


def source(x: Tensor, cell: Grid, layer: WindowAttention) -> Tensor:
    number = place(cell, layer)
    return x.flatten(0, 1)[number - 1] if number else torch.zeros(x.shape[2])


def place(cell: Grid, layer: WindowAttention) -> int:
    """The number of the position that was rolled into a cell; 0 if the cell is padding."""
    if any(at >= side for at, side in zip(cell, layer.grid, strict=True)):
        return 0
    row, column = ((at + step) % side for at, step, side in zip(cell, layer.shift, layer.grid, strict=True))
    return 1 + row * layer.grid[1] + column


def window_of(cell: Grid, layer: WindowAttention) -> list[int]:
    return [at // side for at, side in zip(cell, layer.window, strict=True)]


def bias(layer: WindowAttention, head: int, cell: Grid, other: Grid, sides: list[int]) -> Tensor:
    rows, columns = (a - b + side - 1 for a, b, side in zip(cell, other, layer.window, strict=True))
    apart = any(
        (a >= side - step) != (b >= side - step)
        for a, b, side, step in zip(cell, other, sides, layer.shift, strict=True)
    )
    return layer.positions[head, rows, columns] + FAR * apart


@pytest.mark.parametrize("grid", [(9, 7), (4, 4), (13, 13), (1, 5)])
@pytest.mark.parametrize("rounded", [False, True])
@torch.no_grad()
def test_local_attention_stays_in_its_window(grid: Grid, rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where head dimensions are rounded up, as a GPU wants them."""
    if rounded:
        monkeypatch.setattr("nasformer.layers.resnet._missing_channels", lambda x: -x.shape[2] % 8)
    torch.manual_seed(0)
    layer = LocalOperator(4, grid, stride=1, query_dim=4, value_dim=6, num_heads=2, window=3).eval()
    x = torch.randn(2, 4, *grid)
    found = weights_on_map(layer, x, grid)
    torch.testing.assert_close(output_by_formula(layer, found, x, grid), layer(x), rtol=1e-4, atol=1e-5)
    rows, columns = (part.flatten() for part in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
    near = ((rows - rows[:, None]).abs() <= 1) & ((columns - columns[:, None]).abs() <= 1)
    assert torch.equal(found[:, :, 1:, 1:] > 0, near.expand_as(found[:, :, 1:, 1:]))
    assert not found[:, :, 1:, 0].any()
