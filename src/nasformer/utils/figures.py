"""Common style of all figures, made with matplotlib's objects alone: no global state, so threads are safe."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, GREY, FAINT = "#1f2933", "#5f6b7a", "#e4e8ed"
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)  # Okabe and Ito's: safe for colour-blind readers
BLUES = LinearSegmentedColormap.from_list("blues", ["#dcebf5", BLUE, "#00243d"])
DPI = 150
PALE = 0.4  # how much of itself a pale colour keeps
_RC_LOCK = threading.Lock()  # the salt of the names in an SVG is a setting of the whole process


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure, sizes in inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


def palette(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, in the order of the names.

    >>> palette(["conv", "local"])
    {'conv': '#0072b2', 'local': '#e69f00'}
    """
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def pale(colour: str) -> str:
    """The colour mixed with white; a transparent bar would show the grid."""
    return to_hex([1 - PALE * (1 - part) for part in to_rgb(colour)])


def dress(axes: Any, x: str = "", y: str = "") -> None:
    """Give axes their labels, a light grid behind the data, and no box."""
    axes.set_xlabel(plain(x), color=INK, fontsize=10)
    axes.set_ylabel(plain(y), color=INK, fontsize=10)
    axes.grid(True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelsize=9, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c3cad3")


def dress_scale(scale: Any, label: str) -> None:
    """Give the scale of colours beside a plot its label, and no box."""
    scale.set_label(label, color=INK, fontsize=10)
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=GREY, labelsize=9, length=0)


def nice_ticks(count: int, integer: bool = False) -> MaxNLocator:
    """At most so many ticks and one more, at multiples of 1, 2 or 5 times a power of ten."""
    return MaxNLocator(count, integer=integer, steps=(1, 2, 5, 10))


def legend_below(figure: Figure, panels: Iterable[Any]) -> None:
    """A legend under the plots, where it can hide nothing; the winner first, equal entries once."""
    pairs = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    unique = {text: handle for handle, text in sorted(pairs, key=lambda pair: pair[1] != "winner")}
    style: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "labelcolor": INK}
    for rows in range(1, len(unique) + 1):  # as few rows as the width allows
        columns = -(-len(unique) // rows)
        legend = figure.legend(list(unique.values()), list(unique), ncols=columns, **style)
        if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
            return
        legend.remove()


def plain(text: str, width: int = 200) -> str:
    r"""Text that matplotlib must not read as mathematics, on one line and not too long.

    >>> plain("a $\\frac$ b")
    'a \\$\\frac\\$ b'
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return (shown if len(shown) <= width else shown[: width - 1] + "…").replace("$", r"\$")


def svg(figure: Figure) -> bytes:
    """The figure as SVG; without a date and with fixed names in it, equal figures are equal bytes."""
    buffer = io.BytesIO()
    with _RC_LOCK, rc_context({"svg.hashsalt": "nasformer"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    """The figure as PNG; without the name of the software in it, equal figures are equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
