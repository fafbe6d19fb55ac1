"""Plots that runs share: fronts, progress of the searches, training curves. A colour is a run in all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.compare import Comparison
from nasformer.report.contents import Run
from nasformer.report.hover import candidate_in_words, model_in_words
from nasformer.report.labels import axis_label, on_axis
from nasformer.report.plots import smoothed
from nasformer.report.style import NICE, dress, legend_below, new_figure, palette, plain
from nasformer.search import Candidate, format_quantity

COST = "params"


def searches(comparison: Comparison) -> Iterator[tuple[int, str, Run]]:
    """The runs whose searches raised the same score as the first one's; others cannot share its axis."""
    found = [(place, name, run) for place, (name, run) in enumerate(comparison.runs.items()) if _judged(run)]
    yield from (one for one in found if one[2].score == found[0][2].score)


def _judged(run: Run) -> list[Candidate]:
    return [one for one in run.candidates if math.isfinite(one.scores.get(run.score, math.nan)) and COST in one.scores]


def front_of(run: Run) -> list[Candidate]:
    """The candidates with which the best score that each cost buys goes up."""
    front: list[Candidate] = []
    for one in sorted(_judged(run), key=lambda one: (one.scores[COST], -one.scores[run.score])):
        if not front or one.scores[run.score] > front[-1].scores[run.score]:
            front.append(one)
    return front


def fronts(comparison: Comparison) -> Figure | None:
    """The fronts of all searches, their candidates faintly behind, and their winners."""
    shown, colours = list(searches(comparison)), palette(list(comparison.runs))
    if not shown:
        return None
    figure, score = new_figure(8, 5.2), shown[0][2].score
    axes = figure.subplots()
    for place, name, run in shown:
        _front(axes, place, name, run, colours[name])
    dress(axes, axis_label(COST), axis_label(score))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=NICE))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))
    legend_below(figure, [axes])
    return figure


def _front(axes: Any, place: int, name: str, run: Run, colour: str) -> None:
    every = [(one.scores[COST], on_axis(run.score, one.scores[run.score])) for one in _judged(run)]
    axes.scatter(*zip(*every, strict=True), s=10, color=colour, alpha=0.2, lw=0, zorder=2)
    steps = [(one.scores[COST], on_axis(run.score, one.scores[run.score])) for one in front_of(run)]
    x, y = zip(*steps, strict=True)
    axes.step(x, y, where="post", color=colour, lw=1.6, zorder=3, label=plain(name, 40))
    dots = axes.scatter(x, y, s=26, color=colour, edgecolors="white", linewidths=0.6, zorder=4)
    dots.set_urls([f"#run-{place}-{one.id}" for one in front_of(run)])
    if run.winner and math.isfinite(run.score_of(run.winner)):
        at = run.winner.scores.get(COST, math.nan), on_axis(run.score, run.score_of(run.winner))
        axes.scatter(*at, marker="*", s=320, color=colour, edgecolors="white", zorder=5, urls=[f"#winner-{place}"])


def dots(comparison: Comparison) -> dict[str, str]:
    """What the dots of `fronts` tell."""
    told: dict[str, str] = {}
    for place, name, run in searches(comparison):
        told |= {f"run-{place}-{one.id}": f"{name}\n{candidate_in_words(one)}" for one in front_of(run)}
        if run.winner:
            told[f"winner-{place}"] = f"{name}\n{model_in_words(run.winner)}"
    return told


def progress(comparison: Comparison) -> Figure | None:
    """The best so far by the number of candidates judged."""
    shown, colours = list(searches(comparison)), palette(list(comparison.runs))
    if not shown:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    for _, name, run in shown:
        scores = [on_axis(run.score, one.scores.get(run.score, math.nan)) for one in run.candidates]
        best = np.fmax.accumulate(np.array(scores, dtype=float))
        dots: dict[str, Any] = {"marker": "o", "ms": 4} if len(best) == 1 else {}
        axes.step(range(1, len(best) + 1), best, where="post", color=colours[name], lw=2, label=plain(name, 40), **dots)
    dress(axes, "candidates judged", f"best {axis_label(shown[0][2].score)}")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=NICE))
    legend_below(figure, [axes])
    return figure


def training(comparison: Comparison) -> Figure | None:
    """The training losses by epoch: smoothed, over what they are smoothed from."""
    colours = palette(list(comparison.runs))
    known = {name: run.log for name, run in comparison.runs.items() if any(math.isfinite(x["loss"]) for x in run.log)}
    if not known:
        return None
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    by = "epoch" if all(math.isfinite(line["epoch"]) for log in known.values() for line in log) else "step"
    for name, log in known.items():
        x, loss = (np.array([line[key] for line in log], dtype=float) for key in (by, "loss"))
        dots: dict[str, Any] = {"marker": "o", "ms": 4} if len(loss) == 1 else {}
        axes.plot(x, loss, color=colours[name], lw=0.8, alpha=0.3)
        axes.plot(x, smoothed(loss), color=colours[name], lw=2, label=plain(name, 40), **dots)
    dress(axes, by, "training loss")
    legend_below(figure, [axes])
    return figure


FIGURES: dict[str, tuple[Callable[[Comparison], Figure | None], str, str]] = {
    "fronts": (
        fronts,
        "Pareto fronts",
        "The best score that each size buys, by run; faint dots are all candidates, stars the winners. Point at a dot "
        "to see its architecture. Runs whose searches raised another score than the first one's are left out.",
    ),
    "search_progress": (progress, "Progress of the searches", "The best so far by the number of candidates judged."),
    "training_curve": (training, "Training", "Training losses; long ones as running medians."),
}
