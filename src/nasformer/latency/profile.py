"""A profile: what a machine was measured to need for the layers of a space, and what that says of any net in it.

The latency of a net is about the sum over its layers. Times come from a table of kinds of layers, or by a law from
kinds that are like it; `overhead_ms` and `scale` then turn the sum into what whole nets were measured to take.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from nasformer.errors import UserError
from nasformer.families.segment import Segment
from nasformer.utils.files import read_json, write_json

# ----------------------------------------------------------------------------------------------------------------------
# What a kind of segment is to a clock: a key for the table, and features for kinds that the table does not hold.
# ----------------------------------------------------------------------------------------------------------------------

UNTIMED = frozenset(
    {"num_classes", "stochastic_depth", "layer_scale", "last_gamma", "init_std", "norm_eps", "drop_rate"}
)
"""Options of layers that change the time of a forward pass not at all, or (the number of classes) next to nothing."""


def key_of(segment: Segment) -> str:
    """The kind in words, which is its name in a profile.

    >>> from nasformer.layers.norm import LayerNorm
    >>> key_of(Segment.of("norm", LayerNorm, embed_dim=192))
    'LayerNorm(embed_dim=192)'
    """
    return _key(*segment.kind)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _key(layer: Any, options: tuple[tuple[str, Hashable], ...]) -> str:
    told = sorted((name, _word(value)) for name, value in options if name not in UNTIMED)
    return f"{layer.__name__}({', '.join(f'{name}={value}' for name, value in told)})"


def _word(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def group_of(segment: Segment) -> str:
    """Kinds that differ in numbers alone: one law may hold for them."""
    classes = [f"{name}={_word(value)}" for name, value in segment.options if isinstance(value, type | str)]
    return ", ".join([segment.layer.__name__, *classes])


def features_of(segment: Segment) -> dict[str, float]:
    """Logarithms of all that a time may grow with, as a power of it: MACs, parameters and the options in numbers."""
    cost = segment.cost()
    sizes: dict[str, float] = {"macs": cost.macs + cost.position_macs, "params": cost.params}
    sizes |= {name: _size(value) for name, value in segment.options if name not in UNTIMED and _size(value) > 0}
    return {name: math.log1p(size) for name, size in sizes.items()}


def _size(value: Any) -> float:
    """A number, or the product of several, such as the places of a grid; 0 for what is none."""
    if isinstance(value, tuple):
        return math.prod(map(_size, value))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


# ----------------------------------------------------------------------------------------------------------------------
# What the kinds of a table that were measured say about those that were not: a power law, bent towards neighbours.
#
# The power law has an exponent for each feature. What it misses near measured kinds (caches, odd widths, kernels that
# suit one shape) is smooth enough to be worth keeping: a Gaussian process takes the misses of near kinds into account,
# and leaves the power law alone where there are none. (ESFormer on a CPU: the median miss of kinds left out went from
# 19 % to 8 % for inverted bottlenecks, from 11 % to 6 % for ConvNeXt blocks.)
# ----------------------------------------------------------------------------------------------------------------------

RIDGE = 1e-3  # of the number of rows: features such as MACs and width say nearly the same
REACH = 2.0  # of a measured kind, in standard deviations of the features
NOISE = 0.1  # how little a single miss is trusted, relative to how smooth misses are
ROOM = 2.0  # how far beyond the measured values a law may go


@dataclass(frozen=True)
class Law:
    """The logarithm of a value as a function of features, which are logarithms too.

    >>> sizes = [{"width": float(np.log(n))} for n in (8, 16, 32, 64)]
    >>> law = Law.fit(sizes, [3 * n**2 for n in (8, 16, 32, 64)])
    >>> round(law({"width": float(np.log(24))}) / (3 * 24**2), 2)
    1.0
    """

    names: list[str]
    centre: list[float]
    spread: list[float]
    slopes: list[float]
    constant: float
    points: list[list[float]]
    pulls: list[float]
    lowest: float
    highest: float

    @classmethod
    def fit(cls, features: Sequence[Mapping[str, float]], values: Sequence[float]) -> Self:
        """By ridge regression, then by what that missed; features that do not vary have no say."""
        found = sorted({name for row in features for name in row})
        names = [name for name in found if len({round(row.get(name, 0.0), 9) for row in features}) > 1]
        table = np.array([[row.get(name, 0.0) for name in names] for row in features]).reshape(len(features), -1)
        centre, spread = table.mean(0), table.std(0)
        points, logs = (table - centre) / spread, np.log(np.maximum(values, 1e-12))
        gram = points.T @ points + RIDGE * len(logs) * np.eye(len(names))
        slopes = np.linalg.solve(gram, points.T @ (logs - logs.mean()))
        missed = logs - logs.mean() - points @ slopes
        pulls = np.linalg.solve(nearness(points, points) + NOISE * np.eye(len(logs)), missed)
        return cls(
            names=names,
            centre=centre.tolist(),
            spread=spread.tolist(),
            slopes=slopes.tolist(),
            constant=float(logs.mean()),
            points=points.tolist(),
            pulls=pulls.tolist(),
            lowest=float(min(values)) / ROOM,
            highest=float(max(values)) * ROOM,
        )

    def __call__(self, features: Mapping[str, float]) -> float:
        found = np.array([features.get(name, mean) for name, mean in zip(self.names, self.centre, strict=True)])
        point = (found - np.array(self.centre)) / np.array(self.spread)
        near = nearness(point[None], np.array(self.points).reshape(len(self.pulls), -1))[0]
        log = self.constant + point @ np.array(self.slopes) + near @ np.array(self.pulls)
        bounds = np.log([self.lowest, self.highest]) if self.lowest > 0 else (-np.inf, np.inf)
        return float(np.exp(np.clip(log, *bounds)))


def nearness(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 for the same place, near 0 beyond the reach."""
    distances = ((points[:, None] - others[None]) ** 2).sum(-1)
    return np.exp(-distances / (2 * REACH**2))


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
