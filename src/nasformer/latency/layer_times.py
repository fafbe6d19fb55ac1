"""Times of layers: measured ones by key in a table, those of other kinds by a law fitted to the kinds like them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from nasformer.families.segment import Segment

UNTIMED_OPTIONS = frozenset(
    {"num_classes", "stochastic_depth", "layer_scale", "last_gamma", "init_std", "norm_eps", "drop_rate"}
)
"""Options of layers that change the time of a forward pass not at all, or (the number of classes) next to nothing."""


@dataclass(frozen=True)
class Entry:
    """A kind of layer: the median of its times in milliseconds, their quartiles, how many runs, and its peak memory."""

    ms: float
    low: float
    high: float
    runs: int
    bytes: int | None = None


# Kinds of layers


def key_of(segment: Segment) -> str:
    """The kind of a layer in words, which is its name in a profile.

    >>> from nasformer.layers.norm import LayerNorm
    >>> key_of(Segment.of("norm", LayerNorm, embed_dim=192))
    'LayerNorm(embed_dim=192)'
    """
    return _key(*segment.kind)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _key(layer: Any, options: tuple[tuple[str, Hashable], ...]) -> str:
    words = sorted((name, _word(value)) for name, value in options if name not in UNTIMED_OPTIONS)
    return f"{layer.__name__}({', '.join(f'{name}={value}' for name, value in words)})"


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
    sizes |= {name: _size(value) for name, value in segment.options if name not in UNTIMED_OPTIONS and _size(value) > 0}
    return {name: math.log1p(size) for name, size in sizes.items()}


def _size(value: Any) -> float:
    """A number, or the product of several, such as the positions of a grid; 0 for anything else."""
    if isinstance(value, tuple):
        return math.prod(map(_size, value))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


# Laws for kinds that were not measured

RIDGE = 1e-3  # of the number of rows: features such as MACs and width say nearly the same
REACH = 2.0  # of a measured kind, in standard deviations of the features
NOISE = 0.1  # how little a single residual is trusted, relative to how smooth residuals are
ROOM = 2.0  # factor by which a law may leave the range of the measured values


@dataclass(frozen=True)
class Law:
    """The logarithm of a value as a function of features, which are logarithms too: a power law and a Gaussian process.

    The power law has an exponent for each feature. What it misses near measured kinds (caches, odd widths, kernels that
    suit one shape) is smooth enough to be worth keeping: a Gaussian process adds the residuals of near kinds, and
    leaves the power law alone where there are none. (ESFormer on a CPU: the median error of kinds left out went from
    19 % to 8 % for inverted bottlenecks, from 11 % to 6 % for ConvNeXt blocks.)

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
        """By ridge regression, then by its residuals; features that do not vary are left out."""
        every = sorted({name for row in features for name in row})
        names = [name for name in every if len({round(row.get(name, 0.0), 9) for row in features}) > 1]
        table = np.array([[row.get(name, 0.0) for name in names] for row in features]).reshape(len(features), -1)
        centre, spread = table.mean(0), table.std(0)
        points, logs = (table - centre) / spread, np.log(np.maximum(values, 1e-12))
        gram = points.T @ points + RIDGE * len(logs) * np.eye(len(names))
        slopes = np.linalg.solve(gram, points.T @ (logs - logs.mean()))
        residuals = logs - logs.mean() - points @ slopes
        pulls = np.linalg.solve(kernel(points, points) + NOISE * np.eye(len(logs)), residuals)
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
        row = np.array([features.get(name, mean) for name, mean in zip(self.names, self.centre, strict=True)])
        point = (row - np.array(self.centre)) / np.array(self.spread)
        near = kernel(point[None], np.array(self.points).reshape(len(self.pulls), -1))[0]
        log = self.constant + point @ np.array(self.slopes) + near @ np.array(self.pulls)
        bounds = np.log([self.lowest, self.highest]) if self.lowest > 0 else (-np.inf, np.inf)
        return float(np.exp(np.clip(log, *bounds)))


def kernel(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The Gaussian process's: 1 for equal points, near 0 beyond the reach."""
    distances = ((points[:, None] - others[None]) ** 2).sum(-1)
    return np.exp(-distances / (2 * REACH**2))


def fit_laws(segments: Sequence[Segment], table: Mapping[str, Entry]) -> dict[str, dict[str, Law]]:
    """Laws of the time ("ms") and of the memory ("bytes") for every group of kinds in the table."""
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
