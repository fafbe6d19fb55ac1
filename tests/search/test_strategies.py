"""What every strategy must do; a new one in the registry is covered at once."""

from __future__ import annotations

import ast
import math
import random
from pathlib import Path

import pytest

import nasformer.search
from nasformer.errors import UserError
from nasformer.search.problem import Candidate
from nasformer.search.run import SearchResult, search
from nasformer.search.strategy import find_strategy, list_strategies
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.space.nodes import Choice, Struct

from .toy import GENERAL, SPACE, accuracy, costs, problem, run, small

every_strategy = pytest.mark.parametrize("name", list_strategies())
every_general_strategy = pytest.mark.parametrize("name", GENERAL)
TINY = Struct(width=Choice(1, 2, 3, 4), depth=Choice(1, 2, 3))


def archs(result: SearchResult) -> list[Arch]:
    return [candidate.arch for candidate in result.candidates]


@every_strategy
def test_asks_for_as_much_as_it_says(name: str) -> None:
    result = run(name)
    strategy = find_strategy(name)(problem(name), **small(name))
    assert 12 < len(result.candidates) <= strategy.evaluations
    if name in GENERAL:
        assert len(result.candidates) == strategy.evaluations
        assert result.note == ""


@every_strategy
def test_proposes_members_within_the_budget_and_none_twice(name: str) -> None:
    tight = Budget(min_params=2_900_000, max_params=3_000_000, max_macs=590_000_000)
    result = run(name, budget=tight)
    assert all(SPACE.validate(arch) == arch for arch in archs(result))
    assert all(tight.fits(costs(arch)) for arch in archs(result))
    assert len(set(archs(result))) == len(result.candidates) > 1


@every_strategy
def test_the_seed_decides_everything(name: str) -> None:
    random.seed(1)
    once = run(name, seed=7)
    random.seed(2)
    state = random.getstate()
    assert run(name, seed=7) == once
    assert random.getstate() == state, "the global generator must be left alone"
    assert archs(run(name, seed=8)) != archs(once)


@every_strategy
def test_ids_count_up_and_parents_are_older(name: str) -> None:
    candidates = run(name).candidates
    assert [candidate.id for candidate in candidates] == list(range(len(candidates)))
    generations = [candidate.generation for candidate in candidates]
    assert generations == sorted(generations)
    for candidate in candidates:
        assert candidate.origin in ("random", "mutation", "crossover", "seed", "start", "topology", "size")
        assert all(parent < candidate.id for parent in candidate.parents)
        if name in GENERAL:  # else a generation is a whole phase, whose later members descend from earlier ones
            assert all(candidates[parent].generation < candidate.generation for parent in candidate.parents)


@every_strategy
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_never_breeds_or_wins(name: str, bad: float) -> None:
    def evaluate(arch: Arch) -> dict[str, float]:
        return {"accuracy": bad} if arch.embed_dim == 216 else accuracy(arch)

    result = run(name, evaluate=evaluate)
    broken = {candidate.id for candidate in result.candidates if candidate.arch.embed_dim == 216}
    assert broken, "the case is empty"
    assert not broken & {parent for candidate in result.candidates for parent in candidate.parents}
    assert not broken & {result.best.id, *(candidate.id for candidate in result.front)}


@every_strategy
@pytest.mark.parametrize("bad", [math.nan, None, math.inf])
def test_nothing_but_nan_is_an_error_at_the_end(name: str, bad: float | None) -> None:
    seen: list[Candidate] = []
    count = 48 if name in GENERAL else 12
    with pytest.raises(UserError, match=f"no candidate has a finite score .*all {count} evaluations gave NaN"):
        run(name, evaluate=lambda arch: {"accuracy": bad}, on_candidate=seen.append)
    assert len(seen) == count


@pytest.mark.parametrize("order", ["pareto", "ranks"])
@every_strategy
def test_nan_in_one_objective_of_all_candidates_is_an_error_too(name: str, order: str) -> None:
    """Whichever it is: the one that decides or another."""
    for objectives in (("accuracy", "speed"), ("speed", "accuracy")):
        if name in GENERAL or order == "pareto":
            with pytest.raises(UserError, match=rf"no candidate has a finite score \({', '.join(objectives)}\)"):
                run(
                    name,
                    evaluate=lambda arch: {**accuracy(arch), "speed": math.nan},
                    objectives=objectives,
                    order=order,
                )


@every_general_strategy
def test_an_exhausted_space_ends_the_search_early_and_says_so(name: str) -> None:
    budget = Budget(max_params=6)
    evaluate = lambda arch: {"accuracy": arch.width - arch.depth}  # noqa: E731
    result = search(TINY, evaluate, lambda arch: {"params": arch.width * arch.depth}, strategy=name, budget=budget)
    expected = {arch for arch in TINY.enumerate() if arch.width * arch.depth <= 6}
    assert set(archs(result)) == expected
    assert len(result.candidates) == len(expected)
    assert result.best.arch == Arch(width=4, depth=1)
    assert result.note.startswith(f"stopped after {len(expected)} of 1000 candidates")
    assert "params <= 6" in result.note


@every_strategy
def test_the_batch_may_be_evaluated_in_any_order(name: str) -> None:
    def archs_in_order(order: int) -> list[Arch]:
        strategy = find_strategy(name)(problem(name, seed=3), **small(name))
        while not strategy.done:
            batch = strategy.ask()
            scores = {proposal.arch: accuracy(proposal.arch) for proposal in batch[::order]}
            strategy.tell([(proposal, {**costs(proposal.arch), **scores[proposal.arch]}) for proposal in batch])
        return [candidate.arch for candidate in strategy.candidates]

    assert archs_in_order(1) == archs_in_order(-1)


@every_strategy
def test_two_objectives_give_a_front(name: str) -> None:
    result = run(name, objectives=("accuracy", "-params"))
    points = {
        candidate.id: (candidate.scores["accuracy"], -candidate.scores["params"]) for candidate in result.candidates
    }
    undominated = {
        id
        for id, (a, b) in points.items()
        if not any(x >= a and y >= b and (x, y) != (a, b) for x, y in points.values())
    }
    assert {candidate.id for candidate in result.front} == undominated
    assert [candidate.scores["params"] for candidate in result.front] == sorted(
        candidate.scores["params"] for candidate in result.front
    )
    if name in GENERAL:
        assert result.best.scores["accuracy"] == max(candidate.scores["accuracy"] for candidate in result.candidates)


@pytest.mark.parametrize(
    "module", sorted(Path(nasformer.search.__file__).parent.rglob("*.py")), ids=lambda path: path.stem
)
def test_search_needs_no_torch(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] in ("torch", "numpy")]
