"""Report of the search of a search space: errors of the spaces, shifts of their choices, and the reasons.

Spaces are called A, B, C ... in the order of the evolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from nasformer.report.architectures import BLOCKS, stage_number, stage_of
from nasformer.report.html import (
    Picture,
    document,
    figures,
    folded,
    heading,
    note,
    page_title,
    save_pictures,
    settings_tables,
    tiles,
)
from nasformer.report.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    RED,
    join_words,
    legend_below,
    new_figure,
    plain,
    style_axes,
)
from nasformer.results.folder import RunFolder
from nasformer.space.dimensions import format_value
from nasformer.space.nodes import Scalar
from nasformer.space_search import Dimension, Evolution, Step, is_numeric, read_evolution
from nasformer.utils.files import write_text
from nasformer.utils.tables import html_row, html_table, write_csv

# The figures of the search of a search space, and the words that they share with its page.
#
# Errors of the spaces are plain plots. Choices and tendencies are small multiples: a panel for each dimension, stages
# side by side, and a colour for each space.


# Words

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(number: int) -> str:
    """The name of a space by its number: A, B ... Z, A1, B1 ...

    >>> letter(0), letter(2), letter(27)
    ('A', 'C', 'B1')
    """
    turn, index = divmod(number, len(ALPHABET))
    return f"{ALPHABET[index]}{turn or ''}"


def split_name(name: str) -> tuple[str, str]:
    """The stage of a dimension, if it has one, and the rest of its name without "blocks".

    >>> split_name("stage3.blocks.num_heads"), split_name("depth.stage1"), split_name("blocks.mlp_ratio")
    (('stage3', 'num_heads'), ('stage1', 'depth'), ('', 'mlp_ratio'))
    """
    parts = name.split(".")
    stage = stage_of(parts)
    return stage, ".".join(part for part in parts if part not in (stage, BLOCKS)) or name


def short_name(name: str) -> str:
    """The name of a dimension as panels and tables show it.

    >>> short_name("stage3.blocks.num_heads"), short_name("embed_dim")
    ('stage 3: num_heads', 'embed_dim')
    """
    stage, rest = split_name(name)
    return f"stage {stage_number(stage)}: {rest}" if stage else rest


def signed(number: float) -> str:
    """A number with its sign, a typographic minus.

    >>> signed(0.1234), signed(-2), signed(-0.001)
    ('+0.12', '−2.00', '0.00')
    """
    shown = f"{number:+.2f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def format_slope(dimension: Dimension) -> str:
    """Slope and standard error; empty where no line was fitted.

    >>> format_slope(Dimension((1, 2), (5, 5), (30.0, 29.5), slope=-0.5, stderr=0.125))
    '−0.50 ± 0.12'
    """
    if dimension.slope is None:
        return ""
    return signed(dimension.slope) + ("" if dimension.stderr is None else f" ± {dimension.stderr:.2f}")


def format_shift(dimension: Dimension, last: bool) -> str:
    """The shift of the values in words; empty where a notice explains it.

    >>> format_shift(Dimension((1, 2), (5, 5), (30.0, 29.5), slope=-0.5, stderr=0.1, shift=1), last=False)
    'up 1 step'
    """
    if dimension.shift:
        steps = abs(dimension.shift)
        return f"{'up' if dimension.shift > 0 else 'down'} {steps} step{'s' * (steps > 1)}"
    return "" if last or dimension.slope is None or dimension.notice else "stays"


def decision(dimension: Dimension, last: bool) -> str:
    """Slope, shift and notice of a dimension on one line.

    >>> stuck = Dimension((1, 2), (5, 5), (30.0, 31.0), slope=1.0, stderr=0.25, notice="kept at 1 or more")
    >>> decision(stuck, last=False)
    '+1.00 ± 0.25, kept at 1 or more'
    """
    return ", ".join(filter(None, (format_slope(dimension), format_shift(dimension, last), dimension.notice)))


# Errors of the spaces

HALO = [withStroke(linewidth=3, foreground="white")]
LABELLED = 10  # spaces up to which there is room for numbers


def space_errors(evolution: Evolution) -> Figure:
    """Expected error, top error and their mean, space by space."""
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    spaces = range(len(evolution.steps))
    errors = [step.error for step in evolution.steps]
    expected, top, et = [e.expected for e in errors], [e.top for e in errors], [e.et for e in errors]
    axes.fill_between(spaces, top, expected, color=BLUE, alpha=0.08, lw=0)
    axes.plot(spaces, expected, color=ORANGE, lw=1.8, marker="^", ms=7, label="expected: mean of all samples")
    axes.plot(spaces, et, color=BLUE, lw=2.6, marker="o", ms=8, label="E-T error: mean of both", zorder=4)
    axes.plot(spaces, top, color=GREEN, lw=1.8, marker="v", ms=7, label="top: mean of the best samples")
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": INK, "zorder": 5}
    for space, heights in enumerate(zip(expected, et, top, strict=True)):
        for error in heights if len(spaces) <= LABELLED else ():
            axes.annotate(f"{error:.2f}", (space, error), (8, 7), path_effects=HALO, **style)
    style_axes(axes, "space", "error of subnets (%)")
    tick_spaces(axes, len(spaces))
    axes.margins(y=0.12)
    legend_below(figure, [axes])
    return figure


def error_distribution(evolution: Evolution) -> Figure | None:
    """The share of the sampled subnets with an error up to x, for all spaces: the further left, the better."""
    errors_of_spaces = [step.errors for step in evolution.steps if step.errors]
    if not errors_of_spaces:
        return None
    figure = new_figure(8, 4.8)
    axes = figure.subplots()
    low, high = min(errors[0] for errors in errors_of_spaces), max(errors[-1] for errors in errors_of_spaces)
    room = 0.03 * (high - low) or 1.0
    for number, (step, colour) in enumerate(zip(evolution.steps, space_colours(len(evolution.steps)), strict=True)):
        if step.errors:
            x, share = np.array(step.errors), 100 * np.arange(1, len(step.errors) + 1) / len(step.errors)
            label = f"{letter(number)}: {len(x):,} subnets, median {np.median(x):.2f} %"
            stairs = np.r_[low - room, x, high + room], np.r_[0, share, 100]
            axes.step(*stairs, where="post", color=colour, lw=2.2, label=label)
    style_axes(axes, "error of a subnet (%)", "subnets with at most this error (%)")
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(0, 102)
    legend_below(figure, [axes])
    return figure


def space_colours(spaces: int) -> list[str]:
    """A colour for each space; of many, from early (dark) to late (light)."""
    if spaces <= len(PALETTE):
        return list(PALETTE[:spaces])
    return [to_hex(colormaps["viridis"](0.92 * index / (spaces - 1))) for index in range(spaces)]


def tick_spaces(axes: Axes, spaces: int) -> None:
    """The letters of the spaces below a plot."""
    shown = range(0, spaces, -(-spaces // 12))
    axes.set_xticks(list(shown), [letter(number) for number in shown])
    axes.set_xlim(-0.5, spaces - 0.5)


# A panel for each dimension

PANELS = 4  # in a row, of dimensions that belong to no stage
TICKS = 8  # values at an axis


def dimension_grid(names: Sequence[str]) -> list[list[str | None]]:
    """Dimensions without a stage a few in a row; the others by their name, a column for each stage.

    >>> dimension_grid(["width", "stage1.depth", "stage1.blocks.heads", "stage2.depth"])
    [['width', None], ['stage1.depth', 'stage2.depth'], ['stage1.blocks.heads', None]]
    """
    by_stage = {split_name(name): name for name in names}
    stages = sorted({stage for stage, _ in by_stage if stage}, key=stage_number)
    alone = [name for name in names if not split_name(name)[0]]
    columns = len(stages) or min(len(alone), PANELS)
    rows: list[list[str | None]] = [list(alone[at : at + columns]) for at in range(0, len(alone), columns or 1)]
    kinds = dict.fromkeys(rest for stage, rest in by_stage if stage)
    rows += [[by_stage.get((stage, kind)) for stage in stages] for kind in kinds]
    return [row + [None] * (columns - len(row)) for row in rows]


def dimension_panels(evolution: Evolution, height: float, sharey: bool = False) -> tuple[Figure, dict[str, Any]]:
    """A figure with axes for each dimension, by its name; `height` is that of a panel in inches."""
    rows = dimension_grid(evolution.dimensions)
    figure = new_figure(0.6 + 2.5 * max(len(rows[0]), 2), 0.7 + height * len(rows))
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.07)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False, sharey=sharey)
    panels: dict[str, Any] = {}
    for axes, name in zip(grid.flat, [name for row in rows for name in row], strict=True):
        axes.set_visible(name is not None)
        if name is not None:
            style_axes(axes)
            axes.tick_params(labelsize=8)
            panels[name] = axes
    for row in rows:  # of axes that are shared only the first has numbers, which may be one that is not there
        first = next(name for name in row if name)
        panels[first].tick_params(labelleft=True)
    return figure, panels


def title_panel(axes: Axes, name: str, lines: Sequence[tuple[str, str]] = ()) -> None:
    """The name of the dimension above lines of small text, each in its colour."""
    for above, (text, colour) in enumerate(reversed(lines)):
        anchor: dict[str, Any] = {"xy": (0, 1), "xytext": (0, 4 + 9.5 * above), "xycoords": "axes fraction"}
        style: dict[str, Any] = {"fontsize": 7, "color": darker(colour), "va": "bottom"}
        axes.annotate(plain(text, 46), **anchor, textcoords="offset points", **style)
    pad = 8 + 9.5 * len(lines)
    axes.set_title(plain(short_name(name), 36), loc="left", pad=pad, fontsize=9.5, color=INK, fontweight="bold")


def darker(colour: str) -> str:
    """The colour mixed with ink, so that small letters can be read."""
    return to_hex([0.65 * part + 0.35 * ink for part, ink in zip(to_rgb(colour), to_rgb(INK), strict=True)])


def value_positions(evolution: Evolution, name: str) -> dict[Scalar, float]:
    """Where each value of a dimension stands on an axis: numbers at themselves, others one after the other."""
    steps = [step.dimensions[name] for step in evolution.steps if name in step.dimensions]
    values = list(dict.fromkeys(value for dimension in steps for value in (*dimension.values, *dimension.next)))
    if is_numeric(values):
        return {value: float(value) for value in sorted(values)}
    return {value: float(index) for index, value in enumerate(values)}


def tick_values(axis: Axis, positions: dict[Scalar, float]) -> None:
    """Ticks at the values themselves; at every second or third, where there are many."""
    shown = list(positions)[:: -(-len(positions) // TICKS)]
    axis.set_ticks([positions[value] for value in shown], [plain(format_value(value), 12) for value in shown])


# The values of each dimension from space to space

MARKS: dict[str, dict[str, Any]] = {
    "value": {"marker": "o", "s": 30, "facecolor": BLUE, "edgecolor": BLUE},
    "new in this space": {"marker": "D", "s": 32, "facecolor": RED, "edgecolor": RED},
    "dropped by the next": {"marker": "o", "s": 30, "facecolor": "white", "edgecolor": BLUE},
    "new, and dropped by the next": {"marker": "D", "s": 32, "facecolor": "white", "edgecolor": RED},
    "next space, not judged yet": {"marker": "o", "s": 30, "facecolor": "white", "edgecolor": GREY},
}
MARK_STYLE: dict[str, Any] = {"linewidths": 1.4, "zorder": 3}


def choices(evolution: Evolution) -> Figure | None:
    """A panel for each dimension: spaces from left to right, values upwards."""
    if not evolution.dimensions:
        return None
    most = max(len(value_positions(evolution, name)) for name in evolution.dimensions)
    figure, panels = dimension_panels(evolution, height=1.35 + 0.06 * min(most, 8))
    used: set[str] = set()
    for name, axes in panels.items():
        positions = value_positions(evolution, name)
        used |= draw_choices(axes, evolution, name, positions)
        title_panel(axes, name)
        tick_values(axes.yaxis, positions)
        tick_spaces(axes, len(evolution.steps) + evolution.unfinished)
        axes.margins(y=0.16)
        axes.grid(False, axis="x")
    for kind in (kind for kind in MARKS if kind in used):
        axes.scatter([], [], label=kind, **MARK_STYLE, **MARKS[kind])
    legend_below(figure, [axes])
    return figure


def draw_choices(axes: Axes, evolution: Evolution, name: str, positions: dict[Scalar, float]) -> set[str]:
    """A band from the smallest to the largest value, lines along which values move, and a mark for each value.

    Gives the kinds of marks that are used.
    """
    steps = [(at, step.dimensions[name]) for at, step in enumerate(evolution.steps) if name in step.dimensions]
    spaces = [(at, dimension.values) for at, dimension in steps]
    if evolution.unfinished and steps and steps[-1][0] == len(evolution.steps) - 1:
        spaces.append((len(evolution.steps), steps[-1][1].next))
    heights = [[positions[value] for value in values] for _, values in spaces]
    x = [at for at, _ in spaces]
    axes.fill_between(x, list(map(min, heights)), list(map(max, heights)), color=BLUE, alpha=0.1, lw=0)
    for (here, before), (there, after) in pairwise(spaces):
        for old, new in zip(before, after, strict=False):
            style: dict[str, Any] = {"color": RED, "lw": 1.2} if old != new else {"color": BLUE, "lw": 0.9}
            axes.plot([here, there], [positions[old], positions[new]], alpha=0.45, zorder=2, **style)
    used: set[str] = set()
    for number, (at, values) in enumerate(spaces):
        before = spaces[number - 1][1] if number else values
        for value in values:
            kind = mark_kind(value, before, steps[number][1] if number < len(steps) else None)
            axes.scatter([at], [positions[value]], **MARK_STYLE, **MARKS[kind])
            used.add(kind)
    return used


def mark_kind(value: Scalar, before: tuple[Scalar, ...], dimension: Dimension | None) -> str:
    """Which mark a value gets, by the values that the space before had and the next one has."""
    if dimension is None:
        return "next space, not judged yet"
    stays = value in dimension.next
    if value in before:
        return "value" if stays else "dropped by the next"
    return "new in this space" if stays else "new, and dropped by the next"


# The E-T errors of each dimension's values and the fitted line. Shown are differences to the E-T error of the whole
# space: spaces differ by more than the values within one, and so all panels can share an axis on which slopes compare.

Point = tuple[int, Scalar, float, float]
"""Number of the value, the value, its count, its E-T error."""
Ends = tuple[float, float]


def tendencies(evolution: Evolution) -> Figure | None:
    """A panel for each dimension: points and lines of all spaces below slopes and decisions."""
    if not evolution.dimensions:
        return None
    count = len(evolution.steps)
    figure, panels = dimension_panels(evolution, height=1.75 + 0.135 * count, sharey=True)
    ends, colours = error_range(evolution), space_colours(count)
    for name, axes in panels.items():
        positions, lines = value_positions(evolution, name), []
        for number, step in enumerate(evolution.steps):
            if dimension := step.dimensions.get(name):
                draw_points(axes, evolution, number, name, positions, ends, colours[number])
                draw_line(axes, step, dimension, colours[number])
                text = f"{letter(number)}  {decision(dimension, evolution.is_last(number))}"
                lines.append((text, colours[number]))
        title_panel(axes, name, lines)
        tick_values(axes.xaxis, positions)
        axes.axhline(0, color=GREY, lw=0.9, ls=(0, (4, 3)), zorder=1)
        axes.set_xlim(*widened(min(positions.values()), max(positions.values()), 0.12))
        axes.set_ylim(*ends)
    figure.supylabel("E-T error − that of the space (%)", fontsize=9.5, color=INK)
    return figure


def value_points(dimension: Dimension) -> Iterator[Point]:
    """The values that any sample has."""
    rows = zip(dimension.values, dimension.counts, dimension.et, strict=True)
    for number, (value, count, et) in enumerate(rows):
        if et is not None and count > 0:
            yield number, value, count, et


def error_range(evolution: Evolution) -> Ends:
    """The axis that all panels share: room for every point that has a part in a fit, others stand at its edge."""
    differences = [
        et - step.error.et
        for step in evolution.steps
        for dimension in step.dimensions.values()
        for _, _, count, et in value_points(dimension)
        if dimension.slope is None or count >= evolution.min_samples
    ]
    return widened(min(differences, default=0.0), max(differences, default=0.0), 0.15)


def widened(low: float, high: float, share: float) -> Ends:
    room = share * (high - low) or 0.5
    return low - room, high + room


def draw_points(
    axes: Axes, evolution: Evolution, number: int, name: str, positions: dict[Scalar, float], ends: Ends, colour: str
) -> None:
    """The values of a dimension in a space, larger where more samples have them."""
    step = evolution.steps[number]
    points, samples = list(value_points(step.dimensions[name])), max(len(step.errors), 1)
    x, y = [positions[value] for _, value, _, _ in points], np.clip([et - step.error.et for *_, et in points], *ends)
    sizes = [14 + 110 * min(count / samples, 1.0) for _, _, count, _ in points]
    faces = [colour if count >= evolution.min_samples else "white" for _, _, count, _ in points]
    style: dict[str, Any] = {"edgecolors": colour, "alpha": 0.8, "linewidths": 1.0, "zorder": 3, "clip_on": False}
    dots = axes.scatter(x, y, s=sizes, facecolors=faces, **style)
    dots.set_urls([f"#{dot_name(evolution, number, name, column)}" for column, *_ in points])


def draw_line(axes: Axes, step: Step, dimension: Dimension, colour: str) -> None:
    """The fitted line, and in pale how much steeper or flatter it may be by its standard error."""
    slope, intercept, unit = dimension.slope, dimension.intercept, dimension.step
    if slope is None or intercept is None or not unit or not is_numeric(dimension.values):
        return
    x = np.array([min(dimension.values), max(dimension.values)], dtype=float)  # type: ignore[type-var]
    y = slope * x / unit + intercept - step.error.et
    axes.plot(x, y, color=colour, lw=1.8, zorder=2)
    points = list(value_points(dimension))
    counts, values = (np.array([point[index] for point in points], dtype=float) for index in (2, 1))
    middle = (counts * values).sum() / counts.sum()
    fine = np.linspace(x[0], x[1], 21)
    line, away = np.interp(fine, x, y), (dimension.stderr or 0.0) * np.abs(fine - middle) / unit
    axes.fill_between(fine, line - away, line + away, color=colour, alpha=0.13, lw=0, zorder=1)


def dot_name(evolution: Evolution, number: int, name: str, column: int) -> str:
    return f"value-{number}-{evolution.dimensions.index(name)}-{column}"


def tendency_tooltips(evolution: Evolution) -> dict[str, str]:
    """The tooltips of `tendencies` by the name of the dot."""
    tooltips = {}
    for number, step in enumerate(evolution.steps):
        for name, dimension in step.dimensions.items():
            for column, value, count, et in value_points(dimension):
                tooltips[dot_name(evolution, number, name, column)] = (
                    f"space {letter(number)} · {name} = {format_value(value)}\n"
                    f"E-T error {et:.2f} % · {count:.4g} of {len(step.errors):,} samples\n"
                    f"{decision(dimension, evolution.is_last(number))}"
                )
    return tooltips


FIGURES: dict[str, Callable[[Evolution], Figure | None]] = {
    "space_errors": space_errors,
    "error_distribution": error_distribution,
    "choices": choices,
    "tendencies": tendencies,
}


SPACES = ("name", "space", "cardinality", "samples", "expected", "top", "et", "whole", "part", "fresh", "notices")
DIMENSIONS = ("name", "dimension", "values", "counts", "et", "slope", "stderr", "intercept", "step", "shift", "next")
CARRIED = (
    " Supernets after the first start with the weights of the one before, so a later space has been trained for "
    "longer: what it gains is not due to its choices alone."
)
CAPTIONS = {
    "space_errors": (
        "Errors of the spaces",
        "Errors of random subnets within the budget, with the weights of their supernet: of all of them (expected), of "
        "the best of them (top), and the mean of both, the E-T error by which a space is judged.",
    ),
    "error_distribution": (
        "Distribution of the errors",
        "The share of a space's sampled subnets that have at most this error: a curve further to the upper left is a "
        "better space.",
    ),
    "choices": (
        "The choices of each dimension",
        "The values among which each space may choose, from space to space. A band that slopes has shifted; diamonds "
        "are values that a space has first, hollow marks those that the next one drops.",
    ),
    "tendencies": (
        "What the samples say of each dimension",
        "E-T error of the subnets that use a value, less that of their whole space; larger points stand for more "
        "subnets, hollow ones for too few to count (they may lie beyond the edge). Above each panel: the slope of the "
        "line in error-% a step of the dimension, its standard error by resampling (as pale wedges), and the decision. "
        "Values shift against the slope. Point at a dot for its numbers; dimensions.csv has all of them.",
    ),
}


def write_evolution_report(folder: RunFolder) -> Path:
    """Writes `report.html`, `plots/*.png` and `.svg`, `spaces.csv` and `dimensions.csv`; gives the path of the HTML."""
    config, evolution = folder.read_config().settings, read_evolution(folder.evolution)
    pictures = save_pictures(evolution, FIGURES, folder.plots, {"tendencies": tendency_tooltips(evolution)})
    write_csv(folder.path / "spaces.csv", SPACES, space_rows(evolution))
    write_csv(folder.path / "dimensions.csv", (*DIMENSIONS, "notice"), dimension_rows(evolution))
    write_text(folder.report, page(evolution, config, folder.path.resolve().name, pictures))
    return folder.report


# Tables for spreadsheets and data frames


def space_rows(evolution: Evolution) -> Iterator[Sequence[Any]]:
    """A row for each space: errors in %, and how many tensors came whole, in part or not at all."""
    for number, step in enumerate(evolution.steps):
        space = letter(number), step.space, step.cardinality, len(step.errors)
        errors = step.error.expected, step.error.top, round(step.error.et, 6)
        carried = (step.carried.whole, step.carried.part, step.carried.fresh) if step.carried else (None,) * 3
        yield *space, *errors, *carried, "; ".join(notices(step))


def dimension_rows(evolution: Evolution) -> Iterator[Sequence[Any]]:
    """A row for each dimension of each space; a cell with several numbers has one for each value."""
    for number, step in enumerate(evolution.steps):
        for name, dimension in step.dimensions.items():
            lists = map(spaced, (dimension.values, dimension.counts, dimension.et))
            line = dimension.slope, dimension.stderr, dimension.intercept, dimension.step
            yield letter(number), name, *lists, *line, dimension.shift, spaced(dimension.next), dimension.notice


def spaced(values: Sequence[Any]) -> str:
    return " ".join(
        "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values
    )


def notices(step: Step) -> Iterator[str]:
    """The notices, each with its dimensions.

    >>> one = Dimension((7,), (9,), (30.0,), notice="left alone: a single value")
    >>> list(notices(Step("s3", 2, None, (), {"stage3.window": one, "stage4.window": one})))
    ['stage3.window and stage4.window: left alone: a single value']
    """
    names: dict[str, list[str]] = {}
    for name, dimension in step.dimensions.items():
        if dimension.notice:
            names.setdefault(dimension.notice, []).append(name)
    yield from (f"{join_words(having)}: {notice}" for notice, having in names.items())


# The page


def page(evolution: Evolution, config: Mapping[str, Any], folder: str, pictures: Mapping[str, Picture]) -> str:
    title = page_title(config, "evolution of ") or "nasformer: evolution of a space"
    top = heading(title, budget=evolution.budget, seed=config.get("seed"), folder=folder)
    parts = [top, tiles(list(evolution_tiles(evolution))), note(state(evolution)), spaces_table(evolution)]
    parts += figures(captions(evolution), pictures)
    parts += [dimensions_table(evolution, number) for number in range(len(evolution.steps))]
    return document(title, [*parts, settings_tables(config)])


def captions(evolution: Evolution) -> dict[str, tuple[str, str]]:
    """Title and caption of every figure by its name, in the order of the page."""
    title, caption = CAPTIONS["space_errors"]
    return {**CAPTIONS, "space_errors": (title, caption + CARRIED * any(step.carried for step in evolution.steps))}


def evolution_tiles(evolution: Evolution) -> Iterator[tuple[str, str]]:
    errors = [step.error.et for step in evolution.steps]
    yield f"{errors[0]:.2f} %", "E-T error of space A"
    if len(errors) > 1:
        name = letter(len(errors) - 1)
        yield f"{errors[-1]:.2f} %", f"E-T error of space {name}"
        yield signed(errors[-1] - errors[0]), f"points from A to {name}; less is better"
    yield f"{sum(len(step.errors) for step in evolution.steps):,}", "subnets judged"
    shifted = {name for step in evolution.steps for name in moving(step)}
    yield f"{len(shifted)} of {len(evolution.dimensions)}", "dimensions shifted"


def moving(step: Step) -> list[str]:
    return [name for name, dimension in step.dimensions.items() if dimension.moves]


def state(evolution: Evolution) -> str:
    """A note on an evolution that did not make all of its shifts."""
    number = len(evolution.steps) - 1
    if evolution.unfinished:
        return f"Not finished: space {letter(number + 1)} follows, but is not judged yet. The same command goes on."
    if missing := evolution.missing_steps:
        return f"Nothing shifted after space {letter(number)}, so the evolution ended {missing} short."
    return ""


def spaces_table(evolution: Evolution) -> str:
    """The spaces with their numbers; below each its expression, where its weights came from, shifts and notices."""
    head = ("space", "E-T error", "expected error", "top error", "samples", "architectures")
    rows = []
    for number, step in enumerate(evolution.steps):
        errors = [f"{error:.2f} %" for error in (step.error.et, step.error.expected, step.error.top)]
        cells = [letter(number), *errors, f"{len(step.errors):,}", f"{step.cardinality:.3g}"]
        rows.append(html_row(cells, head=("", *head[1:])))
        expression = escape(step.space).replace(";", ";<wbr>")  # a line may end between dimensions
        facts = []
        if step.carried:
            facts.append(f"weights of {letter(number - 1)}: {step.carried}" if number else f"weights: {step.carried}")
        if names := moving(step):
            facts.append(f"shifts: {join_words(names)}")
        words = "".join(f"<p>{escape(line)}</p>" for line in [*facts, *notices(step)])
        rows.append(f'<tr><td class="words" colspan="{len(head)}"><p>{expression}</p>{words}</td></tr>')
    return f"<h2>Spaces</h2>\n{html_table(head, rows)}"


def dimensions_table(evolution: Evolution, number: int) -> str:
    """All dimensions of a space, folded."""
    step, last = evolution.steps[number], evolution.is_last(number)
    if not step.dimensions:
        return ""
    head = ("dimension", "values", "E-T errors", "slope", "decision", "next", "notice")
    title = f"Space {letter(number)}: {len(step.dimensions)} dimensions, {len(moving(step))} of them shift"
    rows = [
        html_row([name, *dimension_cells(dimension, last)], head=("", *head[1:]))
        for name, dimension in step.dimensions.items()
    ]
    return folded(title, html_table(head, rows, kind="text"))


def dimension_cells(dimension: Dimension, last: bool) -> list[str]:
    errors = ", ".join("–" if et is None else f"{et:.2f}" for et in dimension.et)
    following = listed(dimension.next) if dimension.moves else ""
    slope, shift = format_slope(dimension) or "–", format_shift(dimension, last)
    return [listed(dimension.values), errors, slope, shift, following, dimension.notice]


def listed(values: Sequence[Scalar]) -> str:
    return ", ".join(map(format_value, values))
