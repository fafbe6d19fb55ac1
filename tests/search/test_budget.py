"""Budgets: what they say and what fits them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, Window, uniform_arch
from nasformer.space.nodes import Choice, Struct


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


def test_the_uniform_arch_has_equal_shares_of_everything_and_uses_the_budget() -> None:
    stages = {name: Struct(heads=Choice(*range(1, most + 1))) for name, most in (("one", 4), ("two", 8))}
    space = Struct(**stages, width=Choice(0, 10, 20, 30, 40))

    def costs(arch: Arch) -> dict[str, float]:
        return {"macs": (arch.one.heads + arch.two.heads) * arch.width}

    found = uniform_arch(space, costs, Budget(max_macs=130))
    assert found is not None
    assert (found.one.heads, found.two.heads, found.width) == (2, 4, 20)
    assert uniform_arch(space, costs, Budget(max_macs=10)) is None
    assert uniform_arch(space, costs, Budget()) == space.largest()
