"""Sampling errors of accuracies and rank correlations of two lists of numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# Sampling errors of accuracies: how far the accuracy on some images may be from that on all images of their kind.

Z = 1.96
"""Standard errors on each side of a 95 % interval."""


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which makes sense near 0 and 1 too.

    >>> [round(end, 3) for end in wilson(0.9, 80)], [round(end, 3) for end in wilson(0, 100)]
    ([0.815, 0.948], [0.0, 0.037])
    """
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return (max(0.0, centre - half) if share else 0.0), (min(1.0, centre + half) if share < 1 else 1.0)


def standard_error(share: float, count: int) -> float:
    """The standard error of an accuracy on so many images; 0 and 1 are moved inward by half an image.

    >>> round(standard_error(0.5, 80), 3), round(standard_error(1.0, 80), 3)
    (0.056, 0.009)
    """
    share = min(max(share, 0.5 / count), 1 - 0.5 / count)
    return math.sqrt(share * (1 - share) / count)


# Rank correlations of two lists of numbers; None where they are undefined, since all values of one are equal.


def undefined(x: ArrayLike, y: ArrayLike) -> str | None:
    """Why x and y have no rank correlation, or None where they have one.

    >>> undefined([1, 1, 1], [1, 2, 3])
    'all 3 scores are equal'
    """
    scores, accuracies = np.asarray(x), np.asarray(y)
    if len(scores) < 2:
        return f"{len(scores)} rows are too few to rank"
    for values, what in ((scores, "scores"), (accuracies, "accuracies")):
        if np.all(values == values[0]):
            return f"all {len(values)} {what} are equal"
    return None


def kendall(x: ArrayLike, y: ArrayLike) -> float | None:
    """Kendall's tau-b.

    >>> kendall([1, 2, 3], [10, 20, 40]), kendall([1, 1, 1], [10, 20, 40])
    (1.0, None)
    """
    from scipy import stats  # which takes seconds to import, and reports and searches seldom need it

    return None if undefined(x, y) else float(stats.kendalltau(x, y).statistic)


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Spearman's rho: the correlation of mid-ranks."""
    from scipy import stats  # which takes seconds to import, and reports and searches seldom need it

    return None if undefined(x, y) else float(stats.spearmanr(x, y).statistic)
