"""The plots of a run: search, training and results. Each takes a run and gives a figure, or None without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.contents import Model, Run, steps
from nasformer.report.drawing import architectures
from nasformer.report.labels import axis_label, figure_of, is_share, kind_of, look_of, on_axis, window_in_words
from nasformer.report.operators import operator_shares, supernet_curves
from nasformer.report.page import costs_of, finalists_of
from nasformer.search.problem import Candidate
from nasformer.utils.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    NICE,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    SKY,
    dress,
    legend_below,
    new_figure,
    plain,
)
from nasformer.utils.units import format_quantity

# ----------------------------------------------------------------------------------------------------------------------
# Accuracy, or another score, against cost: all candidates of a search, and the models of the results among them.
# ----------------------------------------------------------------------------------------------------------------------

Place = tuple[float, float]


def score_vs_cost(run: Run) -> Figure | None:
    """All candidates, the window of the budget, the front, the winner and the references."""
    judged = [c for c in run.candidates if math.isfinite(c.scores.get(run.score, math.nan))]
    costs = [c for c in run.limits or ["params"] if any(math.isfinite(one.scores.get(c, math.nan)) for one in judged)]
    if not costs:
        return None
    figure = new_figure(1.5 + 6.5 * len(costs), 5.4)
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for panel, cost in zip(panels, costs, strict=True):
        _cost_panel(panel, run, cost, judged)
    if len({c.generation for c in judged}) > 1:
        bar = figure.colorbar(panels[0].collections[0], ax=list(panels), pad=0.015, aspect=30)
        bar.locator = MaxNLocator(8, integer=True, steps=NICE)
        bar.set_label("generation", color=INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(colors=GREY, labelsize=9, length=0)
    legend_below(figure, panels)
    return figure


def _cost_panel(axes: Any, run: Run, cost: str, judged: Sequence[Candidate]) -> None:
    points = [(c.scores.get(cost, math.nan), on_axis(run.score, c.scores[run.score])) for c in judged]
    x, y = zip(*points, strict=True)
    generations = [c.generation for c in judged]
    paint = {"c": generations, "cmap": "viridis_r"} if len(set(generations)) > 1 else {"color": BLUE}
    edge = {"edgecolors": "white", "linewidths": 0.3}
    dots = axes.scatter(x, y, s=22, alpha=0.8, zorder=3, label="candidate", **paint, **edge)
    dots.set_urls([f"#candidate-{c.id}" for c in judged])  # for `hover.py`
    steps, front = _stairs(points), f"Pareto front{f' by {run.score} alone' if run.ranked else ''}"
    axes.step(*zip(*steps, strict=True), where="post", color=INK, lw=1.4, zorder=4, label=front)
    window = run.limits.get(cost, (None, None))
    marks = [(m.scores.get(cost, math.nan), on_axis(run.score, run.score_of(m))) for m in run.models]
    across, up = zip(*marks, strict=True) if marks else ((), ())
    stage = _stage([*x, *(end for end in window if end is not None)], across), _stage(y, up)
    for number, model in reversed(list(enumerate(run.models))):  # the winner last, on top
        _mark(axes, model.name, marks[number], stage, run.score, f"#model-{number}")
    if window != (None, None):
        _window(axes, cost, window, stage[0])
    axes.set(xlim=stage[0], ylim=stage[1])
    dress(axes, axis_label(cost), axis_label(run.score) if axes.get_subplotspec().is_first_col() else "")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=NICE))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))


def _stairs(points: Sequence[Place]) -> list[Place]:
    """The best score that each cost buys."""
    steps: list[Place] = []
    for x, y in sorted((point for point in points if math.isfinite(point[0])), key=lambda p: (p[0], -p[1])):
        if not steps or y > steps[-1][1]:
            steps.append((x, y))
    return steps


def _stage(values: Sequence[float], marks: Sequence[float]) -> Place:
    """The part of an axis to show: all candidates and the marks near them. A far one must not squeeze the rest."""
    known = [value for value in values if math.isfinite(value)]
    near = 0.3 * (max(known) - min(known))
    shown = known + [mark for mark in marks if min(known) - near <= mark <= max(known) + near]
    room = 0.07 * (max(shown) - min(shown)) or 0.05 * abs(known[0]) or 1.0
    return min(shown) - room, max(shown) + room


def _mark(axes: Any, name: str, at: Place, stage: tuple[Place, Place], score: str, url: str) -> None:
    """A model of the results; one that is off the stage stands hollow at its edge, its numbers in the legend."""
    if not all(map(math.isfinite, at)):
        return
    shape, colour = look_of(name)
    x, y = (_clip(value, *ends) for value, ends in zip(at, stage, strict=True))
    away = (x, y) != at
    kind, place = plain(kind_of(name), 30), f"{format_quantity(at[0])}, {at[1]:.3g}{' %' * is_share(score)}"
    axes.scatter(
        *([x], [y]),
        marker=shape,
        s=320 if shape == "*" else 85,
        facecolors="white" if away else colour,
        edgecolors=colour if away else "white",
        linewidths=1.8 if away else 1.2,
        zorder=6,
        clip_on=False,
        urls=[url],
        label=f"{kind}, off the plot: {place}" if away else kind,
    )


def _clip(value: float, low: float, high: float) -> float:
    """The value, or the edge that it lies beyond, a little inside so that the mark hides no label."""
    inset = 0.025 * (high - low)
    return value if low <= value <= high else min(max(value, low + inset), high - inset)


def _window(axes: Any, cost: str, ends: tuple[float | None, float | None], stage: Place) -> None:
    left, right = (edge if end is None else end for end, edge in zip(ends, stage, strict=True))
    words = f"budget: {window_in_words(cost, *ends)}"
    axes.axvspan(left, right, color=GREEN, alpha=0.09, lw=0, zorder=0, label=words)
    for edge in ends:
        if edge is not None:
            axes.axvline(edge, color=GREEN, lw=1, ls=(0, (4, 3)), zorder=1)


# ----------------------------------------------------------------------------------------------------------------------
# The health of a supernet over its training: the accuracy of fixed subnets, above the loss.
# ----------------------------------------------------------------------------------------------------------------------

COLOURS = {"smallest": SKY, "middle": GREEN, "largest": ORANGE}


def health(run: Run) -> Figure | None:
    """None where nobody looked at subnets."""
    if not run.looks:
        return None
    figure = new_figure(8, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    epochs = [look["epoch"] for look in run.looks]
    for name in run.looks[0]["subnets"]:
        values = [100 * look["subnets"].get(name, math.nan) for look in run.looks]
        upper.plot(epochs, values, **_line(name, len(values)))
    known = [line for line in run.log if math.isfinite(line["loss"]) and math.isfinite(line["epoch"])]
    lower.plot([line["epoch"] for line in known], [line["loss"] for line in known], color=BLUE, lw=1.6)
    dress(upper, y="accuracy of subnets (%)")
    dress(lower, "epoch", "training loss")
    legend_below(figure, [upper])
    return figure


def _line(name: str, looks: int) -> dict[str, Any]:
    """Extremes are coloured and thick, random subnets grey and thin."""
    dots = {"marker": "o", "ms": 5} if looks < 2 else {}
    if name in COLOURS:
        return {"color": COLOURS[name], "lw": 2.2, "label": name, "zorder": 3, **dots}
    return {"color": GREY, "lw": 0.9, "alpha": 0.6, "label": "random subnets", **dots}


# ----------------------------------------------------------------------------------------------------------------------
# The finalists as a picture: what was predicted of each, what was measured, and the line of the budget.
# ----------------------------------------------------------------------------------------------------------------------

FAR = 2.0  # times the largest value, from which on a limit would squeeze all that is to be seen


def finalists(run: Run) -> Figure | None:
    """A line for each, the best by score at the top; memory has a panel where it has a limit."""
    found = finalists_of(run)
    costs = [name for name in costs_of(run) if found and _known(found, name)]
    if not costs:
        return None
    figure = new_figure(2.4 + 5.6 * len(costs), 1.6 + 0.36 * len(found))
    panels = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
    for panel, cost in zip(panels, costs, strict=True):
        _panel(panel, cost, found, run.limits.get(cost, (None, None))[1])
    panels[0].set_yticks(range(len(found)), [plain(one.name, 30) for one in found])
    panels[0].set_ylim(len(found) - 0.5, -0.5)
    panels[0].tick_params(axis="y", labelsize=10, labelcolor=INK)
    legend_below(figure, panels)
    return figure


def _known(found: Sequence[Model], name: str) -> bool:
    return all(f"measured_{name}" in one.scores and f"predicted_{name}" in one.scores for one in found)


def _panel(axes: Any, cost: str, found: Sequence[Model], limit: float | None) -> None:
    lines = range(len(found))
    predicted, measured = ([one.scores[f"{kind}_{cost}"] for one in found] for kind in ("predicted", "measured"))
    axes.hlines(lines, predicted, measured, color=GREY, lw=1.4, alpha=0.6, zorder=2)
    hollow: dict[str, Any] = {"facecolors": "white", "edgecolors": GREY, "linewidths": 1.6}
    axes.scatter(predicted, lines, s=58, zorder=3, label="predicted", **hollow)
    for place, one in enumerate(found):
        won = one.name == "winner"
        shape, colour = look_of(one.name) if won else ("o", BLUE)
        label = "winner, measured" if won else "measured"
        axes.scatter(
            [measured[place]], [place], s=210 if won else 58, marker=shape, color=colour, lw=0, zorder=4, label=label
        )
    _limits_of(axes, [*predicted, *measured], cost, limit)
    dress(axes, axis_label(cost))
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=NICE))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))


def _limits_of(axes: Any, values: Sequence[float], cost: str, limit: float | None) -> None:
    """The part of the axis to show, with the budget's line; one that is far away is in the legend alone."""
    far = limit is not None and limit > FAR * max(values)
    shown = [*values, limit] if limit is not None and not far else values
    if limit is not None:
        words = f"budget: {window_in_words(cost, None, limit)}{', off the plot' if far else ''}"
        axes.axvline(limit, color=GREEN, lw=1.6, ls=(0, (4, 3)), zorder=1, label=words)
    room = 0.08 * (max(shown) - min(shown)) or 0.05 * abs(max(shown)) or math.ulp(1.0)
    axes.set_xlim(min(shown) - room, max(shown) + room)


