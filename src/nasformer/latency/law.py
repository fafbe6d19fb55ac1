"""A power law with many exponents: what the kinds of a table that were measured say about those that were not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

RIDGE = 1e-3  # of the number of rows: features such as MACs and width say nearly the same
ROOM = 2.0  # how far beyond the measured values a law may go


@dataclass(frozen=True)
class Law:
    """The logarithm of a value as a linear function of features, which are logarithms too.

    >>> sizes = [{"width": math.log(n)} for n in (8, 16, 32, 64)]
    >>> law = Law.fit(sizes, [3 * n**2 for n in (8, 16, 32, 64)])
    >>> round(law({"width": math.log(24)}) / (3 * 24**2), 2)
    1.0
    """

    names: list[str]
    centre: list[float]
    exponents: list[float]
    constant: float
    lowest: float
    highest: float

    @classmethod
    def fit(cls, features: Sequence[Mapping[str, float]], values: Sequence[float]) -> Self:
        """By ridge regression; features that do not vary have no say."""
        names = sorted({name for row in features for name in row})
        table = np.array([[row.get(name, 0.0) for name in names] for row in features])
        varying = table.std(0) > 1e-9 if names else np.zeros(0, bool)
        names, table = [name for name, varies in zip(names, varying, strict=True) if varies], table[:, varying]
        logs, centre, spread = np.log(np.maximum(values, 1e-12)), table.mean(0), table.std(0)
        scaled = (table - centre) / spread
        gram = scaled.T @ scaled + RIDGE * len(logs) * np.eye(len(names))
        exponents = np.linalg.solve(gram, scaled.T @ (logs - logs.mean())) / spread if names else np.zeros(0)
        ends = float(min(values)) / ROOM, float(max(values)) * ROOM
        return cls(names, centre.tolist(), exponents.tolist(), float(logs.mean()), *ends)

    def __call__(self, features: Mapping[str, float]) -> float:
        terms = zip(self.names, self.centre, self.exponents, strict=True)
        log = self.constant + sum(power * (features.get(name, mean) - mean) for name, mean, power in terms)
        return min(max(math.exp(log), self.lowest), self.highest)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
