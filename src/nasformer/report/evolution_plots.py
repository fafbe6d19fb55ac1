"""Small multiples: a panel for each dimension of a space, stages side by side, and a colour for each space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from nasformer.report.anatomy import number_of
from nasformer.report.evolution import Evolution, decided, letter, short_name, split_name
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import format_value
from nasformer.space_search.evolve import Dimension, Step
from nasformer.space_search.shift import is_numeric
from nasformer.utils.figures import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, RED, dress, legend_below, new_figure, plain

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
    axis.set_ticks([places[value] for value in shown], [plain(format_value(value), 12) for value in shown])


def tick_spaces(axes: Any, spaces: int) -> None:
    """The letters of the spaces below a plot."""
    shown = range(0, spaces, -(-spaces // 12))
    axes.set_xticks(list(shown), [letter(number) for number in shown])
    axes.set_xlim(-0.5, spaces - 0.5)


# ----------------------------------------------------------------------------------------------------------------------
# The values of each dimension from space to space: what stays, what is new, and what is left behind.
# ----------------------------------------------------------------------------------------------------------------------

MARKS: dict[str, dict[str, Any]] = {
    "value": {"marker": "o", "s": 30, "facecolor": BLUE, "edgecolor": BLUE},
    "new in this space": {"marker": "D", "s": 32, "facecolor": RED, "edgecolor": RED},
    "left behind by the next": {"marker": "o", "s": 30, "facecolor": "white", "edgecolor": BLUE},
    "new, and left behind again": {"marker": "D", "s": 32, "facecolor": "white", "edgecolor": RED},
    "next space, not judged yet": {"marker": "o", "s": 30, "facecolor": "white", "edgecolor": GREY},
}
LOOK: dict[str, Any] = {"linewidths": 1.4, "zorder": 3}


def choices(evolution: Evolution) -> Figure | None:
    """A panel for each dimension: spaces from left to right, values upwards."""
    if not evolution.names:
        return None
    columns = len(evolution.steps) + evolution.goes_on
    most = max(len(places_of(evolution, name)) for name in evolution.names)
    figure, every = panels(evolution, height=1.35 + 0.06 * min(most, 8))
    used: set[str] = set()
    for name, axes in every.items():
        places = places_of(evolution, name)
        used |= _ladder(axes, evolution, name, places)
        head(axes, name)
        tick_values(axes.yaxis, places)
        tick_spaces(axes, columns)
        axes.margins(y=0.16)
        axes.grid(False, axis="x")
    for kind in (kind for kind in MARKS if kind in used):
        axes.scatter([], [], label=kind, **LOOK, **MARKS[kind])
    legend_below(figure, [axes])
    return figure


def _ladder(axes: Any, evolution: Evolution, name: str, places: dict[Scalar, float]) -> set[str]:
    """A ribbon from the smallest to the largest value, lines along which values move, and the values.

    Gives the kinds of marks that it needed.
    """
    used: set[str] = set()
    found = [(at, one) for at, step in enumerate(evolution.steps) if (one := step.dimensions.get(name))]
    spaces = [(at, one.values) for at, one in found]
    if evolution.goes_on and found and found[-1][0] == len(evolution.steps) - 1:
        spaces.append((len(evolution.steps), found[-1][1].next))
    heights = [[places[value] for value in values] for _, values in spaces]
    x = [at for at, _ in spaces]
    axes.fill_between(x, [min(one) for one in heights], [max(one) for one in heights], color=BLUE, alpha=0.1, lw=0)
    for (here, before), (there, after) in pairwise(spaces):
        for old, new in zip(before, after, strict=False):
            look = {"color": RED, "lw": 1.2} if old != new else {"color": BLUE, "lw": 0.9}
            axes.plot([here, there], [places[old], places[new]], alpha=0.45, zorder=2, **look)
    for place, (at, values) in enumerate(spaces):
        before = spaces[place - 1][1] if place else values
        for value in values:
            kind = kind_of(value, before, found[place][1] if place < len(found) else None)
            axes.scatter([at], [places[value]], **LOOK, **MARKS[kind])
            used.add(kind)
    return used


def kind_of(value: Scalar, before: tuple[Scalar, ...], one: Dimension | None) -> str:
    """Which mark a value gets, by the values that the space before had and the next one has."""
    if one is None:
        return "next space, not judged yet"
    stays, known = value in one.next, value in before
    if known:
        return "value" if stays else "left behind by the next"
    return "new in this space" if stays else "new, and left behind again"


# ----------------------------------------------------------------------------------------------------------------------
# How good the spaces are: their E-T errors one after the other, and the errors of their subnets over each other.
# ----------------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": INK, "zorder": 5}
HALO = [withStroke(linewidth=3, foreground="white")]
LABELLED = 10  # spaces up to which there is room for figures


def space_errors(evolution: Evolution) -> Figure:
    """Expected error, top error and their mean, space by space."""
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    judged = [step.quality for step in evolution.steps]
    x = range(len(judged))
    expected, top, et = ([getattr(one, name) for one in judged] for name in ("expected", "top", "et"))
    axes.fill_between(x, top, expected, color=BLUE, alpha=0.08, lw=0)
    axes.plot(x, expected, color=ORANGE, lw=1.8, marker="^", ms=7, label="expected: mean of all samples")
    axes.plot(x, et, color=BLUE, lw=2.6, marker="o", ms=8, label="E-T error: mean of both", zorder=4)
    axes.plot(x, top, color=GREEN, lw=1.8, marker="v", ms=7, label="top: mean of the best samples")
    for at, values in enumerate(zip(expected, et, top, strict=True)):
        for value in values if len(judged) <= LABELLED else ():
            axes.annotate(f"{value:.2f}", (at, value), (8, 7), path_effects=HALO, **SMALL)
    dress(axes, "space", "error of subnets (%)")
    tick_spaces(axes, len(judged))
    axes.margins(y=0.12)
    legend_below(figure, [axes])
    return figure


def error_distribution(evolution: Evolution) -> Figure | None:
    """The share of the sampled subnets with an error up to x, for all spaces: the further left, the better."""
    known = [step.errors for step in evolution.steps if step.errors]
    if not known:
        return None
    figure = new_figure(8, 4.8)
    axes = figure.subplots()
    low, high = min(errors[0] for errors in known), max(errors[-1] for errors in known)
    room = 0.03 * (high - low) or 1.0
    for number, (step, colour) in enumerate(zip(evolution.steps, colours_of(len(evolution.steps)), strict=True)):
        if step.errors:
            x, share = np.array(step.errors), 100 * np.arange(1, len(step.errors) + 1) / len(step.errors)
            label = f"{letter(number)}: {len(x):,} subnets, median {np.median(x):.2f} %"
            stairs = np.r_[low - room, x, high + room], np.r_[0, share, 100]
            axes.step(*stairs, where="post", color=colour, lw=2.2, label=label)
    dress(axes, "error of a subnet (%)", "subnets with at most this error (%)")
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(0, 102)
    legend_below(figure, [axes])
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# Where each dimension wants to go: the E-T error of its values, and the line that was fitted through them.
#
# Shown are differences to the E-T error of the whole space: spaces differ by more than the values within one, and so
# all panels can share an axis on which slopes compare.
# ----------------------------------------------------------------------------------------------------------------------

Point = tuple[int, Scalar, float, float]
"""Place of the value, the value, its count, its E-T error."""
Ends = tuple[float, float]


def tendencies(evolution: Evolution) -> Figure | None:
    """A panel for each dimension, with points and lines of all spaces and, above, slopes and what was decided."""
    if not evolution.names:
        return None
    count = len(evolution.steps)
    figure, every = panels(evolution, height=1.75 + 0.135 * count, sharey=True)
    ends, colours = ends_of(evolution), colours_of(count)
    for name, axes in every.items():
        place, places = evolution.names.index(name), places_of(evolution, name)
        lines = []
        for number, step in enumerate(evolution.steps):
            if one := step.dimensions.get(name):
                _space(axes, evolution, number, place, one, places, ends, colours[number])
                lines.append((f"{letter(number)}  {decided(one, evolution.is_final(number))}", colours[number]))
        head(axes, name, lines)
        tick_values(axes.xaxis, places)
        axes.axhline(0, color=GREY, lw=0.9, ls=(0, (4, 3)), zorder=1)
        axes.set_xlim(*_wider(min(places.values()), max(places.values()), 0.12))
        axes.set_ylim(*ends)
    figure.supylabel("E-T error − that of the space (%)", fontsize=9.5, color=INK)
    return figure


def points(one: Dimension) -> Iterator[Point]:
    """The values that any sample has."""
    for place, (value, count, et) in enumerate(zip(one.values, one.counts, one.et, strict=True)):
        if et is not None and count > 0:
            yield place, value, count, et


def ends_of(evolution: Evolution) -> Ends:
    """The axis that all panels share: room for every point that has a part in a fit, others stand at its edge."""
    known = [
        et - step.quality.et
        for step in evolution.steps
        for one in step.dimensions.values()
        for _, _, count, et in points(one)
        if one.slope is None or count >= evolution.least
    ]
    return _wider(min(known, default=0.0), max(known, default=0.0), 0.15)


def _wider(low: float, high: float, share: float) -> Ends:
    room = share * (high - low) or 0.5
    return low - room, high + room


def _space(
    axes: Any,
    evolution: Evolution,
    number: int,
    place: int,
    one: Dimension,
    places: dict[Scalar, float],
    ends: Ends,
    colour: str,
) -> None:
    """The points of a space, larger where more samples stand behind them, and its line."""
    step = evolution.steps[number]
    shown = list(points(one))
    samples = max(len(step.errors), 1)
    dots = axes.scatter(
        [places[value] for _, value, _, _ in shown],
        np.clip([et - step.quality.et for _, _, _, et in shown], *ends),
        s=[14 + 110 * min(count / samples, 1.0) for _, _, count, _ in shown],
        facecolors=[colour if count >= evolution.least else "white" for _, _, count, _ in shown],
        edgecolors=colour,
        alpha=0.8,
        linewidths=1.0,
        zorder=3,
        clip_on=False,
    )
    dots.set_urls([f"#{dot_name(number, place, column)}" for column, *_ in shown])
    if one.slope is not None and one.intercept is not None and one.step and is_numeric(one.values):
        _line(axes, step, one, shown, colour)


def _line(axes: Any, step: Step, one: Dimension, shown: list[Point], colour: str) -> None:
    """The fitted line, and in pale how much steeper or flatter it may be by its standard error."""
    slope, intercept, unit, error = one.slope or 0.0, one.intercept or 0.0, one.step or 1.0, one.stderr or 0.0
    x = np.array([min(one.values), max(one.values)], dtype=float)  # type: ignore[type-var]
    y = slope * x / unit + intercept - step.quality.et
    axes.plot(x, y, color=colour, lw=1.8, zorder=2)
    counts = np.array([count for _, _, count, _ in shown])
    middle = float((counts * np.array([value for _, value, _, _ in shown], dtype=float)).sum() / counts.sum())
    fine = np.linspace(x[0], x[1], 21)
    line, away = np.interp(fine, x, y), error * np.abs(fine - middle) / unit
    axes.fill_between(fine, line - away, line + away, color=colour, alpha=0.13, lw=0, zorder=1)


def dot_name(number: int, place: int, column: int) -> str:
    return f"value-{number}-{place}-{column}"


def dots(evolution: Evolution) -> dict[str, str]:
    """What the points of `tendencies` tell."""
    told = {}
    for place, name in enumerate(evolution.names):
        for number, step in enumerate(evolution.steps):
            if one := step.dimensions.get(name):
                for column, value, count, et in points(one):
                    told[dot_name(number, place, column)] = (
                        f"space {letter(number)} · {name} = {format_value(value)}\n"
                        f"E-T error {et:.2f} % · {count:.4g} of {len(step.errors):,} samples\n"
                        f"{decided(one, evolution.is_final(number))}"
                    )
    return told
