"""The two records of a search: what a strategy proposes, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from nasformer.space import Arch


@dataclass(frozen=True)
class Proposal:
    """An architecture that a strategy wants judged; `parents` are ids of the candidates it descends from."""

    arch: Arch
    origin: str
    generation: int = 0
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A judged architecture; `scores` holds its costs and what the evaluation said, by name.

    >>> candidate = Candidate(7, 1, "mutation", (3,), Arch(depth=12), {"params": 500, "accuracy": 0.75})
    >>> list(candidate.to_dict())
    ['id', 'generation', 'origin', 'parents', 'arch', 'params', 'accuracy']
    >>> Candidate.from_dict(candidate.to_dict()) == candidate
    True
    """

    id: int
    generation: int
    origin: str
    parents: tuple[int, ...]
    arch: Arch
    scores: Mapping[str, float] = field(hash=False)

    @classmethod
    def judged(cls, id: int, proposal: Proposal, scores: Mapping[str, float]) -> Candidate:
        return cls(id, proposal.generation, proposal.origin, proposal.parents, proposal.arch, scores)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no word for infinity and NaN: such scores become None."""
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        head = {"id": self.id, "generation": self.generation, "origin": self.origin}
        return {**head, "parents": list(self.parents), "arch": self.arch.to_dict(), **scores}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Candidate:
        scores = dict(record)
        head = {name: scores.pop(name) for name in ("id", "generation", "origin")}
        parents, arch = tuple(scores.pop("parents")), Arch.from_dict(scores.pop("arch"))
        return cls(**head, parents=parents, arch=arch, scores=plain_scores(scores))


RESERVED = frozenset({"id", "generation", "origin", "parents", "arch"})


def plain_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Scores as Python numbers, whatever the evaluation returned; None, NaN and the infinities become NaN."""
    if clash := RESERVED & scores.keys():
        raise ValueError(f"a score cannot be named {min(clash)!r}, that is a field of the candidate")
    return {name: _number(value) for name, value in scores.items()}


def _number(value: Any) -> float:
    if isinstance(value, Integral):
        return int(value)
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan
