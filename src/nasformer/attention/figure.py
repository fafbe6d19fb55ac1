"""A figure of a block's attention: the image, the attention of each head on it, and the similarity of the heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from nasformer.attention.maps import AttentionMaps, Query
from nasformer.layers.stem import Grid
from nasformer.utils.figures import BLUES, GREY, INK, RED, new_figure, plain

COLUMNS = 5  # most maps beside each other
PANEL = 1.5  # inches of a map, its title included
NUMBERED = 12  # heads up to which the similarities stand in the cells
MAX_OPACITY = 0.85  # of the colour over the image, at the largest weight


def attention_figure(maps: AttentionMaps, image: Tensor, query: Query) -> Figure:
    """The maps of the first image for a query, marked with +, each on its own scale; beside them the similarities.

    Args:
        image: [channels, rows, columns] in 0..1.
    """
    heads = maps.of(query)[0].cpu().numpy()
    columns = min(COLUMNS, len(heads) + 1)
    rows = -(-(len(heads) + 1) // columns)
    matrix = min(0.28 * len(heads) + 1.2, 5.0)
    figure = new_figure(PANEL * columns + matrix + 0.3, max(PANEL * rows * 1.15, matrix) + 0.7)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(PANEL * columns, matrix + 0.3)).flat
    panels = left.subplots(rows, columns, squeeze=False).flat
    draw_image(panels[0], grey(image), maps.grid, query, "image")
    for axes, head, weights in zip(panels[1:], maps.heads, heads, strict=False):
        draw_image(axes, grey(image), maps.grid, query, f"{head} · {weights.max():.2f}")
        axes.imshow(tinted(weights), extent=extent(maps.grid), interpolation="nearest", zorder=2)
    for axes in panels:
        axes.set_axis_off()
    draw_similarity(right.subplots(), maps)
    figure.suptitle(plain(title(maps, query)), color=INK, fontsize=11)
    return figure


def title(maps: AttentionMaps, query: Query) -> str:
    source = "the class token" if query == "cls" else f"row {query[0]}, column {query[1]}"
    return f"block {maps.block}: where each head looks from {source} (head · its largest weight)"


def draw_image(axes: Any, image: np.ndarray, grid: Grid, query: Query, name: str) -> None:
    """The image in grey with a + at the query."""
    axes.imshow(image, extent=extent(grid), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(plain(name), color=INK, fontsize=9, pad=3)
    if query != "cls":
        row, column = query
        rim = [withStroke(linewidth=3.2, foreground="white")]
        axes.plot([column], [row], "+", ms=9, mew=1.6, color=INK, path_effects=rim, zorder=3, clip_on=False)


def extent(grid: Grid) -> tuple[float, float, float, float]:
    """Left, right, bottom and top: the middle of a position is at its column and row."""
    return -0.5, grid[1] - 0.5, grid[0] - 0.5, -0.5


def grey(image: Tensor) -> np.ndarray:
    """The image without colour and pale, so that what lies over it is seen: colour means attention."""
    colours = image[:3] if image.shape[0] > 2 else image[:1]
    return 0.35 + 0.65 * colours.mean(0).cpu().numpy()


def tinted(weights: np.ndarray) -> np.ndarray:
    """A colour whose opacity goes by the weight."""
    layer = np.empty((*weights.shape, 4))
    layer[..., :3] = to_rgb(RED)
    layer[..., 3] = MAX_OPACITY * weights / max(weights.max(), 1e-12)
    return layer


def draw_similarity(axes: Any, maps: AttentionMaps) -> None:
    matrix, size = maps.similarity().cpu().numpy(), len(maps.heads)
    axes.imshow(matrix, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    names = [plain(str(head)) for head in maps.heads]
    axes.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(size), names)
    axes.tick_params(colors=GREY, labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    mean = maps.mean_similarity()
    title = "similarity of heads" + ("" if mean is None else f", mean {mean:.2f}")
    axes.set_title(title, color=INK, fontsize=9, pad=6)
    if size <= NUMBERED:
        for (row, column), value in np.ndenumerate(matrix):
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if value > 0.4 else INK}
            axes.text(column, row, f"{value:.2f}", **style)
