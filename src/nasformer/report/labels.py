"""Names, numbers and models in words, the same in plots, pages and terminal tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nasformer.search.problem import Candidate, ModelResult, shown_scores
from nasformer.tasks.options import split_scores, task_scores
from nasformer.utils.figures import GREY, ORANGE, PURPLE, RED, SKY
from nasformer.utils.units import format_quantity

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
    """What sort of model it is, by its name.

    >>> model_kind("random 2"), model_kind("ViT-S")
    ('random', 'ViT-S')
    """
    return next((kind for kind in MARKERS if name.lower().startswith(kind)), name)


def marker_of(name: str) -> tuple[str, str]:
    """Marker and colour of a model of the results, the same in all plots."""
    return ("P", PURPLE) if name.startswith("best of") else MARKERS.get(model_kind(name), ("s", GREY))
