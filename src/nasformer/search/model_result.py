"""A model in the results of a run: its name, architecture and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from nasformer.search.problem import plain_scores

NOT_SCORES = frozenset({"name", "arch", "id", "generation", "origin", "parents"})


@dataclass(frozen=True)
class ModelResult:
    """A model of the results: its architecture, and its costs and scores by name (NaN where unknown).

    >>> model = ModelResult("winner", {"depth": 12}, {"params": 500, "test_accuracy": 0.75})
    >>> model.to_dict()
    {'name': 'winner', 'arch': {'depth': 12}, 'params': 500, 'test_accuracy': 0.75}
    """

    name: str
    arch: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, score: str) -> float:
        return self.scores[score]

    def get(self, score: str) -> float:
        """A cost or score; NaN where the run did not find it."""
        return self.scores.get(score, math.nan)

    def with_scores(self, scores: Mapping[str, float]) -> ModelResult:
        return replace(self, scores={**self.scores, **scores})

    def to_dict(self) -> dict[str, Any]:
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        return {"name": self.name, "arch": self.arch, **scores}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> ModelResult:
        """Reads a model; texts among its numbers are let be, candidates of a front have an id in place of a name."""
        if not isinstance(arch := {} if entry.get("arch") is None else entry["arch"], dict):
            raise ValueError("arch is not an object")
        numbers = {key: value for key, value in entry.items() if key not in NOT_SCORES and is_number(key, value)}
        name = entry.get("name") or (f"#{entry['id']}" if "id" in entry else "model")
        return cls(str(name), arch, plain_scores(numbers))


def is_number(name: str, value: Any) -> bool:
    if isinstance(value, int | float | None) and not isinstance(value, bool):
        return True
    if name in ("params", "macs") or "accuracy" in name:
        raise ValueError(f"{name} is {value!r}, expected a number")
    return False


@dataclass(frozen=True)
class MeanScore:
    """The mean of a score over models, and the standard error of that mean (NaN for fewer than two models).

    >>> models = [ModelResult("random", scores={"accuracy": value}) for value in (0.75, 0.5, 0.25)]
    >>> found = MeanScore.of(models, "accuracy")
    >>> found.mean, round(found.error, 3), found.count
    (0.5, 0.144, 3)
    """

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, models: Sequence[ModelResult], score: str) -> MeanScore:
        """Over the models that have the score."""
        values = [value for model in models if math.isfinite(value := model.get(score))]
        count = len(values)
        error = stdev(values) / math.sqrt(count) if count > 1 else math.nan
        return cls(fmean(values) if values else math.nan, error, count)
