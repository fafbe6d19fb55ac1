"""The winner is who keeps the budget when measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny  # noqa: F401 - one thread
from latency.fake import ELSEWHERE, HERE, MICRO, fake_profile
from nasformer.errors import UserError
from nasformer.latency import search
from nasformer.latency.search import Finalist, decide, measure
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget

RANKING = [MICRO.sample(seed) for seed in range(20)]
BUDGET = Budget(max_latency_ms=5.0)
PROFILE = fake_profile()


class Measured:
    """Stands for the machine: gives each arch the time that a test wants, and counts what it was asked."""

    def __init__(self, times: dict[int, float]) -> None:
        self.times, self.asked = times, list[int]()

    def __call__(self, profile: Any, space: Any, archs: Sequence[Arch], rounds: int) -> list[Finalist]:
        ranks = [RANKING.index(arch) for arch in archs]
        self.asked += ranks
        return [Finalist(RANKING[rank].to_dict(), 4.0, self.times.get(rank, 9.0)) for rank in ranks]


def measured(monkeypatch: pytest.MonkeyPatch, times: dict[int, float]) -> Measured:
    machine = Measured(times)
    monkeypatch.setattr(search, "measure", machine)
    return machine


def test_the_best_wins_if_it_keeps_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = measured(monkeypatch, {0: 4.9, 1: 1.0})
    decision = decide(PROFILE, MICRO, RANKING, BUDGET)
    assert (decision.arch, decision.note) == (RANKING[0], "")
    assert machine.asked == [0, 1, 2, 3, 4]
    assert decision.measured == {"measured_latency_ms": 4.9}


def test_else_the_next_one_that_does_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, {0: 5.1, 1: 5.01, 2: 5.0})
    decision = decide(PROFILE, MICRO, RANKING, BUDGET)
    assert decision.arch == RANKING[2]
    assert decision.note == "as measured, the best 2 by score exceed latency_ms <= 5; number 3 wins"


def test_more_are_measured_where_the_first_all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = measured(monkeypatch, {7: 3.0})
    assert decide(PROFILE, MICRO, RANKING, BUDGET).arch == RANKING[7]
    assert machine.asked == list(range(10))


def test_in_the_end_the_fastest_is_taken_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = measured(monkeypatch, {11: 6.0})
    decision = decide(PROFILE, MICRO, RANKING, BUDGET)
    assert decision.arch == RANKING[11]
    assert "none of the best 15 keeps latency_ms <= 5 as measured" in decision.note
    assert machine.asked == list(range(15))


def test_the_memory_must_fit_as_well() -> None:
    one = Finalist({}, 1.0, 1.0, 100, 120)
    assert one.fits(Budget(max_memory_bytes=120))
    assert not one.fits(Budget(max_memory_bytes=119))
    assert not one.fits(Budget(max_latency_ms=0.9, max_memory_bytes=500))


def test_what_was_measured_before_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = tmp_path / "search" / "finalists.json"
    measured(monkeypatch, {0: 6.0, 1: 4.0})
    first = decide(PROFILE, MICRO, RANKING, BUDGET, record)
    machine = measured(monkeypatch, {0: 1.0})
    assert decide(PROFILE, MICRO, RANKING, BUDGET, record) == first
    assert machine.asked == []
    other = fake_profile(overhead_ms=1.0)
    assert decide(other, MICRO, RANKING, BUDGET, record).arch == RANKING[0]
    assert machine.asked == [0, 1, 2, 3, 4]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    record = tmp_path / "finalists.json"
    record.write_text('{"profile": "x", "measured": {"{}": {"arch": {}}}}')
    with pytest.raises(UserError, match=r"finalists\.json: measured\[.*\]\.latency_ms is missing, expected a number"):
        decide(PROFILE, MICRO, RANKING, BUDGET, record)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"machine": ELSEWHERE}, r"the profile is of another machine \(processor an abacus"),
        (
            {"setup": replace(PROFILE.setup, device="cuda"), "machine": replace(HERE, gpu="none such")},
            "the profile is of",
        ),
    ],
)
def test_on_another_machine_predictions_must_do(changes: Any, said: str) -> None:
    decision = decide(fake_profile(**changes), MICRO, RANKING, BUDGET)
    assert (decision.arch, decision.finalists, decision.measured) == (RANKING[0], [], {})
    assert re.match(f"latency is predicted, not measured: {said}", decision.note)


def test_a_real_measurement_has_the_memory_of_the_net() -> None:
    (one,) = measure(PROFILE, MICRO, RANKING[:1], rounds=1)
    assert one.measured_latency_ms > 0
    assert one.measured_memory_bytes is not None
    assert one.measured_memory_bytes > 4 * MICRO.cost(RANKING[0]).params
