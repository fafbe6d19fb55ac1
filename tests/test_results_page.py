"""Figures in README and documentation come from records: pages are what they say, and every table has its source."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pages
from nasformer.results.verdict import Gain, load_evidence

RESULTS, STUDIES = (pages.ROOT / "benchmarks" / name for name in ("results", "study"))


@pytest.fixture
def assemble(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    monkeypatch.syspath_prepend(str(RESULTS))
    return importlib.import_module("assemble")


def test_pages_and_packaged_evidence_are_what_the_records_say(assemble: ModuleType) -> None:
    wanted = assemble.assembled()
    stale = [path.name for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run benchmarks/results/assemble.py"
    assert assemble.unused() == []
    assert all((pages.ROOT / "benchmarks" / "records" / item.record).exists() for item in load_evidence())


def test_a_block_is_replaced_on_its_own_lines_and_within_a_sentence(
    assemble: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from records import Block

    monkeypatch.setitem(assemble.BLOCKS, "toy", Block(lambda: "new", (), sourced=False))
    text = "A <!-- from records: toy -->old<!-- end --> B\n\n<!-- from records: toy -->\nold\n<!-- end -->\n"
    wanted = "A <!-- from records: toy -->new<!-- end --> B\n\n<!-- from records: toy -->\n\nnew\n\n<!-- end -->\n"
    assert assemble.with_blocks(text) == wanted
    assert assemble.with_blocks(wanted) == wanted
    with pytest.raises(SystemExit, match="no block is named other"):
        assemble.with_blocks("<!-- from records: other -->\n<!-- end -->")
    with pytest.raises(SystemExit, match="begins a line"):
        assemble.with_blocks("A\n<!-- from records: toy -->old<!-- end -->")


def test_a_table_of_results_is_assembled_or_listed_as_without_a_record() -> None:
    page = (pages.ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- from records: .*?<!-- end -->", "", page, flags=re.DOTALL)
    before, _, last = by_hand.partition("\n## Without a record\n")
    assert "\n| " not in before
    assert "\n| " in last


def test_the_line_below_a_table_says_where_it_comes_from(assemble: ModuleType) -> None:
    from records import sources

    record = {
        "benchmark": "same_recipe",
        "date": "2026-11-16",
        "settings": {"seeds": 3},  # asked for; one was trained
        "versions": {"python": "3.12.3", "torch": "2.11.0+cu130"},
        "hardware": {"gpu": "NVIDIA H200", "cpu": "Xeon", "threads": 1},
        "results": {"runs": {"winner": [{}]}},
    }
    line = "NVIDIA H200, torch 2.11.0, Python 3.12.3, 2026-11-16, one seed"
    assert sources(["a", "b"], [record, record]) == f"*`a.json`, `b.json` by `benchmarks/same_recipe.py`: {line}.*"


def test_rankings_are_shown_best_within_bands_first(assemble: ModuleType) -> None:
    from scores import ranking

    row = {"kendall": 0.5, "interval": [0.3, 0.6]}
    taus = {"c100": {"dss": row | {"within_bands": 0.1}, "params": row | {"within_bands": 0.2}}}
    taus["c100"]["regions"] = {"kendall": None, "interval": None, "within_bands": None}
    lines = ranking({"results": {"table": {"taus": taus}}}, "table").splitlines()
    assert lines[2:] == ["| *params* | .50 [.30, .60]; .20 |", "| `dss` | .50 [.30, .60]; .10 |", "| `regions` | – |"]


def test_a_block_without_its_record_says_what_writes_it(assemble: ModuleType) -> None:
    from records import Block

    assert "`make it` writes `none.json`" in Block(str, ("none",), sourced=True, command="make it").text()


def test_a_record_of_a_study_is_evidence(assemble: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("evidence")
    facts = {"road": "supernet", "method": "A", "data": "D", "images": 10, "img_size": 8, "budget": "small"}
    line: dict[str, Any] = {**facts, "record": "study-toy.json", "over_random": {"mean": 1.0, "std": 0.5, "seeds": 3}}
    record = {"benchmark": "study", "results": {"evidence": [line | {"minutes": 2.0}]}}
    (tmp_path / "study-toy.json").write_text(json.dumps(record))
    monkeypatch.setattr(module, "RECORDS", tmp_path)
    (found,) = module.assemble()
    assert (found.over_random, found.minutes, found.record) == (Gain(1.0, 0.5, 3), 2.0, "study-toy.json")


def test_a_gain_is_shown_by_a_t_test_over_three_seeds_or_more() -> None:
    assert Gain(2.0, 0.7, 3).is_shown  # p = 0.038
    assert not Gain(1.5, 0.7, 3).is_shown  # p = 0.066
    assert Gain(1.5, 0.7, 5).is_shown
    assert not Gain(1.5, 2.0, 3).is_shown
    assert not Gain(-2.0, 0.1, 3).is_shown
    assert not Gain(11.0, 0.0, 1).is_shown
    assert str(Gain(1.5, 0.7, 3)) == "+1.5 ± 0.7 (3 seeds)"
