"""Non-dominated sorting and crowding distance (NSGA-II), in plain Python.

A point is a tuple of finite numbers, each of which should be large. Equal points do not dominate each other.
"""

from __future__ import annotations

import math
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
    # best first, so a point can be dominated only by points already placed
    for index in sorted(range(len(points)), key=lambda i: tuple(points[i]), reverse=True):
        point = points[index]
        rank = 0
        while rank < len(fronts) and any(dominates(other, point) for other in fronts[rank]):
            rank += 1
        if rank == len(fronts):
            fronts.append([])
        fronts[rank].append(point)
        ranks[index] = rank
    return ranks


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Indices, ascending, of the points that no other point dominates.

    >>> pareto_front([(1, 3), (0, 0), (3, 1), (1, 3)])
    [0, 2, 3]
    """
    front: list[int] = []
    # best first, so a point can be dominated only by points already found
    for index in sorted(range(len(points)), key=lambda i: tuple(points[i]), reverse=True):
        if not any(dominates(points[other], points[index]) for other in front):
            front.append(index)
    return sorted(front)


def crowding_distance(points: Sequence[Point]) -> list[float]:
    """How much room each point of one front has around it: extremes get infinity, repeats of a point get 0.

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
