"""Evolution of spaces whose best member is known: they must walk to it, and stay there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.models.space import Space
from nasformer.search.options import EvolveOptions
from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct
from nasformer.space.rules import Rule
from nasformer.space_search import Step, choices_of, evolve, measure_quality, next_space
from space_search import synthetic
from space_search.synthetic import bowl, samples

BEST = {"width": 48, "blocks.depth": 5, "blocks.heads": 2, "blocks.ratio": 4.0, "blocks.window": 4.5}


def walk(start: Space, best: dict[str, float] = BEST, depth: float = 1.0, **options: Any) -> list[Step]:
    error = bowl(start, best, depth)
    chosen = {"steps": 12, "samples": 400, "top": 20} | options
    return list(evolve(start, lambda space, step: samples(space, error, seed=step), EvolveOptions(**chosen)))


def middles(step: Step) -> dict[str, float]:
    return {name: sum(one.values) / len(one.values) for name, one in step.dimensions.items() if name in BEST}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"width": (8, 16, 24), "depth": (7, 8, 9), "heads": (1, 2, 3)},
        {"depth": (5, 6, 7), "ratio": (5.0, 5.5, 6.0)},
    ],
)
def test_a_space_walks_to_its_best_member_and_stays(changes: dict[str, Sequence[Any]]) -> None:
    steps = walk(synthetic.space(**changes), tau=0.2)
    assert len(steps) < 12  # it came to rest by itself
    for name, middle in middles(steps[-1]).items():
        unit = steps[-1].dimensions[name].step
        assert unit is not None
        assert abs(middle - BEST[name]) < unit / 2
    assert [one.shift for one in steps[-1].dimensions.values()] == [0] * 7
    assert steps[-1].dimensions["blocks.ratio"].next == steps[-1].dimensions["blocks.ratio"].values
    assert [step.error.et for step in steps] == sorted((step.error.et for step in steps), reverse=True)


def test_at_the_best_nothing_moves() -> None:
    start = synthetic.space(width=(40, 48, 56), depth=(4, 5, 6), heads=(1, 2, 3), ratio=(3.5, 4.0, 4.5))
    (only,) = walk(start)
    assert only.dimensions["width"].slope == pytest.approx(0, abs=0.3)
    assert only.space == start.name


def test_each_step_is_what_became_of_the_last() -> None:
    steps = walk(synthetic.space(), steps=3)
    assert len(steps) == 4
    for before, after in pairwise(steps):
        for name, one in before.dimensions.items():
            assert after.dimensions[name].values == one.next
            if one.step is not None:
                expected = [value + one.shift * one.step for value in one.values]  # type: ignore[operator]
                assert list(one.next) == pytest.approx(expected)
    changes = "blocks.depth=3,4,5;blocks.heads=2,3,4;blocks.ratio=2.5,3,3.5;width=24,32,40"
    assert steps[1].space == f"synthetic[{changes}]"
    assert [one.shift for one in steps[-1].dimensions.values()] == [0] * 7  # after the last, nothing is shifted
    assert steps[-1].dimensions["width"].slope is not None  # though one may look where it would go


def test_a_step_tells_all_that_was_found() -> None:
    space, error = synthetic.space(), bowl(synthetic.space(), BEST)
    found = samples(space, error, 200)
    options = EvolveOptions(samples=200, top=10)
    step, following = next_space(space, found, options)
    record = json.loads(json.dumps(step.to_dict()))
    assert list(record) == ["space", "cardinality", "samples", "error", "errors", "dimensions", "carried"]
    assert (record["space"], record["cardinality"], record["samples"]) == ("synthetic", space.root.cardinality, 200)
    errors = [100 * (1 - one.scores["accuracy"]) for one in found]
    assert record["errors"] == pytest.approx(sorted(errors))
    whole = measure_quality(errors, 0.05)
    assert record["error"] == pytest.approx({"expected": whole.expected, "top": whole.top, "et": whole.et})
    width = record["dimensions"]["width"]
    keys = ["values", "counts", "et", "slope", "stderr", "intercept", "shift", "step", "next", "notice"]
    assert list(width) == keys
    assert (width["values"], width["step"], width["shift"], width["next"]) == ([16, 24, 32], 8, 1, [24, 32, 40])
    assert sum(width["counts"]) == 200
    assert sum(record["dimensions"]["blocks.heads"]["counts"]) == pytest.approx(200)
    assert choices_of(following)["width"] == (24, 32, 40)
    for value, et in zip(width["values"], width["et"], strict=True):
        assert et == pytest.approx(
            measure_quality([error(one.arch) for one in found if one.arch.width == value], 0.05).et
        )


def test_only_numbers_with_neighbours_move() -> None:
    step, _ = next_space(synthetic.space(), samples(synthetic.space(), bowl(synthetic.space(), BEST)), EvolveOptions())
    assert step.dimensions["act"].notice == "left alone: no numbers"
    assert step.dimensions["fixed"].notice == "left alone: a single value"
    assert (step.dimensions["act"].slope, step.dimensions["act"].step) == (None, None)
    assert sum(step.dimensions["act"].counts) == 400


def shift_of(name: str, candidates: list[Candidate] | None = None, **options: Any) -> tuple[int, str]:
    space = synthetic.space()
    found = candidates if candidates is not None else samples(space, bowl(space, BEST))
    step, _ = next_space(space, found, EvolveOptions(**options))
    return step.dimensions[name].shift, step.dimensions[name].notice


def test_values_that_are_rare_are_left_out_with_a_notice() -> None:
    space = synthetic.space()
    found = samples(space, bowl(space, BEST))
    rare = [one for one in found if one.arch.width != 16] + [one for one in found if one.arch.width == 16][:5]
    assert shift_of("width", rare) == (1, "fewer than 10 samples have 16")
    alone = [one for one in rare if one.arch.width != 24]
    assert shift_of("width", alone) == (0, "left alone: fewer than 10 samples have 16 or 24")
    assert shift_of("width", alone, min_samples=0)[1] == "fewer than 1 samples have 24"
    none = [one for one in alone if one.arch.width != 16]
    assert shift_of("width", none, min_samples=0) == (0, "left alone: fewer than 1 samples have 16 or 24")


def test_what_may_be_chance_is_no_reason() -> None:
    """An error that has nothing to do with the width, but is never quite even."""
    space = synthetic.space()
    noise = [1 - ((37 * number) % 101) / 200 for number in range(400)]
    found = [
        Candidate(one.id, 0, "random", (), one.arch, {"accuracy": noise[one.id]})
        for one in samples(space, lambda arch: 0.0)
    ]
    assert shift_of("width", found, sigma=3.0, tau=1e-6) == (0, "not shifted: may be chance")
    assert shift_of("width", found, sigma=0.0, tau=1e-6)[0] != 0
    assert shift_of("width", found, sigma=3.0, tau=100.0) == (0, "")  # where no shift was due, nothing is said


def test_thresholds_and_steps_by_name() -> None:
    assert shift_of("width", tau_of={"width": 1000.0}) == (0, "")
    assert shift_of("blocks.heads", tau_of={"heads": 1000.0}) == (0, "")
    assert shift_of("blocks.heads", tau_of={"width": 1000.0})[0] == -1
    assert shift_of("width", max_shift=3)[0] == 3
    space = synthetic.space()
    step, following = next_space(space, samples(space, bowl(space, BEST)), EvolveOptions(step_of={"width": 4}))
    assert choices_of(following)["width"] == (20, 28, 36)
    assert step.dimensions["width"].step == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_of": {"widht": 1.0}}, "synthetic has no dimension 'widht'; it has: blocks.depth, "),
        ({"step_of": {"blocks": 1.0}}, "synthetic has no dimension 'blocks'"),
        ({"step_of": {"heads": 0.5}}, "the step of blocks.heads is 0.5, but its values are whole numbers"),
    ],
)
def test_names_and_steps_are_checked_before_anything_is_judged(options: dict[str, Any], message: str) -> None:
    def judge(space: Space, step: int) -> list[Candidate]:
        raise AssertionError

    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        next(evolve(synthetic.space(), judge, EvolveOptions(**options)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "evolve.steps is -1; give 0 or more"),
        ({"samples": 10}, "evolve.top is 50, more than the 10 samples"),
        ({"tau": 0.0}, "evolve has 0 for tau; give more than 0"),
        ({"step_of": {"depth": -1}}, "evolve has -1 for depth; give more than 0"),
        ({"further_epochs": 0}, "evolve.further_epochs is 0; give 1 or more"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        EvolveOptions(**options)


def test_limits_of_the_family_are_kept_with_a_notice() -> None:
    """Windows up to 10; the best would be 30."""
    steps = walk(synthetic.space(), {"blocks.window": 30.0})
    assert steps[-1].dimensions["blocks.window"].values == (6, 9)
    assert steps[-1].dimensions["blocks.window"].notice == "kept at 10 or less"


def test_depth_is_kept_with_a_notice() -> None:
    steps = walk(synthetic.space(), {"blocks.depth": -20.0, "blocks.ratio": -9.0})
    assert steps[-1].dimensions["blocks.depth"].values == (1, 2, 3)
    assert steps[-1].dimensions["blocks.depth"].notice == "kept at 1 or more"
    assert steps[-1].dimensions["blocks.ratio"].values == (0.5, 1.0, 1.5)
    assert steps[-1].dimensions["blocks.ratio"].notice == "kept above 0"


def test_what_cannot_be_built_is_taken_back_with_a_notice() -> None:
    """Nothing wider than 60, though 100 would be best; other dimensions go on."""
    steps = walk(synthetic.space(width=(36, 48, 60)), {"width": 100.0, "blocks.depth": 5.0})
    assert steps[0].dimensions["width"].shift == 0
    assert steps[0].dimensions["width"].notice == "taken back: a width of 72 is too wide"
    assert steps[0].dimensions["width"].next == (36, 48, 60)
    assert steps[0].dimensions["blocks.depth"].shift == 1


def test_rules_between_dimensions_hold() -> None:
    """Heads must divide the width: of 12, 16 the 16 allows no 3; and both may have to move together."""
    rule = Rule(("heads", "width"), lambda heads, width: width % heads == 0, "heads must divide the width")
    start = Space("ruled", synthetic.Nothing, Struct(rule, heads=Choice(1, 2), width=Choice(12, 14)))

    def error(arch: Arch) -> float:
        return 30.0 - arch.heads

    steps = list(evolve(start, lambda space, step: samples(space, error), EvolveOptions(steps=3)))
    assert steps[0].dimensions["heads"].next == (2, 3)
    assert steps[1].dimensions["heads"].next == (3, 4)
    assert steps[2].dimensions["heads"].notice.startswith("taken back: ")  # no width is a multiple of 5
    assert len(steps) == 3


def test_the_size_of_the_space_can_be_limited() -> None:
    """A deeper space is a larger one; the width may still move."""
    start = synthetic.space()
    steps = walk(start, {"width": 48.0, "blocks.depth": 9.0}, max_cardinality=2 * start.root.cardinality)
    assert steps[0].dimensions["blocks.depth"].shift == 0
    assert "members, more than" in steps[0].dimensions["blocks.depth"].notice
    assert steps[0].dimensions["width"].shift == 1
    assert max(step.cardinality for step in steps) <= 2 * start.root.cardinality
    free = walk(start, {"width": 48.0, "blocks.depth": 9.0}, steps=1)
    assert free[1].cardinality > 2 * start.root.cardinality


def test_a_space_too_large_already_may_move_but_not_grow() -> None:
    steps = walk(synthetic.space(), {"width": 48.0, "blocks.depth": 9.0}, max_cardinality=10, steps=1)
    assert [step.cardinality for step in steps] == [synthetic.space().root.cardinality] * 2
    smaller = walk(synthetic.space(), {"blocks.depth": 1.0}, max_cardinality=10, steps=1)
    assert smaller[1].cardinality < smaller[0].cardinality


def test_the_paper_s_rounding_moves_up_on_little() -> None:
    assert shift_of("width", rounding="floor", tau=1000.0, sigma=0.0)[0] == 1
    assert shift_of("blocks.heads", rounding="floor", tau=1000.0, sigma=0.0)[0] == 0
