"""AutoFormer's evolution: its quotas, its parents, and that it finds what random search does not."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import mean
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.search.evolution import Evolution
from nasformer.search.problem import Candidate, Problem
from nasformer.search.run import SearchResult, search
from nasformer.search.strategy import complete_options
from nasformer.space.arch import Arch
from nasformer.space.mutation import MUTATIONS, Mutation
from nasformer.space.nodes import Choice, Repeat, Struct

from .toy import BEST, BLOCK, BUDGET, SPACE, costs, run


def evolve(seed: int = 0, **changes: Any) -> SearchResult:
    return run("evolution", options=changes.pop("options", {}), seed=seed, **changes)


@pytest.fixture(scope="module")
def published() -> SearchResult:
    """The published numbers: 50 candidates, 20 generations."""
    return evolve()


def test_finds_the_optimum(published: SearchResult) -> None:
    assert BUDGET.fits(costs(BEST))
    assert published.best.arch == BEST
    assert published.best.scores == {**costs(BEST), "accuracy": 100.0}


def test_beats_random_search_at_equal_evaluations() -> None:
    options = {"population": 30, "generations": 10}
    evolved = [evolve(seed, options=options) for seed in range(4)]
    drawn = [run("random", options={"evaluations": 300}, seed=seed) for seed in range(4)]
    assert {len(result.candidates) for result in evolved + drawn} == {300}
    gain = mean(result.best.scores["accuracy"] for result in evolved)
    gain -= mean(result.best.scores["accuracy"] for result in drawn)
    assert gain > 2  # of a spread of about 20


def test_random_search_evaluates_as_many_by_default(published: SearchResult) -> None:
    assert len(published.candidates) == len(run("random", options={}).candidates) == 1000


def test_a_generation_is_25_mutations_and_25_crossovers() -> None:
    """With scores that are mere noise the parents stay different, so that the operators never run out."""
    space = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(BLOCK, depth=Choice(12, 13, 14)))
    result = search(space, lambda arch: {"accuracy": Random(arch.to_json()).random()}, costs)
    assert origins(result, 0) == {"random": 50}
    for generation in range(1, 20):
        assert origins(result, generation) == {"mutation": 25, "crossover": 25}
    assert {candidate.generation for candidate in result.candidates} == set(range(20))


def test_random_candidates_fill_up_the_population() -> None:
    result = evolve(options={"population": 20, "generations": 3, "mutations": 7, "crossovers": 8})
    for generation in (1, 2):
        assert origins(result, generation) == {"mutation": 7, "crossover": 8, "random": 5}


def test_an_operator_that_finds_nothing_gives_way_to_random() -> None:
    still = Mutation(0, 0, 0)  # every child is its parent, hence seen before
    result = evolve(options={"population": 20, "generations": 2, "crossovers": 4, "mutation": still})
    assert origins(result, 1) == {"crossover": 4, "random": 16}


def origins(result: SearchResult, generation: int) -> dict[str, int]:
    return dict(Counter(candidate.origin for candidate in result.candidates if candidate.generation == generation))


def test_parents_are_the_ten_best_ever_seen(published: SearchResult) -> None:
    for generation in range(1, 20):
        older = [candidate for candidate in published.candidates if candidate.generation < generation]
        best = sorted(
            older, key=lambda candidate: (-candidate.scores["accuracy"], candidate.scores["params"], candidate.id)
        )[:10]
        children = [candidate for candidate in published.candidates if candidate.generation == generation]
        bred = {parent for child in children for parent in child.parents}
        assert bred <= {candidate.id for candidate in best}
        assert len(bred) > 5
        for child in children:
            assert len(set(child.parents)) == {"random": 0, "mutation": 1, "crossover": 2}[child.origin]


def test_children_come_from_the_parents_they_name() -> None:
    copy = Mutation(0, 1, 0)  # redraws the width alone
    candidates = evolve(options={"population": 20, "generations": 3, "mutation": copy}).candidates
    for child in candidates:
        parents = [candidates[id].arch for id in child.parents]
        if child.origin == "mutation":
            assert child.arch.blocks == parents[0].blocks
        if child.origin == "crossover":
            assert len(child.arch.blocks) in {len(parent.blocks) for parent in parents}
            for layer, block in enumerate(child.arch.blocks):
                assert block in [parent.blocks[layer] for parent in parents if layer < len(parent.blocks)]


def test_ties_go_to_the_cheaper_then_to_the_older() -> None:
    problem = Problem(SPACE, costs)
    big, little = SPACE.largest(), SPACE.smallest()
    order = [(big, 1.0), (little, 0.5), (little, 1.0), (big, 2.0), (little, 1.0)]
    told = [Candidate(id, 0, "random", (), arch, {"accuracy": score}) for id, (arch, score) in enumerate(order)]
    assert [candidate.id for candidate in problem.best_first(told)] == [3, 2, 4, 0, 1]
    assert [candidate.id for candidate in problem.best_first(told[::-1])] == [3, 2, 4, 0, 1]
    assert problem.winner(told).id == 3


def test_several_objectives_order_by_front_then_by_room() -> None:
    problem = Problem(SPACE, costs, objectives=("accuracy", "speed"))
    crowded, roomy, extremes, dominated = [(5, 5), (5.5, 4.5)], [(2, 8)], [(0, 10), (10, 0)], [(1, 1)]
    points = dominated + crowded + roomy + extremes
    told = [
        Candidate(id, 0, "random", (), SPACE.smallest(), {"accuracy": a, "speed": b})
        for id, (a, b) in enumerate(points)
    ]
    order = [points[candidate.id] for candidate in problem.best_first(told)]
    assert order[:2] == extremes
    # rooms, in tenths of each range: (5.5, 4.5) has 5 + 5, (2, 8) has 5 + 5 as well, (5, 5) has 3.5 + 3.5
    assert order[2:] == [(5.5, 4.5), (2, 8), (5, 5), (1, 1)]


def test_mutation_is_a_preset_or_numbers() -> None:
    problem = Problem(SPACE, costs)
    own = Mutation(0.1, 0.2, 0.3, "block")
    assert Evolution(problem).mutation == MUTATIONS["code"]
    assert Evolution(problem, mutation="paper").mutation == MUTATIONS["paper"]
    assert Evolution(problem, mutation=own).mutation == own
    with pytest.raises(UserError, match="mutation is 'bold', expected a Mutation or one of: code, paper"):
        Evolution(problem, mutation="bold")


def test_the_defaults_are_the_published_numbers() -> None:
    evolution = Evolution(Problem(SPACE, costs), **complete_options(Evolution, {}))
    assert (evolution.population, evolution.generations, evolution.parents) == (50, 20, 10)
    assert (evolution.mutations, evolution.crossovers) == (25, 25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 0}, "population is 0, expected at least 1"),
        ({"parents": 0}, "parents is 0"),
        ({"mutations": 40}, "40 mutations and 25 crossovers do not fit a population of 50"),
        ({"crossovers": -1}, "-1 crossovers do not fit"),
        ({"seeds": [{"embed_dim": 192}]}, r"seeds\[0\]\.blocks is missing"),
        ({"seeds": [SPACE.largest()]}, r"seeds\[0\] is outside the budget \(1.5M <= params <= 3.8M\)"),
        ({"population": 1, "seeds": [BEST, BEST]}, "2 seeds do not fit a population of 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evolve(options=options)


def test_seeds_are_evaluated_first() -> None:
    result = evolve(options={"population": 10, "generations": 2, "seeds": [BEST.to_dict(), BEST]})
    assert origins(result, 0) == {"seed": 1, "random": 9}
    assert result.candidates[0].arch == BEST == result.best.arch


def test_a_population_of_one_goes_on() -> None:
    result = evolve(options={"population": 1, "generations": 5, "mutations": 1})
    assert [candidate.origin for candidate in result.candidates] == ["random", *["mutation"] * 4]


def test_two_objectives_keep_the_whole_front_alive() -> None:
    """Both ends and the middle of a known front; one objective alone would desert the cheap end."""
    side = Choice(*range(30))
    space = Struct(gain=side, waste=side, noise=side)  # the front: waste 0, noise 0, any gain

    def price(arch: Arch) -> dict[str, float]:
        return {"params": arch.gain + 2 * arch.waste}

    def score(arch: Arch) -> dict[str, float]:
        return {"accuracy": arch.gain - 3 * arch.noise}

    def front_size(strategy: str, seed: int, objectives: tuple[str, ...], **options: Any) -> int:
        result = search(space, score, price, strategy=strategy, seed=seed, objectives=objectives, options=options)
        return len([candidate for candidate in result.front if candidate.arch.waste == candidate.arch.noise == 0])

    both = ("accuracy", "-params")
    shape = {"population": 30, "generations": 12}
    pareto = mean(front_size("evolution", seed, both, **shape) for seed in range(4))
    single = mean(front_size("evolution", seed, ("accuracy",), **shape) for seed in range(4))
    drawn = mean(front_size("random", seed, both, evaluations=360) for seed in range(4))
    assert pareto > 10
    assert pareto > 2 * max(single, drawn)
