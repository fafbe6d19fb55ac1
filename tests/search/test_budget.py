"""Quantities as people write them, and budgets made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasformer.errors import UserError
from nasformer.search.budget import Budget
from nasformer.space.feasible import Window
from nasformer.utils.units import format_quantity, parse_quantity

QUANTITIES: list[tuple[Any, float]] = [
    ("6M", 6_000_000),
    ("6 M", 6_000_000),
    (" 250k ", 250_000),
    ("250K", 250_000),
    ("1.3G", 1_300_000_000),
    ("1.3B", 1_300_000_000),
    ("5_900_000", 5_900_000),
    ("5.868M", 5_868_000),
    ("0", 0),
    ("1e6", 1_000_000),
    ("2.5", 2.5),
    (42, 42),
    (1e9, 1_000_000_000),
    (0.5, 0.5),
]


@pytest.mark.parametrize(("text", "value"), QUANTITIES)
def test_quantities_are_read_exactly(text: Any, value: float) -> None:
    assert parse_quantity(text) == value
    assert type(parse_quantity(text)) is type(value)


@pytest.mark.parametrize("text", ["", "M", "six", "6T", "6m", "-6M", "6MB", "6,5M", "nan", "inf", True, "1.2.3"])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match="is not a quantity; write a number"):
        parse_quantity(text)


@given(st.integers(0, 999), st.sampled_from(["", "K", "M", "G"]))
def test_short_quantities_survive_the_round_trip(number: int, unit: str) -> None:
    value = parse_quantity(f"{number}{unit}")
    assert parse_quantity(format_quantity(value)) == value


@given(st.integers(0, 10**12))
def test_formatting_keeps_three_digits(value: int) -> None:
    assert parse_quantity(format_quantity(value)) == pytest.approx(value, rel=0.005)


def test_a_budget_says_what_it_means() -> None:
    assert str(Budget()) == "no limit"
    assert str(Budget(max_macs=1.3e9)) == "macs <= 1.3G"
    assert str(Budget(min_params=5_000_000)) == "5M <= params"
    assert str(Budget(5_000_000, 6_000_000, max_macs=1e9)) == "5M <= params <= 6M, macs <= 1G"


def test_both_ends_belong_to_the_budget() -> None:
    budget = Budget(min_params=5, max_params=6, max_macs=100)
    assert budget.fits({"params": 5, "macs": 100})
    assert budget.fits({"params": 6, "macs": 0})
    assert not budget.fits({"params": 4, "macs": 100})
    assert not budget.fits({"params": 7, "macs": 100})
    assert not budget.fits({"params": 6, "macs": 101})
    assert Budget().fits({})


def test_windows_name_the_limited_costs_alone() -> None:
    assert Budget().windows() == []
    assert Budget(max_macs=9).windows() == [Window("macs", None, 9)]
    assert Budget(1, 2, 3, 4).windows() == [Window("params", 1, 2), Window("macs", 3, 4)]


def test_a_limit_of_zero_is_a_limit() -> None:
    assert not Budget(max_params=0).fits({"params": 1})


def test_a_cost_that_is_not_known_is_named() -> None:
    with pytest.raises(UserError, match=r"'macs'.*params"):
        Budget(max_macs=1).fits({"params": 1})


def test_a_new_cost_needs_just_its_field() -> None:
    @dataclass(frozen=True)
    class Later(Budget):
        max_latency_ms: float | None = None

    budget = Later(max_params=6_000_000, max_latency_ms=2.5)
    assert str(budget) == "params <= 6M, latency_ms <= 2.5"
    assert not budget.fits({"params": 1, "latency_ms": 2.6})
