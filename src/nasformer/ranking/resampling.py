"""Rank correlations on every bootstrap resample of a table at once.

A resample is how often it holds each row: weights w. With s_ij = sign(x_i - x_j) and t_ij = sign(y_i - y_j),
- Kendall's tau-b of the resample is sum w_i w_j s_ij t_ij / sqrt(sum w_i w_j s_ij^2 * sum w_i w_j t_ij^2);
- a row's mid-rank in the resample is, up to a constant, half of sum_j w_j s_ij, and Spearman's rho is the weighted
  correlation of these, whose weighted means are 0.
So a thousand resamples are a few matrix products. Copies of a row are ties in x and in y, which tau-b does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]
Interval = tuple[float, float]


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
    """The rows themselves, then bootstrap resamples of them. Statistics come as one value for each, in this order."""

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
        ranks_x, ranks_y = ((self.weights @ one).astype(np.float64) for one in (x, y))
        products = (ranks_x * ranks_y, ranks_x**2, ranks_y**2)
        both, own_x, own_y = (np.einsum("bi,bi->b", self.weights, product) for product in products)
        return _ratio(both, own_x * own_y)

    def _total(self, matrix: Floats) -> Floats:
        """The sum of a matrix over all pairs of rows of each resample."""
        return np.einsum("bi,bi->b", self.weights @ matrix, self.weights, dtype=np.float64)


def _ratio(joint: Floats, squares: Floats) -> Floats:
    """joint / sqrt(squares), and NaN where all is tied."""
    return np.divide(joint, np.sqrt(squares), out=np.full_like(joint, np.nan), where=squares > 0)


def percentiles(values: Sequence[float] | Floats, level: float = 0.95) -> Interval | None:
    """The interval that holds the middle part of the values; those that are not defined are left out."""
    known = np.asarray(values)[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
