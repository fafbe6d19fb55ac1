"""How good the spaces are: their E-T errors one after the other, and the errors of their subnets over each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.panels import colours_of, tick_spaces
from nasformer.report.evolution.words import letter
from nasformer.report.style import BLUE, GREEN, INK, ORANGE, dress, legend_below, new_figure

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
