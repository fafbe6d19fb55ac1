"""Small multiples: a panel for each dimension of a space, stages side by side, and a colour for each space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from nasformer.evolving.shifting import is_numeric
from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.words import letter, short_name, split_name
from nasformer.report.stages import number_of
from nasformer.report.style import INK, PALETTE, dress, new_figure, plain
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import written

IN_A_ROW = 4  # panels of dimensions that belong to no stage
TICKS = 8  # values that find room at an axis
Row = list[str | None]


def colours_of(spaces: int) -> list[str]:
    """A colour for each space; of many, from early (dark) to late (light)."""
    if spaces <= len(PALETTE):
        return list(PALETTE[:spaces])
    return [to_hex(colormaps["viridis"](0.92 * place / (spaces - 1))) for place in range(spaces)]


def dark(colour: str) -> str:
    """Mixed with ink, so that small letters can be read."""
    return to_hex([0.65 * part + 0.35 * ink for part, ink in zip(to_rgb(colour), to_rgb(INK), strict=True)])


def rows_of(names: Sequence[str]) -> list[Row]:
    """Dimensions without a stage a few in a row; the others by what they decide, a column for each stage.

    >>> rows_of(["width", "stage1.depth", "stage1.blocks.heads", "stage2.depth"])
    [['width', None], ['stage1.depth', 'stage2.depth'], ['stage1.blocks.heads', None]]
    """
    placed = {split_name(name): name for name in names}
    stages = sorted({stage for stage, _ in placed if stage}, key=number_of)
    alone = [name for name in names if not split_name(name)[0]]
    columns = max(len(stages), min(len(alone), IN_A_ROW if not stages else len(stages)))
    rows: list[Row] = [list(alone[at : at + columns]) for at in range(0, len(alone), columns)] if columns else []
    kinds = dict.fromkeys(rest for stage, rest in placed if stage)
    rows += [[placed.get((stage, kind)) for stage in stages] for kind in kinds]
    return [row + [None] * (columns - len(row)) for row in rows]


def panels(evolution: Evolution, height: float, sharey: bool = False) -> tuple[Figure, dict[str, Any]]:
    """A figure with axes for each dimension, by its name; the height is that of a panel, in inches."""
    rows = rows_of(evolution.names)
    figure = new_figure(0.6 + 2.5 * max(len(rows[0]), 2), 0.7 + height * len(rows))
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.07)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False, sharey=sharey)
    placed: dict[str, Any] = {}
    for axes, name in zip(grid.flat, [name for row in rows for name in row], strict=True):
        axes.set_visible(name is not None)
        if name is not None:
            dress(axes)
            axes.tick_params(labelsize=8)
            placed[name] = axes
    for row in rows:  # of axes that are shared only the first has numbers, which may be one that is not there
        first = next(name for name in row if name)
        placed[first].tick_params(labelleft=True)
    return figure, placed


def head(axes: Any, name: str, lines: Sequence[tuple[str, str]] = ()) -> None:
    """The panel's title, above lines of small text in colours of their own."""
    for above, (text, colour) in enumerate(reversed(lines)):
        place = {"xy": (0, 1), "xytext": (0, 4 + 9.5 * above), "xycoords": "axes fraction"}
        axes.annotate(plain(text, 46), **place, textcoords="offset points", fontsize=7, color=dark(colour), va="bottom")
    style: dict[str, Any] = {"fontsize": 9.5, "color": INK, "fontweight": "bold"}
    axes.set_title(plain(short_name(name), 36), loc="left", pad=8 + 9.5 * len(lines), **style)


def places_of(evolution: Evolution, name: str) -> dict[Scalar, float]:
    """Where each value of a dimension stands on an axis: numbers at themselves, others one after the other."""
    found = [one for step in evolution.steps if (one := step.dimensions.get(name))]
    values = list(dict.fromkeys(value for one in found for value in (*one.values, *one.next)))
    if is_numeric(values):
        return {value: float(value) for value in sorted(values)}
    return {value: float(place) for place, value in enumerate(values)}


def tick_values(axis: Any, places: dict[Scalar, float]) -> None:
    """Ticks at the values themselves; at every second or third, where there are many."""
    shown = list(places)[:: -(-len(places) // TICKS)]
    axis.set_ticks([places[value] for value in shown], [plain(written(value), 12) for value in shown])


def tick_spaces(axes: Any, spaces: int) -> None:
    """The letters of the spaces below a plot."""
    shown = range(0, spaces, -(-spaces // 12))
    axes.set_xticks(list(shown), [letter(number) for number in shown])
    axes.set_xlim(-0.5, spaces - 0.5)
