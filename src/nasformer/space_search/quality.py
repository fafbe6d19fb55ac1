"""Quality of a space (S3): the E-T error of its archs, and how that depends on the values of a dimension.

The E-T error is the mean of the expected error of all samples and that of the top ones. S3 samples archs within a
budget and takes the best 50 as the top. Groups of samples (those that use a value of a dimension) differ in size, so
for them the top is the same share of the group: ours, as the paper is silent.

An arch may use several values of a dimension, one in each block. It then belongs to each in proportion, so that every
arch weighs 1 in every dimension. Counts are sums of these weights: in archs, not in blocks.

The paper fits a line through the E-T errors of a dimension's values. Its standard error is ours, by resampling the
archs: a dimension often has two values or three, so the residuals of a line say nothing. It covers the luck of the
draw, not that of the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nasformer.space.arch import Arch
from nasformer.space.dimensions import uses
from nasformer.space.node import Node
from nasformer.space.nodes import Scalar

RESAMPLES = 200


@dataclass(frozen=True)
class Quality:
    """The errors of a space in %, lower is better.

    >>> Quality(expected=30.0, top=20.0).et
    25.0
    """

    expected: float
    top: float

    @property
    def et(self) -> float:
        return (self.expected + self.top) / 2


def measure_quality(errors: Sequence[float], share: float) -> Quality:
    """The E-T error of samples, of which the best `share` are the top: at least one of them.

    >>> measure_quality([40, 10, 30, 20], share=0.5)
    Quality(expected=25.0, top=15.0)
    """
    sorted_errors = np.sort(np.asarray(errors, dtype=float))
    expected, top = group_errors(sorted_errors, np.ones(len(sorted_errors)), share)
    return Quality(float(expected), float(top))


def group_errors(errors: np.ndarray, weights: np.ndarray, share: float) -> tuple[Any, Any]:
    """The expected and the top error of groups of samples.

    The top of a group are its best samples up to the share of the group's weight, the last of them in part. It has the
    weight of one arch at least, where the group has.

    Args:
        errors: Of all samples, the smallest first.
        weights: How much each sample (last axis) belongs to each group (axes before).
    """
    up_to = np.cumsum(weights, axis=-1)
    total = up_to[..., -1]
    mass = np.minimum(total, np.maximum(1.0, share * total))
    taken = np.clip(mass[..., None] - (up_to - weights), 0.0, weights)
    with np.errstate(invalid="ignore"):  # a group without samples has no error
        return (weights * errors).sum(-1) / total, (taken * errors).sum(-1) / mass


@dataclass(frozen=True)
class Line:
    """error = slope * (value / step) + intercept: the slope is in error-% for each step of the dimension."""

    slope: float
    stderr: float
    intercept: float


@dataclass(frozen=True)
class Tendency:
    """Counts and E-T errors by value (None where no sample has it), and the line where there are two values or more."""

    counts: tuple[float, ...]
    et: tuple[float | None, ...]
    line: Line | None


def use_shares(root: Node, archs: Sequence[Arch], choices: Mapping[str, Sequence[Scalar]]) -> dict[str, np.ndarray]:
    """For each dimension a table of archs by values: the share of the arch's places that have the value.

    >>> from nasformer.space import Choice, Repeat, Struct
    >>> root = Struct(blocks=Repeat(Struct(window=Choice(7, 14)), depth=Choice(1, 4)))
    >>> arch = Arch(blocks=[{"window": 7}, {"window": 7}, {"window": 7}, {"window": 14}])
    >>> use_shares(root, [arch], {"blocks.window": (7, 14)})["blocks.window"].tolist()
    [[0.75, 0.25]]
    """
    shares = {name: np.zeros((len(archs), len(values))) for name, values in choices.items()}
    columns = {name: {value: column for column, value in enumerate(values)} for name, values in choices.items()}
    for row, arch in enumerate(archs):
        found = Counter(use for use in uses(root, arch) if use[0] in choices)
        places = Counter[str]()
        for (name, _), count in found.items():
            places[name] += count
        for (name, value), count in found.items():
            shares[name][row, columns[name][value]] = count / places[name]
    return shares


def fit_tendency(
    values: Sequence[float],
    shares: np.ndarray,
    errors: np.ndarray,
    *,
    top: float,
    step: float,
    min_samples: float,
    seed: int = 0,
) -> Tendency:
    """How the E-T error depends on the values of a dimension.

    Args:
        shares: Of the samples by values, see `use_shares`; sorted like the errors.
        errors: Of the samples in %, the smallest first.
        top: The share of a group that is its top.
        step: The unit of the slope.
        min_samples: Values of a smaller count are left out of the line.
    """
    counts, et = et_errors(shares, errors, top, np.ones((1, len(errors))))
    known = counts[0] >= max(min_samples, np.finfo(float).tiny)
    line = None
    if known.sum() >= 2:
        draws = np.random.default_rng(seed).multinomial(len(errors), np.full(len(errors), 1 / len(errors)), RESAMPLES)
        places = np.asarray(values, dtype=float)[known] / step
        slope, intercept = fit_line(places, et[:, known], counts[:, known])
        others, _ = fit_line(places, *reversed(et_errors(shares[:, known], errors, top, draws)))
        line = Line(float(slope[0]), float(np.nanstd(others, ddof=1)), float(intercept[0]))
    known_et = tuple(None if np.isnan(error) else float(error) for error in et[0])
    return Tendency(tuple(counts[0].tolist()), known_et, line)


def et_errors(shares: np.ndarray, errors: np.ndarray, top: float, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts and E-T errors by draw and value; a draw has how often each sample is in it."""
    weights = draws[:, None, :] * shares.T[None]
    expected, best = group_errors(errors, weights, top)
    return weights.sum(-1), (expected + best) / 2


def fit_line(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept by weighted least squares, along the last axis.

    >>> slope, intercept = fit_line(np.array([1.0, 2.0, 3.0]), np.array([5.0, 7.0, 9.0]), np.array([1.0, 1.0, 2.0]))
    >>> float(slope), float(intercept)
    (2.0, 3.0)
    """
    total = weights.sum(-1)
    mean_x, mean_y = (weights * x).sum(-1) / total, (weights * y).sum(-1) / total
    away = x - mean_x[..., None]
    with np.errstate(invalid="ignore"):  # a draw may have a single value, and so no slope
        slope = (weights * away * y).sum(-1) / (weights * away**2).sum(-1)
    return slope, mean_y - slope * mean_x
