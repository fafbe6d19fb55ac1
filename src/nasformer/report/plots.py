"""The plots of a run: search, training and results. Each takes a run and gives a figure, or None without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.contents import Model, Run
from nasformer.report.drawing import architectures
from nasformer.report.finalists_plot import finalists
from nasformer.report.health_plot import health
from nasformer.report.labels import axis_label, figure_of, on_axis
from nasformer.report.operator_curves import supernet_curves
from nasformer.report.operator_shares import operator_shares
from nasformer.report.scatter import score_vs_cost
from nasformer.report.steps import steps
from nasformer.report.style import (
    BLUE,
    INK,
    NICE,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    dress,
    legend_below,
    look_of,
    new_figure,
    plain,
)
from nasformer.search import format_quantity

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
