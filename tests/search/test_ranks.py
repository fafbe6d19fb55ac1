"""Several objectives as one, by their ranks: who is best, who wins, and what the front is."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nasformer.errors import UserError
from nasformer.search.pareto import aggregate_ranks
from nasformer.search.problem import Candidate, Problem
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch

from .toy import GENERAL, SPACE, accuracy, costs, run

every_strategy = pytest.mark.parametrize("name", GENERAL)
OBJECTIVES = ("accuracy", "speed", "-macs")

value = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan])
tables = st.lists(st.tuples(value, value, st.integers(0, 50)), min_size=1, max_size=12)


def both(arch: Arch) -> dict[str, float]:
    """A second score that pulls another way."""
    heads = sum(block.num_heads for block in arch.blocks)
    return {**accuracy(arch), "speed": 1000 / heads - len(arch.blocks)}


def by_ranks(name: str, journal: Path | None = None, **changes: Any) -> SearchResult:
    return run(name, journal, **{"evaluate": both, "objectives": OBJECTIVES, "order": "ranks", **changes})


def candidates(rows: list[tuple[float, float, int]]) -> list[Candidate]:
    archs = [SPACE.sample(Random(seed)) for _, _, seed in rows]
    scores = [{**costs(arch), "a": a, "b": b} for arch, (a, b, _) in zip(archs, rows, strict=True)]
    return [Candidate(id, 0, "random", (), *fields) for id, fields in enumerate(zip(archs, scores, strict=True))]


def problem(*objectives: str, **settings: Any) -> Problem:
    return Problem(SPACE, costs, objectives=objectives, **settings)


def by_hand(finite: list[Candidate], *objectives: str) -> dict[int, float]:
    """The aggregate of every candidate by its id."""
    columns = [
        [candidate.scores[name[-1]] * (-1 if name[0] == "-" else 1) for candidate in finite] for name in objectives
    ]
    return dict(zip((candidate.id for candidate in finite), aggregate_ranks(columns), strict=True))


@given(tables, st.sampled_from([("a", "b"), ("a", "-b"), ("-b", "a")]))
def test_the_order_is_that_of_the_aggregated_ranks(
    rows: list[tuple[float, float, int]], objectives: tuple[str, str]
) -> None:
    evaluated = candidates(rows)
    finite = [
        candidate
        for candidate in evaluated
        if math.isfinite(candidate.scores["a"]) and math.isfinite(candidate.scores["b"])
    ]
    together = by_hand(finite, *objectives)
    expected = sorted(
        finite, key=lambda candidate: (-together[candidate.id], tuple(costs(candidate.arch).values()), candidate.id)
    )
    task = problem(*objectives, order="ranks")
    assert task.best_first(evaluated) == expected
    if finite:
        assert task.winner(evaluated) == expected[0]
    else:
        with pytest.raises(UserError, match="no candidate has a finite score"):
            task.winner(evaluated)


@given(tables)
def test_the_front_weighs_the_ranks_against_the_first_cost(rows: list[tuple[float, float, int]]) -> None:
    evaluated = candidates(rows)
    task = problem("a", "b", order="ranks")
    finite = task.finite(evaluated)
    together = by_hand(finite, "a", "b")
    points = {candidate.id: (together[candidate.id], -costs(candidate.arch)["params"]) for candidate in finite}

    def beaten(candidate: Candidate) -> bool:
        mine = points[candidate.id]
        return any(other != mine and all(map(float.__ge__, map(float, other), mine)) for other in points.values())

    front = [candidate for candidate in finite if not beaten(candidate)]
    assert task.front(evaluated) == sorted(
        front, key=lambda candidate: (tuple(costs(candidate.arch).values()), candidate.id)
    )


@given(tables)
def test_a_single_objective_is_the_same_in_any_order(rows: list[tuple[float, float, int]]) -> None:
    evaluated = candidates(rows)
    pareto, ranks = problem("a"), problem("a", order="ranks")
    assert ranks.best_first(evaluated) == pareto.best_first(evaluated)
    assert ranks.front(evaluated) == pareto.front(evaluated)
    if ranks.finite(evaluated):
        assert ranks.winner(evaluated) == pareto.winner(evaluated)


def test_a_front_where_architectures_have_no_costs() -> None:
    evaluated = candidates([(1.0, 2.0, 0), (2.0, 3.0, 1)])
    task = Problem(SPACE, lambda arch: {}, objectives=("a", "b"), order="ranks")
    assert task.front(evaluated) == [evaluated[1]] == task.best_first(evaluated)[:1]


@every_strategy
def test_a_search_ends_with_what_is_good_by_every_measure(name: str) -> None:
    result = by_ranks(name)
    columns = [
        [candidate.scores[objective.removeprefix("-")] for candidate in result.candidates] for objective in OBJECTIVES
    ]
    columns[2] = [-value for value in columns[2]]
    together = aggregate_ranks(columns)
    assert together[result.best.id] == max(together)
    assert result.best in result.front
    assert result.best != run(name, evaluate=both).best, "accuracy alone should not decide"


def test_evolution_breeds_from_the_best_by_ranks() -> None:
    result = by_ranks("evolution")
    task = problem(*OBJECTIVES, order="ranks")
    for generation in range(1, 4):
        before = [candidate for candidate in result.candidates if candidate.generation < generation]
        allowed = {candidate.id for candidate in task.best_first(before)[:4]}
        born = [candidate for candidate in result.candidates if candidate.generation == generation]
        assert {parent for candidate in born for parent in candidate.parents} <= allowed


@every_strategy
def test_cut_between_lines(name: str, tmp_path: Path) -> None:
    result = by_ranks(name, tmp_path / "whole.jsonl")
    content = (tmp_path / "whole.jsonl").read_bytes()
    lines, path = content.splitlines(keepends=True), tmp_path / "journal.jsonl"
    for kept in range(0, len(lines), 11):
        path.write_bytes(b"".join(lines[:kept]))
        assert by_ranks(name, path) == result
        assert path.read_bytes() == content


def test_a_journal_of_another_order_is_refused(tmp_path: Path) -> None:
    for before, after, said in (
        ("ranks", "pareto", "order was ranks, now not set"),
        ("pareto", "ranks", "order was not set, now ranks"),
    ):
        path = tmp_path / f"{before}.jsonl"
        by_ranks("evolution", path, order=before)
        content = path.read_bytes()
        with pytest.raises(UserError, match=f"{said}.*use another --out folder"):
            by_ranks("evolution", path, order=after)
        assert path.read_bytes() == content


def test_journals_from_before_there_was_an_order_go_on(tmp_path: Path) -> None:
    run("random", tmp_path / "journal.jsonl")
    assert b"order" not in (tmp_path / "journal.jsonl").read_bytes().splitlines()[0]
