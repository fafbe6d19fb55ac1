"""The loop around the strategies: crash and resume at any point, refusals, and what is reported."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nasformer
from nasformer.errors import UserError
from nasformer.search.journal import read_journal
from nasformer.search.problem import Candidate, Problem
from nasformer.search.run import SearchResult, search
from nasformer.search.strategy import RandomSearch, list_strategies
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.space.nodes import Choice, Struct

from .toy import BUDGET, SPACE, accuracy, costs, run, small

every_strategy = pytest.mark.parametrize("name", list_strategies())


def uninterrupted(name: str, folder: Path) -> tuple[SearchResult, bytes]:
    result = run(name, folder / "whole.jsonl")
    return result, (folder / "whole.jsonl").read_bytes()


def test_a_journal_in_another_spelling_goes_on_all_the_same(tmp_path: Path) -> None:
    """Lines are compared as text where they can be; with other blanks and another order of fields they are parsed."""
    result, whole = uninterrupted("evolution", tmp_path)
    header, *lines = whole.decode().splitlines()
    others = [json.dumps(json.loads(line), sort_keys=True) for line in lines[:30]]
    path = tmp_path / "other.jsonl"
    path.write_text("".join(f"{line}\n" for line in [header, *others]))
    assert run("evolution", path).candidates == result.candidates
    assert path.read_text().splitlines()[31:] == lines[30:]


@every_strategy
def test_the_journal_holds_one_line_per_candidate(name: str, tmp_path: Path) -> None:
    result, _ = uninterrupted(name, tmp_path)
    settings, records = read_journal(tmp_path / "whole.jsonl")
    assert settings["strategy"] == name
    assert settings["seed"] == 0
    assert settings["budget"] == {"min_params": 1_500_000, "max_params": 3_800_000}
    assert settings["options"].items() >= small(name).items()
    assert [Candidate.from_dict(record) for record in records] == result.candidates
    assert list(records[0]) == ["id", "generation", "origin", "parents", "arch", "params", "macs", "accuracy"]


@every_strategy
def test_interrupted_in_evaluations(name: str, tmp_path: Path) -> None:
    """Ctrl-C in evaluations everywhere; no candidate is ever evaluated twice."""
    result, whole = uninterrupted(name, tmp_path)
    path = tmp_path / "journal.jsonl"
    evaluated: list[Arch] = []

    def up_to(limit: int) -> SearchResult:
        def evaluate(arch: Arch) -> dict[str, float]:
            if len(evaluated) == limit:
                raise KeyboardInterrupt
            evaluated.append(arch)
            return accuracy(arch)

        return run(name, path, evaluate=evaluate)

    for limit in range(0, len(result.candidates), 5):
        with pytest.raises(KeyboardInterrupt):
            up_to(limit)
        assert whole.startswith(path.read_bytes())
    assert up_to(len(result.candidates)) == result
    assert path.read_bytes() == whole
    assert evaluated == [candidate.arch for candidate in result.candidates]


@every_strategy
def test_cut_at_any_byte(name: str, tmp_path: Path) -> None:
    result, whole = uninterrupted(name, tmp_path)
    path = tmp_path / "journal.jsonl"
    for size in random.Random(0).sample(range(len(whole)), 10):
        path.write_bytes(whole[:size])
        assert run(name, path) == result
        assert path.read_bytes() == whole


def start(name: str, path: Path, seconds: float = 0, **env: str) -> subprocess.Popen[bytes]:
    """A search in a separate process, that takes so long for each candidate."""
    folders = [Path(nasformer.search.__file__).parents[2], Path(__file__).parents[1]]
    env = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.Popen([sys.executable, "-m", "search.toy", name, str(path), str(seconds)], env=env)


@pytest.mark.parametrize("name", ["evolution"])  # how a strategy is resumed is tested without processes
def test_killed_without_warning(name: str, tmp_path: Path) -> None:
    """SIGKILL once the journal has grown to some random size, wherever the process may be just then."""
    result, whole = uninterrupted(name, tmp_path)
    path = tmp_path / "journal.jsonl"
    dice = random.Random()
    ends = []
    for size in sorted(dice.randrange(len(whole) // 2) for _ in range(3)):
        process = start(name, path, seconds=0.01)
        while process.poll() is None and (not path.exists() or path.stat().st_size <= size):
            time.sleep(dice.random() / 100)
        process.kill()
        ends.append(process.wait())
    assert -signal.SIGKILL in ends
    assert whole.startswith(path.read_bytes().rpartition(b"\n")[0])
    assert start(name, path).wait() == 0
    assert path.read_bytes() == whole
    assert run(name, path) == result


@every_strategy
def test_the_same_in_every_process(name: str, tmp_path: Path) -> None:
    """Hashes of strings differ from process to process; the search must not."""
    _, whole = uninterrupted(name, tmp_path)
    path = tmp_path / "other.jsonl"
    assert start(name, path, PYTHONHASHSEED="1").wait() == 0
    assert path.read_bytes() == whole


def test_scores_that_are_not_finite_survive_the_journal(tmp_path: Path) -> None:
    values = iter([math.nan, math.inf, -math.inf, *range(100)])
    memory: dict[Arch, float] = {}

    def evaluate(arch: Arch) -> dict[str, float]:
        return {"accuracy": memory.setdefault(arch, next(values))}

    result = run("random", tmp_path / "journal.jsonl", evaluate=evaluate)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "journal.jsonl").open()]
    assert [line["accuracy"] for line in lines[1:5]] == [None, None, None, 0]
    assert run("random", tmp_path / "journal.jsonl", evaluate=evaluate) == result


def test_a_full_disk_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, whole = uninterrupted("evolution", tmp_path)
    path = tmp_path / "journal.jsonl"
    syncs = iter(range(20))

    def full(_: int) -> None:
        if next(syncs, None) is None:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run("evolution", path)
    assert whole.startswith(path.read_bytes())
    assert path.read_bytes().count(b"\n") == 20
    assert run("evolution", path) == result
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "seed was 0, now 1"),
        ({"budget": Budget(max_params=3_800_000)}, "budget.min_params was 1500000, now not set"),
        ({"options": {"population": 12, "generations": 5, "parents": 4}}, "options.generations was 4, now 5"),
        (
            {"objectives": ("accuracy", "-macs")},
            r"objectives was \['accuracy'\], now \['accuracy', '-macs'\]",
        ),
        ({"settings": {"checkpoint": "b"}}, "checkpoint was a, now b"),
    ],
)
def test_a_journal_of_another_search_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run("evolution", path, settings={"checkpoint": "a"})
    before = path.read_bytes()
    with pytest.raises(UserError, match=f"{said}.*use another --out folder"):
        run("evolution", path, **{"settings": {"checkpoint": "a"}, **changes})
    assert path.read_bytes() == before


def test_a_journal_that_does_not_replay_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    other = Struct(embed_dim=Choice(192, 216, 256), blocks=SPACE.fields["blocks"])
    search(other, accuracy, costs, strategy="random", options={"evaluations": 48}, budget=BUDGET, journal=path)
    with pytest.raises(UserError, match=r"line \d+ is not what this search would have evaluated there"):
        run("random", path)


def test_a_journal_with_too_many_lines_is_refused(tmp_path: Path) -> None:
    _, whole = uninterrupted("random", tmp_path)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(whole + b'{"id":48}\n')
    with pytest.raises(UserError, match="line 50 is not what this search"):
        run("random", path)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(max_params=1000), "no architecture fits params <= 1K"),
        (Budget(min_macs=10**12), "no architecture fits macs >= 1000G"),
        (Budget(min_params=3_000_000, max_params=2_000_000), "--min-params 3,000,000 is above"),
        (Budget(min_params=3_000_001, max_params=3_000_002), "found no architecture with params between"),
    ],
)
def test_a_budget_that_nothing_meets_is_refused_at_once(budget: Budget, said: str, tmp_path: Path) -> None:
    def never(arch: Arch) -> dict[str, float]:
        raise AssertionError("evaluated a candidate")

    for name in list_strategies():
        with pytest.raises(UserError, match=said):
            run(name, evaluate=never, budget=budget)


def test_progress_is_reported_for_old_and_new_candidates_alike(tmp_path: Path) -> None:
    seen: list[Candidate] = []
    result = run("evolution", tmp_path / "journal.jsonl", on_candidate=seen.append)
    assert seen == result.candidates
    run("evolution", tmp_path / "journal.jsonl", on_candidate=seen.append)
    assert seen == result.candidates * 2


def test_the_journal_is_open_and_checked_before_the_first_evaluation(tmp_path: Path) -> None:
    path, events = tmp_path / "journal.jsonl", []

    def evaluate(arch: Arch) -> dict[str, float]:
        events.append("evaluate")
        return accuracy(arch)

    run("random", path, evaluate=evaluate, on_open=lambda: events.append("open"))
    assert events[0] == "open"
    assert events.count("open") == 1
    with pytest.raises(UserError, match="seed was 0, now 1"):
        run("random", path, seed=1, on_open=lambda: events.append("open"))
    assert events.count("open") == 1


def test_costs_are_taken_from_the_scores_and_not_computed_again() -> None:
    result = run("evolution", objectives=("accuracy", "-macs"))
    calls: list[Arch] = []
    problem = Problem(SPACE, lambda arch: calls.append(arch) or costs(arch), objectives=("accuracy", "-macs"))  # type: ignore[func-returns-value]
    assert problem.front(result.candidates) == result.front
    assert problem.ranked(result.candidates) == result.ranking
    assert set(calls) == {SPACE.smallest()}  # which says what costs there are


def test_takes_a_space_with_a_root_and_a_strategy_class() -> None:
    space = SimpleNamespace(root=SPACE)
    result = search(space, accuracy, costs, strategy=RandomSearch, options={"evaluations": 48}, budget=BUDGET)
    assert result == run("random")


def test_a_single_objective_is_weighed_against_the_first_cost() -> None:
    assert run("random").front == run("random", objectives=("accuracy", "-params")).front


def test_mistakes_of_the_caller_show_at_the_first_candidate() -> None:
    with pytest.raises(UserError, match="objective 'acuracy' is not among the scores: params, macs, accuracy"):
        run("random", objectives=("acuracy",))
    with pytest.raises(UserError, match="at least one objective"):
        run("random", objectives=())
    with pytest.raises(ValueError, match="disagree on 'params'"):
        run("random", evaluate=lambda arch: {"params": 1, "accuracy": 1})
    with pytest.raises(ValueError, match="cannot be named 'id'"):
        run("random", evaluate=lambda arch: {"id": 1, "accuracy": 1})
