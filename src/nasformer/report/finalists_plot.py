"""The finalists as a picture: what was predicted of each, what was measured, and the line of the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nasformer.report.contents import Model, Run
from nasformer.report.finalists import costs_of, finalists_of
from nasformer.report.labels import axis_label, window_in_words
from nasformer.report.style import BLUE, GREEN, GREY, INK, NICE, dress, legend_below, look_of, new_figure, plain
from nasformer.search import format_quantity

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
    _stage(axes, [*predicted, *measured], cost, limit)
    dress(axes, axis_label(cost))
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=NICE))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value, 4)))


def _stage(axes: Any, values: Sequence[float], cost: str, limit: float | None) -> None:
    """The part of the axis to show, with the budget's line; one that is far away is in the legend alone."""
    far = limit is not None and limit > FAR * max(values)
    shown = [*values, limit] if limit is not None and not far else values
    if limit is not None:
        words = f"budget: {window_in_words(cost, None, limit)}{', off the plot' if far else ''}"
        axes.axvline(limit, color=GREEN, lw=1.6, ls=(0, (4, 3)), zorder=1, label=words)
    room = 0.08 * (max(shown) - min(shown)) or 0.05 * abs(max(shown)) or math.ulp(1.0)
    axes.set_xlim(min(shown) - room, max(shown) + room)
