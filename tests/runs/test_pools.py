"""Trainings side by side: `--jobs`."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import kill
import tiny
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.results.folder import RunFolder
from nasformer.runs import pools
from nasformer.runs.pools import LocalPool, TaskWork, choose_jobs, image_bytes, training_memory
from nasformer.runs.single import best_candidates, retrain_tasks
from nasformer.search.run import Failed
from nasformer.utils.child import Ended
from nasformer.utils.files import read_json
from nasformer.utils.progress import progress, say
from small_run import contents, parse, refused

CPU = torch.device("cpu")


class Squares:
    """Squares numbers; what is no number is trouble."""

    def __init__(self, short_of_memory: int = 0) -> None:
        self.short_of_memory = short_of_memory

    def open(self, device: str) -> Any:
        return self.square

    def square(self, task: Any) -> int:
        if task == "refuse":
            raise UserError("no square of that")
        if task == "raise":
            raise ValueError("no square")
        if task == "memory" and self.short_of_memory:
            self.short_of_memory -= 1
            raise RuntimeError("CUDA out of memory")
        return len(task) ** 2 if isinstance(task, str) else task**2


class InThread:
    """A process for tests, which is none."""

    alive = 0
    most = 0

    def __init__(self, work: TaskWork, on_message: Any) -> None:
        InThread.alive += 1
        InThread.most = max(InThread.most, InThread.alive)
        self.work, self.on_message = work, on_message
        threading.Timer(0.01, self.run).start()

    def run(self) -> None:
        try:
            ended = Ended(self.work.job.open(self.work.device)(self.work.task))
        except Exception as error:
            ended = Ended(None, True, error, f"Traceback\n{error}")
        InThread.alive -= 1
        self.on_message(ended)

    def stop(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPool]:
    monkeypatch.setattr(pools, "Child", InThread)
    monkeypatch.setattr(InThread, "most", 0)
    with closing(LocalPool(Squares(), 2, CPU, "squares")) as pool:
        yield pool


def test_results_come_in_order_and_no_more_run_than_were_asked_for(pool: LocalPool) -> None:
    assert list(pool.map(range(6))) == [0, 1, 4, 9, 16, 25]
    assert InThread.most == 2


def test_one_that_fails_does_not_stop_the_others(pool: LocalPool) -> None:
    first, failed, last = pool.map([1, "raise", 3])
    assert (first, last) == (1, 9)
    assert isinstance(failed, Failed)
    assert failed.traceback.endswith("no square")


def test_what_the_user_can_mend_is_raised(pool: LocalPool) -> None:
    with pytest.raises(UserError, match="no square of that"):
        list(pool.map(["refuse", 1]))


def test_out_of_memory_it_is_tried_with_fewer(pool: LocalPool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.job = Squares(short_of_memory=1)
    assert list(pool.map(["memory", 2])) == [36, 4]
    assert pool.count == 1
    assert "squares: out of memory; from now on 1 at a time" in capsys.readouterr().err
    pool.job = Squares(short_of_memory=1)
    assert isinstance(next(pool.map(["memory"])), Failed)  # alone, there is nothing to wait for


def test_how_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked() -> int:
        raise AssertionError("nothing is measured")

    assert choose_jobs(3, 2, CPU, "", unasked) == 2
    assert choose_jobs("auto", 1, CPU, "", unasked) == 1
    monkeypatch.setattr(pools.os, "sched_getaffinity", lambda pid: range(2), raising=False)
    assert choose_jobs("auto", 9, CPU, "", unasked) == 1
    monkeypatch.setattr(pools.os, "sched_getaffinity", lambda pid: range(16), raising=False)
    assert choose_jobs("auto", 9, CPU, "", unasked) == 4


def test_memory_is_that_of_a_step_and_of_the_images() -> None:
    recipe, batches = tiny.recipe(), tiny.Watched(tiny.recipe())
    small, large = (
        training_memory(batches, tiny.SPACE.build(arch), recipe, CPU) for arch in (tiny.SMALLEST, tiny.LARGEST)
    )
    assert image_bytes(batches) == sum(
        split.images.nbytes for split in (tiny.DATA.train, tiny.DATA.holdout, tiny.DATA.test)
    )
    assert image_bytes(batches) < small < large


def test_progress_of_a_process_is_sent() -> None:
    class Talking:
        def open(self, device: str) -> Any:
            return self.work

        def work(self, task: Any) -> None:
            say("hello")
            with progress("steps", 2) as report:
                report(2, "loss 1")

    sent: list[Any] = []
    TaskWork(Talking(), None, "cpu", 1)(sent.append)
    assert [one if isinstance(one, str) else (one.label, one.done, one.total, one.note) for one in sent] == [
        "hello",
        ("steps", 0, 2, ""),
        ("steps", 2, 2, "loss 1"),
    ]


def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("run", "--jobs", "auto").jobs == "auto"
    assert parse("retrain", "--jobs", "3").jobs == 3
    assert "jobs is 0" in refused(capsys, ["retrain", "--jobs", "0"])
    assert "--max-concurrent-trials" in refused(capsys, ["retrain", "--jobs", "2", "--executor", "ray"])


def test_each_candidate_and_seed_has_a_folder(finished: Path) -> None:
    words = ("retrain", finished, "--out", "OUT", "--seed", "5", "--seeds", "2", "--jobs", "2")
    tasks = retrain_tasks(parse(*words))
    assert [(task.out, task.seed, task.jobs, task.seeds) for task in tasks] == [
        ("OUT/seed-5", 5, 1, 1),
        ("OUT/seed-6", 6, 1, 1),
    ]
    tasks = retrain_tasks(parse(*words, "--top", "2"))
    assert [task.out for task in tasks] == ["OUT/1/seed-5", "OUT/1/seed-6", "OUT/2/seed-5", "OUT/2/seed-6"]
    assert [task.arch for task in tasks[:2]] == [best_candidates(RunFolder(finished), 1)[0].to_json()] * 2


# The same as one after the other


def retraining(finished: Path, out: Path, *more: str) -> list[str]:
    words = ["retrain", str(finished), "--data", "digits", "--top", "2", "--out", str(out), "--threads", "1"]
    return [*words, "--train.epochs", "2", "--train.batch_size", "64", "--export", "false", *more]


def results(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): read_json(path) for path in folder.rglob("result.json")}


def weights(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name.endswith("model.safetensors")}


@pytest.mark.slow
def test_the_best_candidates_are_retrained_side_by_side_and_go_on_after_a_kill(finished: Path, tmp_path: Path) -> None:
    alone, together, killed = (tmp_path / name for name in ("alone", "together", "killed"))
    assert main(retraining(finished, alone)) == 0
    assert main(retraining(finished, together, "--jobs", "2")) == 0
    command = kill.nasformer(*retraining(finished, killed, "--jobs", "2", "--train.checkpoint_seconds", "0"))
    assert kill.kill(command, lambda: len(list(killed.glob("*/train/checkpoints/step-*"))) > 1, 0.0)
    kill.finish(command)
    assert results(alone) == results(together) == results(killed)
    assert len(weights(alone)) == 2
    assert weights(alone) == weights(together) == weights(killed)


@pytest.mark.slow
def test_seeds_side_by_side(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = retraining(finished, tmp_path / "seeds", "--seeds", "2", "--jobs", "2")
    words[words.index("--top") + 1] = "1"
    assert main(words) == 0
    assert "mean of 2 seeds: test accuracy " in capsys.readouterr().out
    alone = retraining(finished, tmp_path / "alone", "--seed", "1")
    alone[alone.index("--top") + 1] = "1"
    assert main(alone) == 0
    assert weights(tmp_path / "alone") == weights(tmp_path / "seeds" / "seed-1")


@pytest.mark.slow
def test_baselines_side_by_side(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "timm:test_resnet,timm:test_byobnet"
    for jobs in ("1", "2"):
        words = retraining(finished, tmp_path / jobs, "--jobs", jobs, "--baseline", names)
        words[words.index("--top") + 1] = "1"
        assert main(words) == 0
    assert "baselines, %: 100/100" in capsys.readouterr().err
    assert results(tmp_path / "1") == results(tmp_path / "2")


@pytest.mark.slow
def test_sizes_of_a_front_side_by_side(source: Path, tmp_path: Path) -> None:
    words = ["run", "--from", str(source), "--data", "digits", "--max-macs", "80%", "--front", "2", "--threads", "1"]
    words += ["--search.population", "4", "--search.generations", "2", "--train.iterations", "10", "--export", "false"]
    assert main([*words, "--out", str(tmp_path / "1")]) == 0
    shutil.copytree(tmp_path / "1", tmp_path / "2", ignore=shutil.ignore_patterns("finish", "front", "result.json"))
    assert main([*words, "--out", str(tmp_path / "2"), "--jobs", "3"]) == 0
    found = weights(tmp_path / "1")
    assert len(found) >= 4  # the full net, the winner and two sizes
    assert found == weights(tmp_path / "2")
