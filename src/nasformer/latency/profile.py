"""A profile: what a machine was measured to need for the layers of a space, and what that says of any net in it.

The latency of a net is about the sum over its layers. Times come from a table of kinds of layers, or by a law from
kinds that are like it; `overhead_ms` and `scale` then turn the sum into what whole nets were measured to take.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from nasformer.errors import UserError
from nasformer.families.segment import Segment
from nasformer.files import read_json, write_json
from nasformer.latency.kinds import features_of, group_of, key_of
from nasformer.latency.law import Law

VERSION = 1
FLOAT = 4  # bytes of a weight


@dataclass(frozen=True)
class Entry:
    """A kind of layer: the median of its times in milliseconds, their quartiles, how many runs, and its peak memory."""

    ms: float
    low: float
    high: float
    runs: int
    bytes: int | None = None


@dataclass(frozen=True)
class Profile:
    """What was measured, and where.

    Args:
        options: The model's options, such as the image size.
        setup: How: device, backend, batch_size, threads, precision, clock.
        machine: Processor, GPU, and the versions of what ran.
        table: The kinds of layers by `key_of`.
        laws: For kinds beyond the table, by `group_of`: a law of the time ("ms") and of the memory ("bytes").
        holdout: How well nets were predicted that had no part in all this.
        image_bytes: The batch of images, which is held as long as a net runs.
    """

    space: str
    options: Mapping[str, Any]
    setup: Mapping[str, Any]
    machine: Mapping[str, Any]
    table: Mapping[str, Entry]
    laws: Mapping[str, Mapping[str, Law]]
    overhead_ms: float = 0.0
    scale: float = 1.0
    image_bytes: int = 0
    holdout: Mapping[str, Any] = field(default_factory=dict)

    def costs(self, plan: Sequence[Segment]) -> dict[str, float]:
        """The predicted costs of a net, by the names that budgets use."""
        found: dict[str, float] = {"latency_ms": self.latency_ms(plan)}
        return found | {"memory_bytes": self.memory_bytes(plan)} if self.knows_memory else found

    def latency_ms(self, plan: Sequence[Segment]) -> float:
        return round(max(0.0, self.overhead_ms + self.scale * self.sum_ms(plan)), 4)

    def sum_ms(self, plan: Sequence[Segment]) -> float:
        """The plain sum over the layers."""
        return sum(self._of(segment, "ms") for segment in plan)

    @property
    def knows_memory(self) -> bool:
        return all(entry.bytes is not None for entry in self.table.values())

    def memory_bytes(self, plan: Sequence[Segment]) -> int:
        """Weights, images, and the most that a layer holds at a time."""
        weights = FLOAT * sum(segment.cost().params for segment in plan)
        return weights + self.image_bytes + round(max(self._of(segment, "bytes") for segment in plan))

    def coverage(self, plan: Sequence[Segment]) -> float:
        """The share of the layers that the table holds."""
        return sum(key_of(segment) in self.table for segment in plan) / len(plan)

    def _of(self, segment: Segment, what: str) -> float:
        place = key_of(segment), what
        if place not in self._known:
            entry = self.table.get(place[0])
            self._known[place] = getattr(entry, what) if entry else self._by_law(segment, what)
        return self._known[place]

    def _by_law(self, segment: Segment, what: str) -> float:
        group = group_of(segment)
        if group not in self.laws:
            raise UserError(
                f"the profile of {self.space} has no {group}, which this architecture needs; profile the space again"
            )
        return self.laws[group][what](features_of(segment))

    @cached_property
    def _known(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Tells profiles apart, so that a journal never mixes the costs of two."""
        return hashlib.blake2b(json.dumps(self.to_dict(), sort_keys=True).encode(), digest_size=8).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {"profile": VERSION, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        values = {name: value for name, value in content.items() if name != "profile"}
        values["table"] = {key: Entry(**entry) for key, entry in values["table"].items()}
        values["laws"] = {
            group: {what: Law(**law) for what, law in laws.items()} for group, laws in values["laws"].items()
        }
        return cls(**values)

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        if not Path(path).is_file():
            raise UserError(f"there is no profile {path}; make one with nasformer profile --out {path}")
        try:
            content = read_json(Path(path))
            if content["profile"] != VERSION:
                raise UserError(f"{path} is a profile of another version of nasformer; profile the space again")
            return cls.from_dict(content)
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{path} is not a profile; make one with nasformer profile --out {path}") from None


def fit_laws(segments: Sequence[Segment], table: Mapping[str, Entry]) -> dict[str, dict[str, Law]]:
    """What the table says of kinds that it does not hold, by group."""
    kinds = {key_of(segment): segment for segment in segments if key_of(segment) in table}
    groups: dict[str, list[str]] = {}
    for key, segment in kinds.items():
        groups.setdefault(group_of(segment), []).append(key)
    laws: dict[str, dict[str, Law]] = {}
    for group, keys in groups.items():
        features, laws[group] = [features_of(kinds[key]) for key in keys], {}
        for what in ("ms", "bytes"):
            values = [getattr(table[key], what) for key in keys]
            if None not in values:
                laws[group][what] = Law.fit(features, values)
    return laws


def fit_line(sums: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Overhead and scale with the least relative errors, of which a few large ones may be accidents.

    So what counts is their size, not its square. The overhead is never negative: that would promise small nets for
    less than their layers take.

    >>> overhead, scale = fit_line([1, 2, 3, 4, 5], [2.5, 4.5, 6.5, 80, 10.5])
    >>> round(overhead, 2), round(scale, 2)
    (0.5, 2.0)
    """
    times, rows = np.asarray(measured, float), np.asarray(sums, float)
    design = np.stack([np.ones_like(rows), rows], 1) / times[:, None]
    line = absolute_fit(design)
    return (float(line[0]), float(line[1])) if line[0] >= 0 else (0.0, float(absolute_fit(design[:, 1:])[0]))


def absolute_fit(design: np.ndarray, rounds: int = 50, least: float = 1e-3) -> np.ndarray:
    """The coefficients that make all rows as near to 1 as can be, by the sum of the distances: reweighted squares."""
    weights = np.ones(len(design))
    for _ in range(rounds):
        found, *_rest = np.linalg.lstsq(design * weights[:, None], weights, rcond=None)
        weights = np.maximum(np.abs(design @ found - 1), least) ** -0.5
    return found
