"""The values of each dimension from space to space: what stays, what is new, and what is left behind."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from nasformer.evolving.steps import Dimension
from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.panels import head, panels, places_of, tick_spaces, tick_values
from nasformer.report.style import BLUE, GREY, RED, legend_below
from nasformer.space.choice import Scalar

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
