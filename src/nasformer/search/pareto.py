"""Non-dominated sorting and crowding distance (NSGA-II), in plain Python.

A point is a tuple of finite numbers, each of which should be large. Equal points do not dominate each other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

Point = Sequence[float]


def dominates(a: Point, b: Point) -> bool:
    """Whether `a` is nowhere worse than `b` and somewhere better.

    >>> dominates((2, 1), (1, 1)), dominates((2, 1), (1, 2)), dominates((1, 1), (1, 1))
    (True, False, False)
    """
    return all(x >= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def non_dominated_rank(points: Sequence[Point]) -> list[int]:
    """The front each point belongs to: 0 for the Pareto front, 1 for the front without that one, and so on.

    >>> non_dominated_rank([(1, 3), (3, 1), (1, 1), (0, 2), (0, 0)])
    [0, 0, 1, 1, 2]
    """
    ranks = [0] * len(points)
    fronts: list[list[Point]] = []
    for index in _best_first(points):
        point = points[index]
        # What a front dominates, every better front dominates too.
        ranks[index] = bisect_left(fronts, True, key=lambda front: not _dominated(point, front))
        if ranks[index] == len(fronts):
            fronts.append([])
        fronts[ranks[index]].append(point)
    return ranks


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Indices, ascending, of the points that no other point dominates.

    >>> pareto_front([(1, 3), (0, 0), (3, 1), (1, 3)])
    [0, 2, 3]
    """
    indices: list[int] = []
    front: list[Point] = []
    for index in _best_first(points):
        if not _dominated(points[index], front):
            indices.append(index)
            front.append(points[index])
    return sorted(indices)


def _best_first(points: Sequence[Point]) -> list[int]:
    """Indices in an order in which a point can be dominated only by points before it."""
    return sorted(range(len(points)), key=lambda index: tuple(points[index]), reverse=True)


def _dominated(point: Point, front: Sequence[Point]) -> bool:
    """Whether a front, filled best first, dominates a point that comes after its members."""
    # With two objectives the latest member is the best in the second one: if it does not dominate, none does.
    return any(dominates(other, point) for other in (front[-1:] if len(point) <= 2 else front))


def crowding_distance(points: Sequence[Point]) -> list[float]:
    """How far apart the neighbours of each point of one front are: infinity at the ends, 0 for repeats of a point.

    Neighbours are the next lower and next higher *different* value of each objective, so the order of the
    points does not matter; only among equal points does the first one keep the distance.

    >>> crowding_distance([(0, 4), (1, 2), (1, 2), (4, 0)])
    [inf, 2.0, 0.0, inf]
    """
    first = {tuple(point): index for index, point in reversed(list(enumerate(points)))}
    distances = [0.0] * len(points)
    if len(first) == 1:
        distances[0] = math.inf
        return distances
    for objective in range(len(points[0]) if points else 0):
        gaps = _gaps({point[objective] for point in first})
        for point, index in first.items():
            distances[index] += gaps[point[objective]]
    return distances


def _gaps(values: set[float]) -> dict[float, float]:
    """For each value the distance between its two neighbours, as a part of the whole range."""
    ordered = sorted(values)
    if len(ordered) == 1:  # an objective on which all agree says nothing about crowding
        return {ordered[0]: 0.0}
    gaps = dict.fromkeys(ordered, math.inf)
    spread = ordered[-1] - ordered[0]
    for (low, middle), (_, high) in pairwise(pairwise(ordered)):
        gaps[middle] = (high - low) / spread
    return gaps
