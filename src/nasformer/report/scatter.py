"""Accuracy, or another score, against cost: all candidates of a search, and the models of the results among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.contents import Run
from nasformer.report.labels import axis_label, is_share, on_axis, window_in_words
from nasformer.report.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    NICE,
    dress,
    kind_of,
    legend_below,
    look_of,
    new_figure,
    plain,
)
from nasformer.search import Candidate, format_quantity

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
