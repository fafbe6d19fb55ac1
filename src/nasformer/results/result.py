"""The result of a run (`result.json`): the winner beside its references, as typed values.

A run that searched with a supernet, one that searched without training and the training of a single model all end
with a `RunResult`; what does not apply to a run is None and left out of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.latency.finalists import LatencyResult
from nasformer.search.problem import Candidate, plain_scores
from nasformer.space.arch import Arch
from nasformer.supernet.health import SupernetHealth
from nasformer.utils.files import read_json, write_json
from nasformer.utils.schema import from_json, to_json

VERSION = 1


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
        if not isinstance(arch := entry.get("arch") or {}, dict):
            raise ValueError("arch is not an object")
        numbers = {key: value for key, value in entry.items() if key not in NOT_SCORES and is_number(key, value)}
        name = entry.get("name") or (f"#{entry['id']}" if "id" in entry else "model")
        return cls(str(name), arch, plain_scores(numbers))


NOT_SCORES = frozenset({"name", "arch", "id", "generation", "origin", "parents"})


def is_number(name: str, value: Any) -> bool:
    if isinstance(value, int | float | None) and not isinstance(value, bool):
        return True
    if name in ("params", "macs") or "accuracy" in name:
        raise ValueError(f"{name} is {value!r}, expected a number")
    return False


@dataclass(frozen=True)
class RunResult:
    """What a run found.

    Args:
        space: The name of the space.
        data: The images, as they were named; None for a search without data.
        winner: The model that the run is about.
        references: What it has to beat: a random arch, the smallest and largest in the budget, baselines.
        budget: The limits in words.
        proxies: The scores of a search without training.
        candidates: How many architectures a search without training judged.
        timm: Models of timm that fit the budget, with their costs alone.
        front: The Pareto front of the search, cheapest first.
        health: How the supernet's subnets compare.
        latency: The finalists as predicted and as measured, where the search went by a profile.
        note: Why the search ended early, or nothing.
    """

    space: str
    data: str | None
    winner: ModelResult
    references: list[ModelResult] = field(default_factory=list)
    budget: str | None = None
    proxies: list[str] | None = None
    candidates: int | None = None
    timm: list[ModelResult] | None = None
    front: list[Candidate] | None = None
    health: SupernetHealth | None = None
    latency: LatencyResult | None = None
    note: str | None = None
    version: int = VERSION

    @property
    def models(self) -> list[ModelResult]:
        return [self.winner, *self.references]

    @property
    def arch(self) -> Arch:
        """The architecture of the winner."""
        return Arch.from_dict(self.winner.arch)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; what does not apply to the run is left out."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: to_json(value) for name, value in content.items() if value is not None or name == "data"}

    def save(self, path: Path) -> None:
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Reads a `result.json`; one of another shape or of a newer version is refused with the field that is wrong."""
        content = read_json(path)
        if int_or_zero(content.get("version", VERSION)) > VERSION:
            raise UserError(f"{path} was written by a newer nasformer (version {content['version']}); update nasformer")
        return from_json(cls, content, path)


def int_or_zero(value: Any) -> int:
    return value if isinstance(value, int) else 0
