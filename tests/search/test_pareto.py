"""Fronts and crowding against their definitions, on points with plenty of ties and repeats."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, strategies as st

from nasformer.search.pareto import crowding_distance, dominates, non_dominated_rank, pareto_front

Points = list[tuple[float, ...]]

coordinate = st.integers(-3, 3) | st.floats(-1e6, 1e6)
clouds = st.integers(1, 3).flatmap(lambda size: st.lists(st.tuples(*[coordinate] * size), max_size=25))


def peel(points: Points) -> list[int]:
    """The definition: take the front away, again and again."""
    ranks, left, rank = [-1] * len(points), set(range(len(points))), 0
    while left:
        front = {i for i in left if not any(beats(points[j], points[i]) for j in left)}
        for index in front:
            ranks[index] = rank
        left, rank = left - front, rank + 1
    return ranks


def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return not any(x < y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


@given(clouds)
def test_ranks_are_those_of_peeling(points: Points) -> None:
    assert non_dominated_rank(points) == peel(points)


@given(clouds)
def test_the_front_is_what_nothing_dominates(points: Points) -> None:
    expected = [i for i, point in enumerate(points) if not any(beats(other, point) for other in points)]
    assert pareto_front(points) == expected


@given(clouds)
def test_domination_is_strict(points: Points) -> None:
    for a in points:
        for b in points:
            assert dominates(a, b) == beats(a, b)


@given(clouds)
def test_crowding_is_the_gap_between_the_neighbours(points: Points) -> None:
    distances = crowding_distance(points)
    for index, point in enumerate(points):
        if point in points[:index]:
            assert distances[index] == 0
        elif len(set(points)) > 1:
            assert distances[index] == pytest.approx(sum(room(points, point, m) for m in range(len(point))))


def room(points: Points, point: tuple[float, ...], objective: int) -> float:
    values = [other[objective] for other in points]
    here = point[objective]
    lower, higher = [v for v in values if v < here], [v for v in values if v > here]
    if not lower and not higher:
        return 0
    return (min(higher) - max(lower)) / (max(values) - min(values)) if lower and higher else math.inf


@given(clouds, st.randoms(use_true_random=False))
def test_the_order_of_distinct_points_does_not_matter(points: Points, random: Random) -> None:
    points = list(dict.fromkeys(points))
    order = random.sample(range(len(points)), len(points))
    shuffled = [points[index] for index in order]
    for measure in (non_dominated_rank, crowding_distance):
        before, after = measure(points), measure(shuffled)
        assert [before[index] for index in order] == after


def test_small_cases() -> None:
    assert pareto_front([]) == []
    assert non_dominated_rank([]) == []
    assert crowding_distance([]) == []
    assert pareto_front([(1, 1), (1, 1)]) == [0, 1]
    assert crowding_distance([(1, 1)]) == [math.inf]
    assert crowding_distance([(1, 1), (1, 1)]) == [math.inf, 0]
