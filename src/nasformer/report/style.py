"""Style of all reports: colours and axes of figures; and names, numbers and models in words.

Figures are made with matplotlib's objects alone: no global state, so threads are safe.
"""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from nasformer.search.problem import Candidate, ModelResult, shown_scores
from nasformer.tasks.options import split_scores, task_scores
from nasformer.utils.units import format_quantity

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


def lighten(colour: str) -> str:
    """The colour mixed with white; a transparent bar would show the grid."""
    return to_hex([1 - PALE * (1 - part) for part in to_rgb(colour)])


def style_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Give axes their labels, a light grid behind the data, and no box."""
    axes.set_xlabel(plain(x), color=INK, fontsize=10)
    axes.set_ylabel(plain(y), color=INK, fontsize=10)
    axes.grid(True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelsize=9, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c3cad3")


def style_colorbar(scale: Colorbar, label: str) -> None:
    """Give the scale of colours beside a plot its label, and no box."""
    scale.set_label(label, color=INK, fontsize=10)
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=GREY, labelsize=9, length=0)


def nice_ticks(count: int, integer: bool = False) -> MaxNLocator:
    """Ticks at multiples of 1, 2 or 5 times a power of ten, at most `count` + 1."""
    return MaxNLocator(count, integer=integer, steps=(1, 2, 5, 10))


def legend_below(figure: Figure | SubFigure, panels: Iterable[Axes]) -> None:
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
    r"""Text for matplotlib: on one line, shortened, and without mathematics.

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


# Names, numbers and models in words, the same in plots, pages and terminal tables.

NAMES = {
    "params": "parameters",
    "macs": "MACs",
    "holdout_agreement": "held-out agreement",
    "latency_ms": "latency in ms",
    "memory_bytes": "memory in bytes",
}

CHOSEN = ("winner", "retrained", "finetuned")
"""Names of the model that a run is about."""
MARKERS = dict.fromkeys(CHOSEN, ("*", RED)) | {
    "random": ("D", PURPLE),
    "smallest": ("v", SKY),
    "largest": ("^", ORANGE),
}


def label(name: str) -> str:
    """The name of a score in plain words.

    >>> label("test_accuracy"), label("measured_latency_ms")
    ('test accuracy', 'measured latency in ms')
    """
    origin, _, rest = name.partition("_")
    if origin in ("predicted", "measured"):
        return f"{origin} {label(rest)}"
    names = NAMES | split_scores()
    return names.get(name) or names.get(f"holdout_{name}") or name.replace("_", " ")


def metric_name(name: str) -> str:
    """A metric without the images that it is from.

    >>> metric_name("accuracy"), metric_name("miou")
    ('accuracy', 'mIoU')
    """
    return label(f"test_{name}").removeprefix("test ")


def axis_label(name: str) -> str:
    """The name of a score with its unit.

    >>> axis_label("accuracy"), axis_label("macs")
    ('held-out accuracy (%)', 'MACs (multiply-accumulates an image)')
    """
    if is_share(name):
        return f"{label(name)} (%)"
    return {"macs": "MACs (multiply-accumulates an image)"}.get(name, label(name))


def sentence_case(words: str) -> str:
    """Words as they begin a sentence.

    >>> sentence_case("accuracy"), sentence_case("mIoU")
    ('Accuracy', 'mIoU')
    """
    return words if words != words.lower() else words.capitalize()


def axis_value(name: str, value: float) -> float:
    return 100 * value if is_share(name) else value


def is_share(name: str) -> bool:
    """Whether the score is a share of 1, to be shown in percent."""
    return name.endswith(("accuracy", "agreement", *task_scores()))


def format_score(name: str, value: float) -> str:
    """A score as people read it; a dash where there is none.

    >>> format_score("accuracy", 0.9634), format_score("params", 142_346), format_score("dss", 86.49299)
    ('96.3 %', '142,346', '86.493')
    >>> format_score("latency_ms", math.nan)
    '–'
    """
    if math.isnan(value):
        return "–"
    if is_share(name):
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def format_setting(value: Any) -> str:
    """A setting of a config: text as it is, anything else as JSON."""
    if value in (None, ""):
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def join_words(words: Sequence[str]) -> str:
    """Words as in a sentence.

    >>> join_words(["dss"]), join_words(["dss", "naswot", "snip"])
    ('dss', 'dss, naswot and snip')
    """
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def describe_costs(scores: Mapping[str, float]) -> str:
    """Parameters and MACs on one line.

    >>> describe_costs({"params": 142_346, "macs": 8_100_000})
    '142K parameters · 8.1M MACs'
    """
    costs = {name: scores.get(name, math.nan) for name in ("params", "macs")}
    return " · ".join(f"{format_quantity(cost)} {label(name)}" for name, cost in costs.items() if not math.isnan(cost))


def describe_limit(name: str, low: float | None, high: float | None) -> str:
    """A limit of the budget.

    >>> describe_limit("params", None, 150_000), describe_limit("macs", 1e6, 2e6)
    ('parameters ≤ 150K', '1M ≤ MACs ≤ 2M')
    """
    left = "" if low is None else f"{format_quantity(low)} ≤ "
    right = "" if high is None else f" ≤ {format_quantity(high)}"
    return f"{left}{label(name)}{right}"


def describe_model(model: ModelResult) -> str:
    """A model of the results on a few lines: name, scores, architecture."""
    return "\n".join(filter(None, (model.name, describe_scores(model.scores), describe_arch(model.arch))))


def describe_candidate(candidate: Candidate, with_arch: bool = True) -> str:
    """A candidate on a few lines: its origin, scores and architecture."""
    origin = candidate.origin
    if candidate.parents:
        origin += f" of {join_words([f'#{parent}' for parent in candidate.parents])}"
    arch = describe_arch(candidate.arch.to_dict()) if with_arch else "its arch: candidates.csv"
    head = f"#{candidate.id} · generation {candidate.generation} · {origin}"
    return f"{head}\n{describe_scores(candidate.scores)}\n{arch}"


def describe_scores(scores: Mapping[str, float]) -> str:
    return " · ".join(f"{label(name)} {format_score(name, value)}" for name, value in shown_scores(scores).items())


def describe_arch(arch: Mapping[str, Any]) -> str:
    """An arch, a line for each of its fields.

    >>> print(describe_arch({"embed_dim": 48, "num_heads": [2, 3]}))
    embed_dim: 48
    num_heads: [2, 3]
    """
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in arch.items())


def model_kind(name: str) -> str:
    """The kind of a model by its name.

    >>> model_kind("random 2"), model_kind("ViT-S")
    ('random', 'ViT-S')
    """
    return next((kind for kind in MARKERS if name.lower().startswith(kind)), name)


def marker_of(name: str) -> tuple[str, str]:
    """Marker and colour of a model of the results, the same in all plots."""
    return ("P", PURPLE) if name.startswith("best of") else MARKERS.get(model_kind(name), ("s", GREY))
