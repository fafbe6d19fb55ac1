"""How names and numbers of a run are put into words, the same in plots and page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nasformer.utils.figures import GREY, ORANGE, PURPLE, RED, SKY
from nasformer.utils.units import format_quantity

NAMES = {
    "params": "parameters",
    "macs": "MACs",
    "position_macs": "position MACs",
    "position_macs_literal": "position MACs, literal",
    "accuracy": "held-out accuracy",
    "holdout_accuracy": "held-out accuracy",
    "test_accuracy": "test accuracy",
    "latency_ms": "latency in ms",
    "predicted_latency_ms": "predicted latency in ms",
    "measured_latency_ms": "measured latency in ms",
    "memory_bytes": "memory in bytes",
    "predicted_memory_bytes": "predicted memory in bytes",
    "measured_memory_bytes": "measured memory in bytes",
}

CHOSEN = ("winner", "retrained", "finetuned")
"""Names of the model that a run is about."""
LOOKS = dict.fromkeys(CHOSEN, ("*", RED)) | {"random": ("D", PURPLE), "smallest": ("v", SKY), "largest": ("^", ORANGE)}


def label(name: str) -> str:
    """The name of a score in plain words.

    >>> label("test_accuracy"), label("latency_ms")
    ('test accuracy', 'latency in ms')
    """
    return NAMES.get(name, name.replace("_", " "))


def in_a_row(names: Sequence[str]) -> str:
    """Names as in a sentence.

    >>> in_a_row(["dss"]), in_a_row(["dss", "naswot", "snip"])
    ('dss', 'dss, naswot and snip')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def is_share(name: str) -> bool:
    """Whether the score is a share of 1, to be shown in percent."""
    return name.endswith("accuracy")


def axis_label(name: str) -> str:
    """The name with its unit.

    >>> axis_label("accuracy"), axis_label("macs")
    ('held-out accuracy (%)', 'MACs (multiply-accumulates an image)')
    """
    if is_share(name):
        return f"{label(name)} (%)"
    return {"macs": "MACs (multiply-accumulates an image)"}.get(name, label(name))


def on_axis(name: str, value: float) -> float:
    return 100 * value if is_share(name) else value


def figure_of(name: str, value: float) -> str:
    """A number as people read it; a dash where there is none.

    >>> figure_of("accuracy", 0.9634), figure_of("params", 142_346), figure_of("dss", 86.49299)
    ('96.3 %', '142,346', '86.493')
    >>> figure_of("latency_ms", math.nan)
    '–'
    """
    if math.isnan(value):
        return "–"
    if is_share(name):
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def costs_in_short(scores: Mapping[str, float]) -> str:
    """Parameters and MACs on one line.

    >>> costs_in_short({"params": 142_346, "macs": 8_100_000})
    '142K parameters · 8.1M MACs'
    """
    known = [(name, scores[name]) for name in ("params", "macs") if not math.isnan(scores.get(name, math.nan))]
    return " · ".join(f"{format_quantity(value)} {label(name)}" for name, value in known)


def window_in_words(name: str, low: float | None, high: float | None) -> str:
    """A limit of the budget.

    >>> window_in_words("params", None, 150_000), window_in_words("macs", 1e6, 2e6)
    ('parameters ≤ 150K', '1M ≤ MACs ≤ 2M')
    """
    left = "" if low is None else f"{format_quantity(low)} ≤ "
    right = "" if high is None else f" ≤ {format_quantity(high)}"
    return f"{left}{label(name)}{right}"


def kind_of(name: str) -> str:
    """What sort of model it is, by its name.

    >>> kind_of("random 2"), kind_of("ViT-S")
    ('random', 'ViT-S')
    """
    return next((kind for kind in LOOKS if name.lower().startswith(kind)), name)


def look_of(name: str) -> tuple[str, str]:
    """Marker and colour of a model of the results, the same in all plots."""
    return ("P", PURPLE) if name.startswith("best of") else LOOKS.get(kind_of(name), ("s", GREY))
