"""Options that strategies declare, and what a search makes of those that were given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.search import strategy as strategies
from nasformer.search.evolution import Evolution
from nasformer.search.options import BudgetOptions, SearchOptions
from nasformer.search.problem import Problem, Proposal
from nasformer.search.strategy import (
    RandomSearch,
    Strategy,
    complete_options,
    find_strategy,
    list_strategies,
    register_strategy,
    strategy_options,
)
from nasformer.utils.units import DeclaredOption

from .toy import run


class Annealing(RandomSearch):
    """Cools down.

    Args:
        temperature: Where it starts,
            in whatever units.
        steps: How many.

    Further prose: which is no option.
    """

    def __init__(self, problem: Problem, temperature: float = 2.5, steps: int = 10, seeds: Any = ()) -> None:
        super().__init__(problem, steps)
        self.temperature = temperature

    def ask(self) -> list[Proposal]:
        return self.draw(self.evaluations - len(self.candidates))


@pytest.fixture
def annealing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Strategy]]:
    monkeypatch.setattr(strategies, "_STRATEGIES", list_strategies())
    register_strategy("annealing", Annealing)
    return Annealing


def test_options_are_those_of_the_constructor_with_the_texts_of_the_docstring() -> None:
    assert strategy_options(Annealing) == [
        DeclaredOption("temperature", float, 2.5, "Where it starts, in whatever units."),
        DeclaredOption("steps", int, 10, "How many."),
    ]


@pytest.mark.parametrize("name", list_strategies())
def test_every_option_says_what_it_is(name: str) -> None:
    options = strategy_options(find_strategy(name))
    assert options
    assert all(option.help.endswith(".") for option in options)
    assert not {"problem", "seeds"} & {option.name for option in options}


def test_options_of_a_subclass_without_a_constructor_are_described_by_its_base() -> None:
    class Faster(Evolution):
        """Evolution, but faster."""

    assert strategy_options(Faster) == strategy_options(Evolution)


def test_annotations_that_only_type_checkers_import_are_left_as_text() -> None:
    class Odd(RandomSearch):
        def __init__(self, problem: Problem, scale: Unknown = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert strategy_options(Odd)[0].annotation == "Unknown"


def test_a_registered_strategy_is_found_listed_and_run(annealing: type[Strategy]) -> None:
    assert find_strategy("annealing") is annealing
    assert list(list_strategies())[-1] == "annealing"
    assert SearchOptions("annealing", options={"steps": 7}).for_strategy() == {"steps": 7}
    result = run("random", strategy="annealing", options={"steps": 7})
    assert len(result.candidates) == 7


def test_a_name_belongs_to_one_strategy(annealing: type[Strategy]) -> None:
    register_strategy("annealing", annealing)
    with pytest.raises(ValueError, match="a strategy named 'annealing' exists already: Annealing"):
        register_strategy("annealing", Evolution)


def test_unknown_names_are_met_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="unknown strategy 'randm'; did you mean random"):
        find_strategy("randm")
    with pytest.raises(UserError, match="unknown strategy 'xyz'; there are: random, evolution, cyclic"):
        find_strategy("xyz")
    with pytest.raises(UserError, match="no option 'populaton'; did you mean population"):
        complete_options(Evolution, {"populaton": 3})
    with pytest.raises(UserError, match="unknown strategy 'randm'"):
        SearchOptions("randm").for_strategy()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("random", {"evaluations": 8000}),
        ("evolution", {"population": 30, "generations": 2, "mutation": "paper"}),
        ("cyclic", {"population": 30, "steps": 4, "mutation": "paper"}),
    ],
)
def test_a_strategy_gets_the_given_options_that_it_has(strategy: str, expected: dict[str, Any]) -> None:
    given = {"population": 30, "generations": 2, "steps": 4, "cycles": None, "mutation": "paper", "evaluations": None}
    options = SearchOptions(strategy, options=given)
    assert options.for_strategy(8000) == expected
    unused = [name for name, value in given.items() if value is not None and name not in expected]
    assert options.unused_options == unused


def test_given_evaluations_and_seeds_are_kept() -> None:
    assert SearchOptions("random", options={"evaluations": 5}).for_strategy(8000) == {"evaluations": 5}
    assert SearchOptions(options={"seeds": [{"a": 1}]}).for_strategy() == {"seeds": [{"a": 1}]}


def test_limits_are_read_with_their_units() -> None:
    options = BudgetOptions(max_params="6M", min_macs=1000, max_latency="5ms", max_memory="500MB")
    assert options.limits() == {
        "max_params": "6M",
        "min_macs": 1000,
        "max_latency_ms": 5.0,
        "max_memory_bytes": 500_000_000,
    }
    assert str(options.budget()) == "params <= 6M, 1K <= macs, latency_ms <= 5, memory_bytes <= 500M"


def test_options_need_no_torch() -> None:
    code = "import nasformer.search.options, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("count", [0, 201, 1.5])
def test_random_references_are_a_number_of_archs(count: Any) -> None:
    with pytest.raises(UserError, match="random_references"):
        SearchOptions(random_references=count)
