"""Search without training, on tiny nets."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.proxies import registry
from nasformer.proxies.registry import list_proxies
from nasformer.proxies.scoring import Scorer
from nasformer.runs.search import search_training_free
from nasformer.search import strategy as strategies
from nasformer.search.journal import read_journal
from nasformer.search.pareto import aggregate_ranks, pareto_front
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget

from .spaces import SPACES

SPACE = SPACES["autoformer"]
BUDGET = Budget(min_params=1_800, max_params=3_800)


def scorer(proxies: str = "dss", **settings: Any) -> Scorer:
    return Scorer(SPACE, proxies, **{"batch_size": 4, **settings})


def find(scorer: Scorer, journal: Path | None = None, evaluations: int = 24, **changes: Any) -> SearchResult:
    options = {"evaluations": evaluations}
    settings: dict[str, Any] = {"budget": BUDGET, "options": options, "journal": journal, "quiet": True}
    return search_training_free(scorer, **(settings | changes))


def column(result: SearchResult, name: str) -> list[float]:
    return [one.scores[name] for one in result.candidates]


def test_the_best_by_one_proxy_within_the_budget() -> None:
    by_dss = scorer()
    result = find(by_dss)
    assert len(result.candidates) == 24
    assert all(1_800 <= value <= 3_800 for value in column(result, "params"))
    assert result.best.scores["dss"] == max(column(result, "dss"))
    assert [by_dss.score(one.arch)["dss"].mean for one in result.candidates] == column(result, "dss")
    points = list(zip(column(result, "dss"), [-value for value in column(result, "params")], strict=True))
    assert sorted(one.id for one in result.front) == pareto_front(points)


def test_several_proxies_win_by_their_ranks() -> None:
    result = find(scorer("dss,naswot,params"))
    together = aggregate_ranks([column(result, name) for name in ("dss", "naswot", "params")])
    assert together[result.best.id] == max(together)
    assert result.best in result.front


def test_objectives_are_a_front() -> None:
    result = find(scorer("dss,snip"), objectives=("snip", "-params"))
    points = list(zip(column(result, "snip"), [-value for value in column(result, "params")], strict=True))
    assert sorted(one.id for one in result.front) == pareto_front(points)
    assert result.best.scores["snip"] == max(column(result, "snip"))


@pytest.mark.parametrize("proxies", ["dss", "dss,naswot"])
def test_evolution(proxies: str) -> None:
    options = {"population": 8, "generations": 3, "parents": 3}
    result = find(scorer(proxies), strategy="evolution", options=options)
    assert len(result.candidates) == 24
    assert {one.origin for one in result.candidates} >= {"random", "mutation"}


def test_repeats_are_written_down_with_their_spread(tmp_path: Path) -> None:
    find(scorer("dss", repeats=3), tmp_path / "journal.jsonl", evaluations=4)
    settings, records = read_journal(tmp_path / "journal.jsonl")
    assert (settings["repeats"], settings["proxies"]) == (3, ["dss"])
    assert all(record["dss_std"] > 0 for record in records)


def test_cut_at_every_line_it_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "BATCH", 4)
    same = scorer("dss,naswot")
    result = find(same, tmp_path / "whole.jsonl", evaluations=6)
    content = (tmp_path / "whole.jsonl").read_bytes()
    lines, path = content.splitlines(keepends=True), tmp_path / "journal.jsonl"
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        assert find(same if kept % 4 else scorer("dss,naswot"), path, evaluations=6) == result
        assert path.read_bytes() == content


def test_a_batch_is_scored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = Scorer.many

    def many(self: Scorer, archs: Sequence[Arch]) -> list[dict[str, float]]:
        calls.append(len(archs))
        return real(self, archs)

    monkeypatch.setattr(strategies, "BATCH", 10)
    monkeypatch.setattr(Scorer, "many", many)
    find(scorer("params"))
    assert calls == [10, 10, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proxies": "dss-code"}, r"proxies was \['dss'\], now \['dss-code'\]"),
        ({"repeats": 2}, "repeats was 1, now 2"),
        ({"batch_size": 5}, "probe_size was 4, now 5"),
        ({"seed": 1}, "weights_seed was 0, now 1"),
    ],
)
def test_a_journal_of_another_scorer_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    find(scorer(), path, evaluations=3)
    before = path.read_bytes()
    with pytest.raises(UserError, match=f"{message}.*use another --out folder"):
        find(scorer(**changes), path, evaluations=3)
    assert path.read_bytes() == before


def test_objectives_instead_of_ranks_are_another_search(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    find(scorer("dss,snip"), path, evaluations=3)
    with pytest.raises(UserError, match="order was ranks, now not set"):
        find(scorer("dss,snip"), path, evaluations=3, objectives=("dss", "snip"))


def spoil(monkeypatch: pytest.MonkeyPatch, bad: float, limit: float) -> None:
    """Adds a proxy that counts parameters, but has no finite value from some number on."""
    proxies = list_proxies()
    real = proxies["params"]

    def score(model: Any, probe: Any) -> float:
        value = real.score(model, probe)
        return value if value < limit else bad

    monkeypatch.setattr(registry, "_PROXIES", proxies | {"spoilt": replace(real, name="spoilt", score=score)})


@pytest.mark.parametrize(
    ("proxies", "repeats", "objectives", "bad"),
    [
        ("spoilt", 1, (), math.nan),
        ("spoilt,depth", 2, (), math.inf),
        ("spoilt", 2, ("spoilt", "-params"), math.inf),
        ("spoilt,depth", 1, ("spoilt", "-params"), math.nan),
    ],
)
def test_what_is_not_finite_never_wins(
    proxies: str,
    repeats: int,
    objectives: tuple[str, ...],
    bad: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch, bad, limit=2_500)
    path = tmp_path / "journal.jsonl"
    result = find(scorer(proxies, repeats=repeats), path, evaluations=12, objectives=objectives)
    records = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()[1:]]
    spoilt = {record["id"] for record in records if record["spoilt"] is None}
    assert spoilt == {one.id for one in result.candidates if one.scores["params"] >= 2_500}
    assert 0 < len(spoilt) < 12
    assert not spoilt & {result.best.id, *(one.id for one in result.front)}


def test_nothing_finite_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, math.nan, limit=0)
    with pytest.raises(UserError, match=r"no candidate has a finite score \(spoilt\)"):
        find(scorer("spoilt"), evaluations=3)
