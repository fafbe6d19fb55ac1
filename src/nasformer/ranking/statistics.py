"""Rank correlations with bootstrap intervals, over all rows, within size bands, and given the size.

All of these go by ranks, so that a logarithm of a score or of the parameter count changes nothing. What is not defined,
because all values are equal, is None or NaN.

Of the two partial correlations, trust rho. A noisy copy of the size has a partial rho of about 0, as it should; its
partial tau can be 0.1 or 0.2, since a product of two taus is not the tau that size alone would bring about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from nasformer.errors import UserError
from nasformer.utils.statistics import kendall, spearman

Floats = NDArray[np.floating]
Interval = tuple[float, float]
BANDS = 5


def signs(values: ArrayLike) -> Floats:
    """The sign of the difference of every two values.

    >>> signs([2.0, 5.0, 5.0])
    array([[ 0., -1., -1.],
           [ 1.,  0.,  0.],
           [ 1.,  0.,  0.]], dtype=float32)
    """
    given = np.asarray(values, dtype=np.float64)
    return np.greater.outer(given, given).astype(np.float32) - np.less.outer(given, given).astype(np.float32)


class Resamples:
    """Rank correlations of the rows themselves and of bootstrap resamples of them, one value for each in this order.

    A resample is how often it holds each row: weights w. With s_ij = sign(x_i - x_j) and t_ij = sign(y_i - y_j),
    Kendall's tau-b of it is sum w_i w_j s_ij t_ij / sqrt(sum w_i w_j s_ij^2 * sum w_i w_j t_ij^2). A row's mid-rank in
    it is, up to a constant, half of sum_j w_j s_ij, and Spearman's rho is the weighted correlation of these, whose
    weighted means are 0. So a thousand resamples are a few matrix products. Copies of a row are ties in x and in y,
    which tau-b does not count.
    """

    def __init__(self, rows: int, resamples: int = 1000, seed: int = 0) -> None:
        drawn = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=resamples)
        # Single precision is twice as fast, and exact: the products below add up whole numbers of at most `rows`.
        self.weights = np.concatenate([np.ones((1, rows)), drawn]).astype(np.float32)

    def kendall(self, x: Floats, y: Floats, pairs: Floats | None = None) -> Floats:
        """Tau-b from the signs of x and of y, over all pairs or over those that a matrix marks with 1."""
        marked = np.float32(1) if pairs is None else pairs
        return _ratio(self._total(x * y * marked), self._total(np.abs(x) * marked) * self._total(np.abs(y) * marked))

    def spearman(self, x: Floats, y: Floats) -> Floats:
        """Rho from the signs of x and of y."""
        ranks_x, ranks_y = ((self.weights @ each).astype(np.float64) for each in (x, y))
        products = (ranks_x * ranks_y, ranks_x**2, ranks_y**2)
        xy, xx, yy = (np.einsum("bi,bi->b", self.weights, product) for product in products)
        return _ratio(xy, xx * yy)

    def _total(self, matrix: Floats) -> Floats:
        """The sum of a matrix over all pairs of rows of each resample."""
        return np.einsum("bi,bi->b", self.weights @ matrix, self.weights, dtype=np.float64)


def _ratio(joint: Floats, squares: Floats) -> Floats:
    """joint / sqrt(squares), and NaN where all is tied."""
    return np.divide(joint, np.sqrt(squares), out=np.full_like(joint, np.nan), where=squares > 0)


@dataclass(frozen=True)
class Estimate:
    """A statistic and its bootstrap interval; both None where the statistic is not defined."""

    value: float | None
    interval: Interval | None

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval is not None and self.interval[0] > 0

    @classmethod
    def of(cls, values: Sequence[float] | Floats, level: float = 0.95) -> Estimate:
        """From the statistic of the rows themselves and, after it, of their resamples."""
        if not math.isfinite(values[0]):
            return cls(None, None)
        return cls(float(values[0]), percentiles(values[1:], level))


def percentiles(values: Sequence[float] | Floats, level: float = 0.95) -> Interval | None:
    """The interval that holds the middle part of the values; those that are not defined are left out."""
    finite = np.asarray(values)[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def size_bands(size: ArrayLike, bands: int = BANDS) -> NDArray[np.intp]:
    """The band of each row, 0 for the smallest: as many rows in each as equal sizes, which share a band, allow.

    >>> size_bands([10, 20, 30, 40, 50, 60], bands=3), size_bands([10, 10, 10, 40], bands=2)
    (array([0, 0, 1, 1, 2, 2]), array([0, 0, 0, 1]))
    """
    if bands < 1:
        raise UserError(f"bands is {bands}, expected 1 or more")
    ranks = stats.rankdata(size) - 0.5  # mid-ranks: the order of the rows, often by accuracy, must not matter
    return (ranks * bands / len(ranks)).astype(np.intp)


def same_band(band: NDArray[np.intp]) -> Floats:
    """Which pairs of rows share a band, as a matrix of ones and zeros."""
    return np.equal.outer(band, band).astype(np.float32)


def kendall_by_band(x: ArrayLike, y: ArrayLike, band: NDArray[np.intp], bands: int) -> list[float | None]:
    """Kendall's tau-b within each band; None for a band with fewer than two different values."""
    scores, accuracies = np.asarray(x), np.asarray(y)
    return [kendall(scores[band == number], accuracies[band == number]) for number in range(bands)]


def partial_kendall(x: ArrayLike, y: ArrayLike, size: ArrayLike) -> float | None:
    """Kendall's partial tau of score and accuracy given the size."""
    return partial(kendall(x, y), kendall(x, size), kendall(y, size))


def partial_spearman(x: ArrayLike, y: ArrayLike, size: ArrayLike) -> float | None:
    """Spearman's partial rho of score and accuracy given the size."""
    return partial(spearman(x, y), spearman(x, size), spearman(y, size))


def partial(xy: float | None, xz: float | None, yz: float | None) -> float | None:
    """The correlation of x and y given z, from the three correlations; None where z alone decides x or y.

    >>> partial(0.25, 0.5, 0.5), partial(0.5, 1.0, 0.5)
    (0.0, None)
    """
    if xy is None or xz is None or yz is None:
        return None
    rest = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(rest) if rest > 1e-12 else None
