"""Cyclic search on a net whose best topology and best size are known by enumeration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from nasformer.errors import UserError
from nasformer.search.cyclic import Cyclic
from nasformer.search.problem import Candidate, Problem
from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.space.mutation import Mutation, genes, same_role
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

WIDTH = Choice(1, 2, 3, 4)
BLOCK = OneOf(
    conv=Struct(kernel=Choice(3, 5, 7, role="topology"), width=WIDTH),
    attention=Struct(width=WIDTH, heads=Choice(1, 2)),
)
SPACE = Struct(stem=Choice(1, 2, 3), blocks=Repeat(BLOCK, depth=Choice(1, 2, 3)))
BUDGET = Budget(max_params=25, max_macs=300)
OBJECTIVES = ("form", "bulk")
WANTED = ("conv", "conv", "attention")


def costs(arch: Arch) -> dict[str, int]:
    """Whatever the topology: else a net that fills its budget could not take a dearer kind of block any more."""
    params = arch.stem + sum(2 * part.width for block in arch.blocks for part in block.values())
    return {"params": params, "macs": 10 * params + len(arch.blocks)}


def scores_of(arch: Arch) -> dict[str, float]:
    """Form: how many blocks are as wanted, convolutions of kernel 5 before attention. Bulk: grows with every size."""
    forms = [_form(block, kind) for block, kind in zip(arch.blocks, WANTED, strict=False)]
    bulk = sum(part.width + part.get("heads", 0) for block in arch.blocks for part in block.values())
    return {"form": sum(forms) / len(forms), "bulk": arch.stem + bulk}


def _form(block: Arch, kind: str) -> float:
    if kind not in block:
        return 0.0
    return 1.0 if block[kind].get("kernel", 5) == 5 else 0.5


def cycle(journal: Path | None = None, **changes: Any) -> SearchResult:
    arguments: dict[str, Any] = {
        "budget": BUDGET,
        "objectives": OBJECTIVES,
        "evaluate": scores_of,
        "strategy": "cyclic",
    }
    return search(SPACE, costs=costs, journal=journal, **{**arguments, **changes})


@cache
def optimum() -> tuple[float, float]:
    """The best form, and the most bulk that the budget leaves it, by trying everything."""
    scores = [scores_of(arch) for arch in SPACE.enumerate() if BUDGET.fits(costs(arch))]
    form = max(score["form"] for score in scores)
    return form, max(score["bulk"] for score in scores if score["form"] == form)


Turn = tuple[Candidate | None, int, list[Candidate]]  # the incumbent, the phase, and what was evaluated for it


def run_by_hand(problem: Problem, evaluate: Any = scores_of, **options: Any) -> tuple[Cyclic, list[Turn]]:
    """A search turn by turn, with a look at the incumbent."""
    strategy = Cyclic(problem, **options)
    turns: list[Turn] = []
    while not strategy.done:
        batch = strategy.ask()
        strategy.tell(
            [(candidate, {**problem.costs(candidate.arch), **evaluate(candidate.arch)}) for candidate in batch]
        )
        if batch:
            evaluated = strategy.candidates[-len(batch) :]
            turns.append((strategy.incumbent, batch[0].generation, evaluated))
    return strategy, turns


def problem(seed: int = 0, **changes: Any) -> Problem:
    task: dict[str, Any] = {"node": SPACE, "costs": costs, "budget": BUDGET, "objectives": OBJECTIVES, "seed": seed}
    return Problem(**{**task, **changes})


def phases(turns: Sequence[Turn]) -> list[tuple[int, Candidate, list[Candidate]]]:
    """Phase by phase: its number, its incumbent and all that was evaluated in it; the start is left out."""
    found = []
    for number, group in groupby(turns[1:], key=lambda turn: turn[1]):
        members = list(group)
        incumbents = {turn[0].id for turn in members if turn[0]}
        assert len(incumbents) == 1, "the incumbent changed inside a phase"
        assert members[0][0] is not None
        found.append((number, members[0][0], [candidate for _, _, evaluated in members for candidate in evaluated]))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_best_topology_and_the_best_size(seed: int) -> None:
    result = cycle(seed=seed)
    assert (result.best.scores["form"], result.best.scores["bulk"]) == optimum()
    assert len(result.candidates) < SPACE.cardinality / 50
    assert all(BUDGET.fits(costs(candidate.arch)) for candidate in result.candidates)


def test_phases_alternate_and_each_ends_with_its_best() -> None:
    strategy, turns = run_by_hand(problem())
    assert [candidate.origin for candidate in turns[0][2]] == ["start"]
    assert turns[0][1] == 0
    found = phases(turns)
    assert [number for number, _, _ in found][:4] == [1, 2, 3, 4]
    for number, _, evaluated in found:
        assert {candidate.origin for candidate in evaluated} == {"topology" if number % 2 else "size"}
    ends = [incumbent for _, incumbent, _ in found[1:]] + [strategy.incumbent]
    for (number, incumbent, evaluated), end in zip(found, ends, strict=True):
        assert end is not None
        score = OBJECTIVES[(number + 1) % 2]
        assert end.scores[score] == max(candidate.scores[score] for candidate in (incumbent, *evaluated))


VANISHING = Struct(
    blocks=Repeat(
        OneOf(wide=Struct(width=Choice(1, 2, 3, 4)), pool=Struct(), free=Struct(kernel=Choice(3, 5, role="topology"))),
        depth=Choice(1, 2, 3),
    )
)


def arbitrary_scores(arch: Arch) -> dict[str, float]:
    number = crc32(arch.to_json().encode())
    return {"form": number % 97, "bulk": number % 89}


@pytest.mark.parametrize("seed", range(2))
def test_frozen_genes_stay_frozen_for_a_whole_phase(seed: int) -> None:
    """Also in a space where they can vanish, with a layer or an option, and come back."""
    for space, price in ((SPACE, costs), (VANISHING, lambda arch: {"params": len(arch.blocks)})):
        task = problem(seed, node=space, costs=price, budget=Budget(max_params=25))
        _, turns = run_by_hand(task, scores_of if space is SPACE else arbitrary_scores)
        moved = 0
        for number, incumbent, evaluated in phases(turns):
            frozen, free = ("size", "topology") if number % 2 else ("topology", "size")
            assert all(same_role(space, candidate.arch, incumbent.arch, frozen) for candidate in evaluated)  # type: ignore[arg-type]
            start = genes(space, incumbent.arch, free)  # type: ignore[arg-type]
            moved += sum(genes(space, candidate.arch, free) != start for candidate in evaluated)  # type: ignore[arg-type]
        assert moved == sum(len(evaluated) for _, _, evaluated in turns[1:])


def test_a_cycle_that_changes_nothing_is_the_last() -> None:
    strategy, turns = run_by_hand(problem())
    assert strategy.note == f"stopped after cycle {strategy.cycle} of 8, which changed nothing"
    last = [incumbent for number, incumbent, _ in phases(turns) if number > 2 * strategy.cycle - 2]
    assert {candidate.id for candidate in last} == {strategy.winner().id}
    short, turns = run_by_hand(problem(), cycles=1)
    assert max(number for _, number, _ in turns) == 2
    assert short.note == ""


def test_a_step_breeds_from_the_two_best_of_the_tournament_and_the_oldest_leave() -> None:
    for population, tournament in ((6, 6), (2, 2)):
        task = problem(5)
        _, turns = run_by_hand(task, population=population, tournament=tournament, steps=6, cycles=1)
        by_form = problem(objectives=("form",))
        (start,), first, *steps = [evaluated for _, number, evaluated in turns if number < 2]
        assert {candidate.parents for candidate in first} == {(start.id,)}
        joined = [start, *first]
        assert len(steps) > 2
        for evaluated in steps:
            best, second = by_form.best_first(joined[-population:])[:2]
            allowed = [(best.id,), (second.id,), (best.id, second.id)]
            assert [candidate.parents for candidate in evaluated] == [
                ids for ids in allowed if ids in {candidate.parents for candidate in evaluated}
            ]
            joined += evaluated


WHEEL = Struct(op=OneOf(a=Struct(), b=Struct()), width=Choice(1, 2))


def wheel(arch: Arch) -> dict[str, float]:
    """Each phase ends one further round: a1, b1, b2, a2 and a1 again."""
    place = "a1 b1 b2 a2".index(f"{next(iter(arch.op))}{arch.width}") // 3
    return {"form": [0, 1, 0, 1][place], "bulk": [1, 0, 1, 0][place]}


@pytest.mark.parametrize(("cycles", "last"), [(1, 2), (2, 0), (7, 2), (8, 0)])
def test_what_was_evaluated_before_is_not_asked_for_again_and_can_win(cycles: int, last: int) -> None:
    options = {"cycles": cycles, "seeds": [{"op": {"a": {}}, "width": 1}]}
    result = search(
        WHEEL,
        wheel,
        lambda arch: {"params": 1},
        strategy="cyclic",
        options=options,
        budget=Budget(max_params=2),
        objectives=OBJECTIVES,
    )
    rounds = [Arch(op=Arch(**{op: Arch()}), width=width) for op, width in (("a", 1), ("b", 1), ("b", 2), ("a", 2))]
    assert [candidate.arch for candidate in result.candidates] == rounds[: 3 if cycles == 1 else 4]
    assert result.best.arch == rounds[last]
    assert result.note == ""


def test_the_winner_is_the_last_incumbent_and_not_the_best_by_the_first_objective() -> None:
    def altered(arch: Arch) -> dict[str, float]:
        score = scores_of(arch)
        return {**score, "form": score["form"] - score["bulk"]}

    strategy, _ = run_by_hand(problem(), altered)
    result = cycle(evaluate=altered)
    assert result.best == strategy.incumbent == strategy.winner()
    assert result.best.scores["form"] < max(candidate.scores["form"] for candidate in result.candidates)
    assert result.front == problem().front(result.candidates)


def test_cut_between_lines(tmp_path: Path) -> None:
    short = {"population": 6, "tournament": 3, "steps": 3, "cycles": 3}
    result = cycle(tmp_path / "whole.jsonl", options=short)
    assert max(candidate.generation for candidate in result.candidates) > 2
    content = (tmp_path / "whole.jsonl").read_bytes()
    lines, path = content.splitlines(keepends=True), tmp_path / "journal.jsonl"
    for kept in [*range(0, len(lines), 7), len(lines)]:
        path.write_bytes(b"".join(lines[:kept]))
        assert cycle(path, options=short) == result
        assert path.read_bytes() == content


def test_a_start_without_a_finite_score_is_drawn_again() -> None:
    def altered(arch: Arch) -> dict[str, float]:
        return {**scores_of(arch), "bulk": math.nan} if len(arch.blocks) > 1 else scores_of(arch)

    results = [cycle(evaluate=altered, seed=seed, options={"cycles": 1}) for seed in range(8)]
    starts = [[candidate for candidate in result.candidates if candidate.origin == "start"] for result in results]
    assert max(map(len, starts)) > 1
    for result, tried in zip(results, starts, strict=True):
        assert all(math.isnan(candidate.scores["bulk"]) for candidate in tried[:-1])
        assert len(result.best.arch.blocks) == 1


def test_the_best_seed_is_where_it_starts() -> None:
    poor = Arch(stem=1, blocks=[{"attention": {"width": 1, "heads": 1}}])
    good = Arch(stem=1, blocks=[{"conv": {"kernel": 5, "width": 1}}])
    _, turns = run_by_hand(problem(), seeds=[poor, good.to_dict(), poor])
    assert [candidate.arch for candidate in turns[0][2]] == [poor, good]
    assert {candidate.origin for candidate in turns[0][2]} == {"start"}
    first = phases(turns)[0][1]
    assert first.arch == good
    with pytest.raises(UserError, match=r"seeds\[0\] is outside the budget"):
        Cyclic(problem(budget=Budget(max_params=2)), seeds=[good])


SIZES, FORMS = Struct(width=Choice(1, 2)), Struct(kernel=Choice(3, 5, role="topology"), width=Choice(1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objectives": ("form",)}, "needs two objectives.*such as entropic,logsynflow; got form"),
        ({"objectives": ("form", "bulk", "-macs")}, "needs two objectives.*got form, bulk, -macs"),
        ({"order": "ranks"}, "needs two objectives.*got form, bulk by ranks"),
        ({"budget": Budget()}, "needs an upper limit.*give --max-params or --max-macs"),
        ({"budget": Budget(min_params=3)}, "needs an upper limit"),
        ({"node": SIZES}, "the space has no topology to choose"),
        ({"node": FORMS}, "the space has no size to choose"),
    ],
)
def test_problems_it_has_no_answer_to_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Cyclic(problem(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"population": 1}, "population is 1, expected at least 2"),
        ({"tournament": 1}, "tournament is 1, expected at least 2"),
        ({"steps": 0}, "steps is 0, expected at least 1"),
        ({"cycles": 0}, "cycles is 0, expected at least 1"),
        ({"mutation": "wild"}, "mutation is 'wild'"),
        ({"seeds": [{"stem": 9}]}, r"seeds\[0\]"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Cyclic(problem(), **options)


def test_a_mutation_of_ones_own_gets_the_role_of_the_phase(tmp_path: Path) -> None:
    own = Mutation(1, 1, 1, role="size")  # the role of the phase takes precedence
    result = cycle(tmp_path / "journal.jsonl", options={"mutation": own, "cycles": 1})
    assert {candidate.origin for candidate in result.candidates} == {"start", "topology", "size"}
