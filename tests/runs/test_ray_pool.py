"""The pool of workers on a real Ray cluster of three nodes, all on this machine; workers, tasks and nodes fail."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.runs.options import ExecutorOptions
from nasformer.runs.pools import ATTEMPTS, POLL, RayPool, TrainingPool, result_of
from nasformer.search.run import Failed
from nasformer.utils.progress import progress

ray = pytest.importorskip("ray", reason="needs nasformer[ray]")
from ray.cluster_utils import Cluster  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room for workers, as clusters have it, and a node with room for two."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=2)
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@dataclass(frozen=True)
class Trouble:
    """Squares numbers; what goes wrong with some of them depends on how often they were tried, which a folder knows."""

    folder: Path

    def open(self, device: str) -> Callable[[tuple[str, int]], int]:
        assert device == "cpu"
        (self.folder / f"opened-{os.getpid()}").touch()
        return self.work

    def work(self, task: tuple[str, int]) -> int:
        kind, number = task
        attempt = len(list(self.folder.glob(f"{kind}-{number}-*")))
        (self.folder / f"{kind}-{number}-{attempt}").touch()
        if kind == "raise":
            raise ValueError(f"no square of {number}")
        if kind == "kill" and attempt == 0:
            os.kill(os.getpid(), 9)
        if kind == "hang" and attempt == 0:
            time.sleep(600)
        if kind == "slow":
            time.sleep(0.2)
        return number**2


OPTIONS = ExecutorOptions("ray", max_concurrent_trials=4)


@pytest.fixture(scope="module")
def pool(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPool]:
    """Workers that tests share, since they take seconds to start; a task may take three seconds."""
    folder = tmp_path_factory.mktemp("trouble")
    with closing(RayPool(Trouble(folder), OPTIONS, folder=folder, timeout=3.0)) as pool:
        yield pool


def folder_of(pool: RayPool) -> Path:
    assert isinstance(pool.job, Trouble)
    return pool.job.folder


def tasks(kind: str, count: int) -> list[tuple[str, int]]:
    return [(kind, number) for number in range(count)]


def events(pool: RayPool) -> str:
    path = folder_of(pool) / "workers.jsonl"
    return path.read_text() if path.exists() else ""


def tried(pool: RayPool, kind: str) -> int:
    return len(list(folder_of(pool).glob(f"{kind}-*")))


@pytest.mark.slow
def test_a_job_that_cannot_be_opened_is_an_error(cluster: Any, tmp_path: Path) -> None:
    workers = RayPool(Trouble(tmp_path / "missing"), OPTIONS)
    with closing(workers), pytest.raises(UserError, match=r"no worker could start, the last for: .*missing/opened"):
        list(workers.map(tasks("plain", 2)))


def test_a_cluster_without_room_is_said_at_once(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    workers = RayPool(Trouble(Path()), ExecutorOptions("ray", gpus_per_trial=0.5))
    workers.hire(2)
    assert "waiting for workers: each needs 1 CPU of 2 and 0.5 GPU of 0 in the cluster" in capsys.readouterr().err
    assert not workers.workers


@dataclass(frozen=True)
class Together:
    """A training that lasts until another one has begun, and a few seconds more."""

    folder: Path

    def open(self, device: str) -> Callable[[str], str]:
        return self.train

    def train(self, name: str) -> str:
        with progress("training", 4) as report:
            while len(list((self.folder / ".progress").glob("*.json"))) < 2:
                time.sleep(0.1)
            time.sleep(3 * POLL)
            report(4)
        return name


@pytest.mark.slow
def test_all_trainings_are_in_one_view(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasformer.utils.progress.LINE_SECONDS", 0.0)
    with closing(TrainingPool(Together(tmp_path), OPTIONS, False, tmp_path, "winners")) as workers:
        assert list(workers.map(["a", "b"])) == ["a", "b"]
    said = capsys.readouterr().err
    assert "1: training 0/4; 2: training 0/4  (2 workers on 1 nodes)" in said
    assert "winners, %: 100/100" in said
    assert not (tmp_path / ".progress").exists()


def test_results_come_in_order_and_a_worker_opens_its_job_once(pool: RayPool) -> None:
    while pool.status != "(2 workers on 1 nodes)":
        assert list(pool.map(tasks("slow", 6))) == [0, 1, 4, 9, 16, 25]
    assert list(pool.map(tasks("plain", 20))) == [number**2 for number in range(20)]
    assert tried(pool, "opened") == 2
    assert not events(pool)


def test_raising_hanging_and_killed_tasks(pool: RayPool) -> None:
    """One of each among others: all that can be done is done once, what cannot is tried three times."""
    work = [("fine", 0), ("raise", 1), ("kill", 2), ("hang", 3), *(("fine", number) for number in range(4, 12))]
    first, failed, *others = list(pool.map(work))
    assert (first, others) == (0, [number**2 for number in range(2, 12)])
    assert failed.attempts == ATTEMPTS == tried(pool, "raise")
    assert "ValueError: no square of 1" in failed.traceback
    assert (tried(pool, "kill"), tried(pool, "hang"), tried(pool, "fine")) == (2, 2, 9)
    said = events(pool)
    assert said.count("task failed") == 3
    assert said.count("worker lost") == 2
    assert "no answer within 3 s" in said
    assert "2 tasks tried again" in pool.status


def test_a_node_joins_and_is_lost(cluster: Any, pool: RayPool) -> None:
    pool.timeout = 300.0  # no task hangs here, however busy the machine is
    node = cluster.add_node(num_cpus=2)
    while "4 workers on 2 nodes" not in pool.status:
        list(pool.map(tasks("slow", 8)))
    results: list[int] = []
    for number, result in enumerate(pool.map(tasks("slow", 30))):
        results.append(result)
        if number == 4:
            cluster.remove_node(node, allow_graceful=False)
    assert results == [number**2 for number in range(30)]
    while events(pool).count("node lost") < 2:  # processes outlive their node by a moment, in which they may still work
        assert list(pool.map(tasks("slow", 8))) == [number**2 for number in range(8)]
    assert events(pool).count("worker lost") == 2  # those of the test before


def test_a_result_that_must_be_there() -> None:
    assert result_of(7) == 7
    with pytest.raises(UserError, match="failed 3 times, the last time with: ValueError: no"):
        result_of(Failed(3, "Traceback ...\nValueError: no\n"))