SMOOTH_FROM = 60  # training lines from which on a smoothed curve says more than the raw one


def search_progress(run: Run) -> Figure | None:
    """The best so far, the median and the middle half of each generation, and the random references."""
    course, unit = _steps(run)
    if not course:
        return None
    x = [at for at, _ in course]
    scores = [[on_axis(run.score, value) for value in values] for _, values in course]
    best = np.maximum.accumulate([max(values) for values in scores])
    low, middle, high = np.array([np.percentile(values, (25, 50, 75)) for values in scores]).T
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    axes.fill_between(x, low, high, color=BLUE, alpha=0.16, lw=0, label="middle half")
    axes.plot(x, middle, color=BLUE, lw=2, marker="o", ms=4, label="median")
    axes.scatter(
        x,
        [max(values) for values in scores],
        s=22,
        color=RED,
        alpha=0.45,
        lw=0,
        zorder=3,
        label=f"best of the {'generation' if unit == 'generation' else 'batch'}",
    )
    axes.plot(x, best, color=RED, lw=2, drawstyle="steps-post", label="best so far")
    _random_line(axes, run)
    _rival(axes, run)
    dress(axes, unit, axis_label(run.score))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=NICE))
    if len(x) == 1:  # or the ticks would be fractions of a generation
        axes.set_xlim(x[0] - 1, x[0] + 1)
    legend_below(figure, [axes])
    return figure


