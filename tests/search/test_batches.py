"""Evaluations that score a whole generation at once: how often they are called, and what a kill leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from nasformer.search import strategy as strategies
from nasformer.search.journal import Journal, read_journal
from nasformer.search.run import SearchResult
from nasformer.search.strategy import list_strategies
from nasformer.space.arch import Arch

from .toy import GENERAL, accuracy, run

every_strategy = pytest.mark.parametrize("name", list_strategies())
every_general_strategy = pytest.mark.parametrize("name", GENERAL)


class BatchEvaluator:
    """The toy's accuracy, with last digits that depend on the size of the batch, as on a GPU."""

    def __init__(self) -> None:
        self.calls: list[list[Arch]] = []

    def __call__(self, arch: Arch) -> dict[str, float]:
        raise AssertionError("evaluated alone")

    def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
        self.calls.append(list(archs))
        return [{"accuracy": accuracy(arch)["accuracy"] + 1e-9 * len(archs)} for arch in archs]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "BATCH", 12)  # four for the toy's 48 candidates, as evolution has


def whole(name: str, path: Path) -> tuple[SearchResult, bytes]:
    return run(name, path, evaluate=BatchEvaluator()), path.read_bytes()


@every_strategy
def test_each_generation_is_evaluated_once(name: str, tmp_path: Path) -> None:
    evaluator = BatchEvaluator()
    result = run(name, tmp_path / "journal.jsonl", evaluate=evaluator)
    if name in GENERAL:
        assert [len(call) for call in evaluator.calls] == [12] * 4
    assert [arch for call in evaluator.calls for arch in call] == [candidate.arch for candidate in result.candidates]
    assert run(name, evaluate=BatchEvaluator()) == result


@every_general_strategy
def test_a_generation_is_written_together(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes, real = tmp_path / "journal.jsonl", [], Journal.append

    def append(self: Journal, *records: dict[str, object]) -> None:
        sizes.append(len(records))
        real(self, *records)
        assert path.read_bytes().count(b"\n") == sum(sizes)

    monkeypatch.setattr(Journal, "append", append)
    run(name, path, evaluate=BatchEvaluator())
    assert sizes == [1, *[12] * 4]  # the settings first


@every_strategy
def test_the_same_as_one_by_one(name: str) -> None:
    """But for the last digits."""

    class Exact(BatchEvaluator):
        def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
            return [accuracy(arch) for arch in archs]

    assert run(name, evaluate=Exact()) == run(name)


@every_strategy
def test_killed_between_any_two_lines(name: str, tmp_path: Path) -> None:
    """What is missing of a generation is evaluated in the same batch as before, so the bytes are the same."""
    result, content = whole(name, tmp_path / "whole.jsonl")
    path, lines = tmp_path / "journal.jsonl", content.splitlines(keepends=True)
    for kept in (0, 1, 2, 12, 13, 14, 31, len(lines) - 1, len(lines)):  # none, within a batch, and between batches
        path.write_bytes(b"".join(lines[:kept]))
        evaluator = BatchEvaluator()
        assert run(name, path, evaluate=evaluator) == result
        assert path.read_bytes() == content
        done = max(kept - 1, 0)
        if name in GENERAL:
            assert [len(call) for call in evaluator.calls] == [12] * (4 - done // 12)
        assert bool(evaluator.calls) == (done < len(result.candidates))


@every_strategy
def test_killed_inside_a_line_of_a_batch(name: str, tmp_path: Path) -> None:
    result, content = whole(name, tmp_path / "whole.jsonl")
    path = tmp_path / "journal.jsonl"
    for size in range(len(content) // 3, len(content), 4999):
        path.write_bytes(content[:size])
        assert run(name, path, evaluate=BatchEvaluator()) == result
        assert path.read_bytes() == content


@every_general_strategy
def test_interrupted_in_every_batch(name: str, tmp_path: Path) -> None:
    result, content = whole(name, tmp_path / "whole.jsonl")

    class Stopped(BatchEvaluator):
        def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
            if self.calls:
                raise KeyboardInterrupt
            return super().many(archs)

    for batch in range(1, 4):
        with pytest.raises(KeyboardInterrupt):
            run(name, tmp_path / "journal.jsonl", evaluate=Stopped())
        assert (tmp_path / "journal.jsonl").read_bytes().count(b"\n") == 1 + 12 * batch
    assert run(name, tmp_path / "journal.jsonl", evaluate=Stopped()) == result
    assert (tmp_path / "journal.jsonl").read_bytes() == content


def test_too_few_answers_are_an_error(tmp_path: Path) -> None:
    class Incomplete(BatchEvaluator):
        def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
            return super().many(archs)[1:]

    with pytest.raises(ValueError, match="shorter"):
        run("random", tmp_path / "journal.jsonl", evaluate=Incomplete())
    assert read_journal(tmp_path / "journal.jsonl")[1] == []


@every_general_strategy
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("order", ["pareto", "ranks"])
def test_what_is_not_finite_is_null_and_never_wins(name: str, bad: float, order: str, tmp_path: Path) -> None:
    """Of every batch the first is bad, and in one objective only."""

    class PartlyBad(BatchEvaluator):
        def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
            scored = super().many(archs)
            scores = [{**score, "speed": float(len(arch.blocks))} for arch, score in zip(archs, scored, strict=True)]
            scores[0] = {"accuracy": 1e9, "speed": bad}
            return scores

    path = tmp_path / "journal.jsonl"
    result = run(name, path, evaluate=PartlyBad(), objectives=("accuracy", "speed"), order=order)
    records = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()[1:]]
    bad_ids = [record["id"] for record in records if record["speed"] is None]
    assert bad_ids == [0, 12, 24, 36]
    assert result.best.id not in bad_ids
    assert not {candidate.id for candidate in result.front} & set(bad_ids)
    assert not {parent for candidate in result.candidates for parent in candidate.parents} & set(bad_ids)
    assert run(name, path, evaluate=PartlyBad(), objectives=("accuracy", "speed"), order=order).best == result.best
