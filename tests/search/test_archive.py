"""Archives against the plain order of all candidates, on scores with ties, repeats and NaN."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from nasformer.search.pareto import FullArchive, ParetoArchive, RankArchive, TopArchive, make_archive
from nasformer.search.problem import Candidate, Problem
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct

from .test_pareto import peel, room

SPACE = Struct(width=Choice(1, 2, 3))
PROBLEMS = {
    "one objective": (("a",), "pareto"),
    "lower is better": (("-a",), "pareto"),
    "two objectives": (("a", "-b"), "pareto"),
    "two by ranks": (("a", "b"), "ranks"),
    "three objectives": (("a", "-b", "c"), "pareto"),
}

value = st.integers(0, 3) | st.sampled_from([0.1, 0.2, 1e9, math.nan]) | st.floats(-10, 10)
rows = st.lists(st.tuples(value, value, value, st.sampled_from([1, 2, 3])), max_size=40)


def make_problem(name: str) -> Problem:
    objectives, order = PROBLEMS[name]
    return Problem(SPACE, lambda arch: {"params": arch.width}, objectives=objectives, order=order)  # type: ignore[arg-type]


def make_candidates(table: list[tuple[float, float, float, int]]) -> list[Candidate]:
    return [
        Candidate(id, 0, "random", (), Arch(width=width), {"params": width, "a": a, "b": b, "c": c})
        for id, (a, b, c, width) in enumerate(table)
    ]


@pytest.mark.parametrize("name", PROBLEMS)
@settings(max_examples=100)
@given(rows, st.integers(1, 6), st.integers(1, 5))
def test_the_best_are_the_first_of_the_plain_order_at_any_time(
    name: str, table: list[tuple[float, float, float, int]], count: int, every: int
) -> None:
    problem = make_problem(name)
    archive = make_archive(problem, count)
    candidates = make_candidates(table)
    for number, candidate in enumerate(candidates, start=1):
        archive.add(candidate)
        if number % every == 0:  # asking now and then must not change what comes later
            assert archive.best() == problem.best_first(candidates[:number])[:count]
    assert archive.best() == problem.best_first(candidates)[:count]


@settings(max_examples=8)
@given(st.sampled_from([(1.0, -1.0), (1.0, 0.2), (0.0, 1.0)]), st.integers(0, 9), st.sampled_from(["pareto", "ranks"]))
def test_long_fronts(slope: tuple[float, float], seed: int, order: str) -> None:
    """All candidates on one front, fronts of a hundred, or a cloud."""
    rng = Random(seed)
    points = [(x, slope[1] * x + (1 - abs(slope[1])) * rng.random()) for x in (rng.random() for _ in range(300))]
    candidates = make_candidates([(a, b, 0, 1) for a, b in points])
    problem = Problem(SPACE, lambda arch: {"params": arch.width}, objectives=("a", "b"), order=order)  # type: ignore[arg-type]
    archive = make_archive(problem, 10)
    for number, candidate in enumerate(candidates, start=1):
        archive.add(candidate)
        if number % 30 == 0:
            assert archive.best() == problem.best_first(candidates[:number])[:10]


@given(rows)
def test_the_order_of_two_objectives_is_nsga2s(table: list[tuple[float, float, float, int]]) -> None:
    """By the definitions: peeled fronts, then the gap between the neighbours, then cost and age."""
    problem = make_problem("two objectives")
    finite = problem.finite(make_candidates(table))
    points = [problem.point(candidate.scores) for candidate in finite]
    ranks = peel(points)

    def key(index: int) -> tuple[float, float, float, int]:
        front = [point for point, rank in zip(points, ranks, strict=True) if rank == ranks[index]]
        repeated = points[index] in [points[k] for k in range(index) if ranks[k] == ranks[index]]
        distance = math.inf if len(set(front)) == 1 else sum(room(front, points[index], m) for m in range(2))
        return ranks[index], 0.0 if repeated else -distance, finite[index].scores["params"], index

    expected = [finite[index].id for index in sorted(range(len(finite)), key=key)]
    assert [candidate.id for candidate in problem.best_first(finite)] == expected


def test_each_kind_of_problem_has_its_archive() -> None:
    kinds = [type(make_archive(make_problem(name), 5)) for name in PROBLEMS]
    assert kinds == [TopArchive, TopArchive, ParetoArchive, RankArchive, FullArchive]


def test_only_the_fronts_that_can_matter_are_kept() -> None:
    archive = ParetoArchive(make_problem("two objectives"), 3)
    for candidate in make_candidates([(k, -k, 0, 1) for k in range(50)]):  # each dominates all before it
        archive.add(candidate)
    assert [len(front.ties) for front in archive.fronts] == [1, 1, 1]
    assert [candidate.id for candidate in archive.best()] == [49, 48, 47]