def _steps(run: Run) -> tuple[list[tuple[int, list[float]]], str]:
    """Scores by generation; a search without generations in twenty batches, by the candidates judged so far."""
    course, unit = steps(run)
    scores = [(at, [c.scores.get(run.score, math.nan) for c in found]) for at, found in course]
    known = [(at, [score for score in found if math.isfinite(score)]) for at, found in scores]
    return [(at, found) for at, found in known if found], unit


def _random_line(axes: Any, run: Run) -> None:
    known = [y for y in map(run.score_of, run.references("random")) if math.isfinite(y)]
    if known:
        height = on_axis(run.score, sum(known) / len(known))
        text = "random reference" if len(known) == 1 else f"mean of {len(known)} random references"
        axes.axhline(height, color=PURPLE, lw=1.6, ls=(0, (5, 3)), label=text)


def _rival(axes: Any, run: Run) -> None:
    """The best of a random search when it had judged as many candidates."""
    scores = [candidate.scores.get(run.score, math.nan) for candidate in run.rival]
    best = np.fmax.accumulate(np.array([on_axis(run.score, score) for score in scores], dtype=float))
    course, counts = steps(run)[0], np.cumsum([len(found) for _, found in steps(run)[0]])
    points = [(at, best[count - 1]) for (at, _), count in zip(course, counts, strict=True) if count <= len(best)]
    if points:
        label = f"best so far of {len(scores):,} random"
        axes.plot(*zip(*points, strict=True), color=PURPLE, lw=2, drawstyle="steps-post", label=label)


