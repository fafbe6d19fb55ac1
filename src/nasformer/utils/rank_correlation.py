"""Rank correlations of two lists of numbers; None where they are undefined, since all values of one are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


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
