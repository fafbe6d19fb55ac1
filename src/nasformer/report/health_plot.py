"""The health of a supernet over its training: the accuracy of fixed subnets, above the loss."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from nasformer.report.contents import Run
from nasformer.report.style import BLUE, GREEN, GREY, ORANGE, SKY, dress, legend_below, new_figure

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