def training_curve(run: Run) -> Figure | None:
    """Loss and learning rate over the epochs, one above the other."""
    if not any(math.isfinite(line["loss"]) for line in run.log):
        return None
    by = "epoch" if all(math.isfinite(line["epoch"]) for line in run.log) else "step"
    x, loss, rate = (np.array([line[name] for line in run.log], dtype=float) for name in (by, "loss", "lr"))
    figure = new_figure(8, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    many, dots = len(loss) >= SMOOTH_FROM, {"marker": "o", "ms": 4} if len(loss) < 2 else {}
    upper.plot(x, loss, color=BLUE, lw=0.9 if many else 1.8, alpha=0.35 if many else 1, label="loss", **dots)
    if many:
        upper.plot(x, smoothed(loss), color=BLUE, lw=2, label="running median")
    _baselines(upper, run, by)
    if many or run.baselines:
        upper.legend(frameon=False, fontsize=9, labelcolor=INK)
    lower.plot(x, rate, color=ORANGE, lw=1.8, **dots)
    lower.fill_between(x, rate, color=ORANGE, alpha=0.15, lw=0)
    lower.set_ylim(bottom=0)
    dress(upper, y="training loss")
    dress(lower, by, "learning rate")
    return figure


def _baselines(axes: Any, run: Run, by: str) -> None:
    """The losses of models that were trained beside by the same recipe."""
    for name, colour in zip(run.baselines, PALETTE[1:] * len(run.baselines), strict=False):
        x, loss = (np.array([line[key] for line in run.baselines[name]], dtype=float) for key in (by, "loss"))
        axes.plot(x, smoothed(loss), color=colour, lw=1.6, label=plain(f"timm:{name}", 40))


def smoothed(values: np.ndarray) -> np.ndarray:
    """The running median; of a few values, these themselves."""
    return _running_median(values) if len(values) >= SMOOTH_FROM else values


def _running_median(values: np.ndarray) -> np.ndarray:
    """Each value's median with its neighbours (a thirtieth of the whole); without them where there are none."""
    half = max(2, len(values) // 60)
    windows = [values[max(0, at - half) : at + half + 1] for at in range(len(values))]
    known = [window[np.isfinite(window)] for window in windows]
    return np.array([np.median(window) if len(window) else math.nan for window in known])


def bars(run: Run) -> Figure | None:
    """Test accuracy of the winner and of the references, and what each of them costs."""
    shown = [model for model in run.models if math.isfinite(model.scores.get("test_accuracy", math.nan))]
    if not shown:
        return None
    columns = ["test_accuracy"] + ["params"] * any(model.scores.get("params", 0) > 0 for model in shown)
    figure = new_figure(5.4 + 3.6 * (len(columns) - 1), 1.1 + 0.5 * len(shown))
    grid = {"wspace": 0.08, "width_ratios": (3, 2)[: len(columns)]}
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True, gridspec_kw=grid)[0]
    for panel, name in zip(panels, columns, strict=True):
        _bar_panel(panel, name, shown)
    panels[0].set_yticks(range(len(shown)), [plain(model.name, 30) for model in shown])
    panels[0].tick_params(axis="y", labelsize=10, labelcolor=INK)
    panels[0].invert_yaxis()
    return figure


def _bar_panel(axes: Any, name: str, models: Sequence[Model]) -> None:
    values = [model.scores.get(name, math.nan) for model in models]
    lengths = [0.0 if math.isnan(value) else on_axis(name, value) for value in values]
    axes.barh(range(len(models)), lengths, height=0.62, color=[look_of(model.name)[1] for model in models], zorder=3)
    for row, (value, length) in enumerate(zip(values, lengths, strict=True)):
        text = format_quantity(value) if name == "params" and value == value else figure_of(name, value)
        axes.annotate(text, (length, row), (5, 0), textcoords="offset points", va="center", fontsize=10, color=INK)
    dress(axes, axis_label(name))
    axes.grid(False, axis="y")
    axes.set_xlim(0, 1.25 * max(*lengths, 1e-9))
    if name == "params":
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value)))
    else:
        axes.set_xticks(range(0, 101, 20))


FIGURES: dict[str, Callable[[Run], Figure | None]] = {
    "bars": bars,
    "score_vs_cost": score_vs_cost,
    "search_progress": search_progress,
    "architecture": architectures,
    "operator_shares": operator_shares,
    "training_curve": training_curve,
    "operator_curves": supernet_curves,
    "health": health,
    "finalists": finalists,
}
