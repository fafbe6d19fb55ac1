"""Where each dimension wants to go: the E-T error of its values, and the line that was fitted through them.

Shown are differences to the E-T error of the whole space: spaces differ by more than the values within one, and so
all panels can share an axis on which slopes compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nasformer.evolving.shifting import is_numeric
from nasformer.evolving.steps import Dimension, Step
from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.panels import colours_of, head, panels, places_of, tick_values
from nasformer.report.evolution.words import decided, letter
from nasformer.report.style import GREY, INK
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import written

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
                        f"space {letter(number)} · {name} = {written(value)}\n"
                        f"E-T error {et:.2f} % · {count:.4g} of {len(step.errors):,} samples\n"
                        f"{decided(one, evolution.is_final(number))}"
                    )
    return told
