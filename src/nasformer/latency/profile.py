"""A profile: what a machine was measured to need for the layers of a space, and what that says of any net in it.

The latency of a net is about the sum over its layers (`layer_times.py`). `overhead_ms` and `scale` then turn the sum
into what whole nets were measured to take.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from nasformer.errors import UserError
from nasformer.families.segment import Segment
from nasformer.latency.layer_times import Entry, Law, features_of, group_of, key_of
from nasformer.latency.measure import Machine
from nasformer.utils.files import read_json, write_json
from nasformer.utils.schema import from_json, to_json

VERSION = 1
FLOAT_BYTES = 4  # of a weight
MAX_ERROR = 0.1  # median on the hold-out, from which on a profile is not used unless it is named


@dataclass(frozen=True)
class Setup:
    """How nets were run and timed; `pace_ms` is the time of the reference net: low quartile, median, high quartile."""

    device: str
    backend: str
    batch_size: int
    threads: int
    precision: str
    clock: str
    rounds: int
    pace_ms: tuple[float, float, float]


@dataclass(frozen=True)
class HoldOut:
    """How well nets were predicted that had no part in the profile; errors are relative to what was measured."""

    nets: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    median_error_uncalibrated: float | None = None
    from_table: float | None = None
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    median_memory_error: float | None = None
    p90_memory_error: float | None = None
    measured_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """What was measured, and where.

    Args:
        options: The model's options, such as the image size.
        table: The kinds of layers by `key_of`.
        laws: For kinds beyond the table, by `group_of`: a law of the time ("ms") and of the memory ("bytes").
        image_bytes: The batch of images, which is held as long as a net runs.
    """

    space: str
    options: dict[str, Any]
    setup: Setup
    machine: Machine
    table: dict[str, Entry]
    laws: dict[str, dict[str, Law]]
    overhead_ms: float = 0.0
    scale: float = 1.0
    image_bytes: int = 0
    holdout: HoldOut = field(default_factory=HoldOut)

    def costs(self, plan: Sequence[Segment]) -> dict[str, float]:
        """The predicted costs of a net, by the names that budgets use."""
        latency: dict[str, float] = {"latency_ms": self.latency_ms(plan)}
        return latency | {"memory_bytes": self.memory_bytes(plan)} if self.has_memory else latency

    def latency_ms(self, plan: Sequence[Segment]) -> float:
        return round(max(0.0, self.overhead_ms + self.scale * self.sum_ms(plan)), 4)

    def sum_ms(self, plan: Sequence[Segment]) -> float:
        """The plain sum over the layers."""
        return sum(self._value(segment, "ms") for segment in plan)

    @property
    def has_memory(self) -> bool:
        return all(entry.bytes is not None for entry in self.table.values())

    def memory_bytes(self, plan: Sequence[Segment]) -> int:
        """Weights, images, and the most that a layer holds at a time."""
        return weight_bytes(plan) + self.image_bytes + round(max(self._value(segment, "bytes") for segment in plan))

    def coverage(self, plan: Sequence[Segment]) -> float:
        """The share of the layers that the table holds."""
        return sum(key_of(segment) in self.table for segment in plan) / len(plan)

    @property
    def is_inaccurate(self) -> bool:
        return self.holdout.median_error is not None and self.holdout.median_error > MAX_ERROR

    @property
    def pace(self) -> float:
        """The median pace in seconds: the level that all times are brought to."""
        return self.setup.pace_ms[1] / 1000

    def _value(self, segment: Segment, what: str) -> float:
        """Of a layer, "ms" or "bytes"."""
        cell = key_of(segment), what
        if cell not in self._cache:
            entry = self.table.get(cell[0])
            self._cache[cell] = getattr(entry, what) if entry else self._by_law(segment, what)
        return self._cache[cell]

    def _by_law(self, segment: Segment, what: str) -> float:
        group = group_of(segment)
        if group not in self.laws:
            raise UserError(
                f"the profile of {self.space} has no {group}, which this architecture needs; profile the space again"
            )
        return self.laws[group][what](features_of(segment))

    @cached_property
    def _cache(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Tells profiles apart, so that a journal never mixes the costs of two."""
        return hashlib.blake2b(json.dumps(self.to_dict(), sort_keys=True).encode(), digest_size=8).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        content = to_json(self)
        for part in ("machine", "holdout"):
            content[part] = {name: value for name, value in content[part].items() if value is not None}
        return {"profile": VERSION, **content}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        remedy = f"make one with nasformer profile --out {path}"
        if not Path(path).is_file():
            raise UserError(f"there is no profile {path}; {remedy}")
        content = read_json(Path(path))
        if "profile" not in content:
            raise UserError(f"{path} is not a profile; {remedy}")
        if content["profile"] != VERSION:
            raise UserError(f"{path} is a profile of another version of nasformer; profile the space again")
        return from_json(cls, content, path, f"it is not a profile as nasformer writes it; {remedy}")


def weight_bytes(plan: Sequence[Segment]) -> int:
    return FLOAT_BYTES * sum(segment.cost().params for segment in plan)


# Calibration: from sums over layers to whole nets


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
    line = least_absolute_deviations(design)
    return (
        (float(line[0]), float(line[1])) if line[0] >= 0 else (0.0, float(least_absolute_deviations(design[:, 1:])[0]))
    )


def least_absolute_deviations(design: np.ndarray, rounds: int = 50, least: float = 1e-3) -> np.ndarray:
    """The coefficients that make the rows of a design as near to 1 as can be, by iteratively reweighted squares."""
    weights = np.ones(len(design))
    for _ in range(rounds):
        coefficients, *_rest = np.linalg.lstsq(design * weights[:, None], weights, rcond=None)
        weights = np.maximum(np.abs(design @ coefficients - 1), least) ** -0.5
    return coefficients
