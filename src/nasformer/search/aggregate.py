"""Several scores made one: candidates are ranked by each, and a low rank in any of them counts heavily (AZ-NAS)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def aggregate_ranks(columns: Sequence[Sequence[float]]) -> list[float]:
    """For each candidate, the sum over scores of log(rank / m): 0 for the best in everything, lower for others.

    Ranks go from 1 (worst) to m (best), m is the number of candidates, and equal scores share their average rank.
    A candidate with a score that is not finite gets -inf and takes no part in the ranking of the others.

    >>> accuracy, speed = [0.7, 0.8, 0.9], [30.0, 20.0, 10.0]
    >>> [round(score, 3) for score in aggregate_ranks([accuracy, speed])]
    [-1.099, -0.811, -1.099]
    >>> aggregate_ranks([[1.0, 2.0, float("nan")]])[1:]
    [0.0, -inf]

    Args:
        columns: One sequence a proxy, with the scores of all candidates in the same order; larger is better.
    """
    candidates = list(zip(*columns, strict=True))
    valid = [index for index, scores in enumerate(candidates) if all(map(math.isfinite, scores))]
    totals = [-math.inf] * len(candidates)
    for index in valid:
        totals[index] = 0.0
    for column in columns:
        for index, rank in zip(valid, _ranks([column[index] for index in valid]), strict=True):
            totals[index] += math.log(rank / len(valid))
    return totals


def _ranks(scores: Sequence[float]) -> list[float]:
    """From 1 for the smallest; equal ones share the average of their places."""
    places: dict[float, list[int]] = {}
    for place, score in enumerate(sorted(scores), start=1):
        places.setdefault(score, []).append(place)
    return [sum(places[score]) / len(places[score]) for score in scores]
