"""Accuracy against cost: every candidate of a search, and where the models of the results stand among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.contents import Run
from nasformer.report.labels import axis_label, is_share, on_axis, window_in_words
from nasformer.report.style import GREEN, GREY, INK, NICE, dress, legend_below, look_of, new_figure, plain
from nasformer.search import Candidate, format_quantity

Place = tuple[float, float]


def accuracy_vs_cost(run: Run) -> Figure | None:
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
    legend_below(figure, panels, columns=4)
    return figure


def _cost_panel(axes: Any, run: Run, cost: str, judged: Sequence[Candidate]) -> None:
    points = [(c.scores.get(cost, math.nan), on_axis(run.score, c.scores[run.score])) for c in judged]
    x, y = zip(*points, strict=True)
    axes.scatter(
        x,
        y,
        c=[c.generation for c in judged],
        cmap="viridis_r",
        s=22,
        alpha=0.8,
        linewidths=0.3,
        edgecolors="white",
        zorder=3,
        label="candidate",
    )
    stairs = _stairs(points)
    axes.step(*zip(*stairs, strict=True), where="post", color=INK, lw=1.4, zorder=4, label="Pareto front")
    window = run.limits.get(cost, (None, None))
    stage = _stage([*x, *(end for end in window if end is not None)]), _stage(y)
    for model in reversed(run.models):  # the winner last, on top
        place = model.scores.get(cost, math.nan), on_axis(run.score, run.score_of(model))
        _mark(axes, model.name, place, stage, run.score)
    if window != (None, None):
        _window(axes, cost, window, stage[0])
    axes.set(xlim=stage[0], ylim=stage[1])
    dress(axes, axis_label(cost), axis_label(run.score) if axes.get_subplotspec().is_first_col() else "")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value)))


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The best score that each cost buys."""
    stairs: list[tuple[float, float]] = []
    for x, y in sorted((point for point in points if math.isfinite(point[0])), key=lambda p: (p[0], -p[1])):
        if not stairs or y > stairs[-1][1]:
            stairs.append((x, y))
    return stairs


def _stage(values: Sequence[float]) -> tuple[float, float]:
    """The part of an axis to show: all candidates, with some room. A far reference must not squeeze them."""
    known = [value for value in values if math.isfinite(value)]
    room = 0.09 * (max(known) - min(known)) or 0.05 * abs(known[0]) or 1.0
    return min(known) - room, max(known) + room


def _mark(axes: Any, name: str, at: Place, stage: tuple[Place, Place], score: str) -> None:
    """A model of the results; one that is off the stage stands hollow at its edge, with its numbers."""
    if not all(map(math.isfinite, at)):
        return
    shape, colour = look_of(name)
    x, y = (min(max(value, low), high) for value, (low, high) in zip(at, stage, strict=True))
    away = (x, y) != at
    axes.scatter(
        [x],
        [y],
        marker=shape,
        s=320 if shape == "*" else 85,
        facecolors="white" if away else colour,
        edgecolors=colour if away else "white",
        linewidths=1.8 if away else 1.2,
        zorder=6,
        clip_on=False,
        label=plain(name, 30),
    )
    if away:
        text = f"{plain(name, 30)}\n{format_quantity(at[0])}, {at[1]:.3g}{' %' * is_share(score)}"
        right, up = x > sum(stage[0]) / 2, y > sum(stage[1]) / 2
        axes.annotate(
            text,
            (x, y),
            (-9 if right else 9, -7 if up else 7),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            ha="right" if right else "left",
            va="top" if up else "bottom",
            zorder=7,
        )


def _window(axes: Any, cost: str, ends: tuple[float | None, float | None], stage: Place) -> None:
    left, right = (edge if end is None else end for end, edge in zip(ends, stage, strict=True))
    words = f"budget: {window_in_words(cost, *ends)}"
    axes.axvspan(left, right, color=GREEN, alpha=0.09, lw=0, zorder=0, label=words)
    for edge in ends:
        if edge is not None:
            axes.axvline(edge, color=GREEN, lw=1, ls=(0, (4, 3)), zorder=1)
