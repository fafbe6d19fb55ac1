"""A signal stops a training after its step and with a checkpoint, from which it goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import processes
import tiny
from nasformer.data.loaders import Batch
from nasformer.train.checkpoint import StopSignals, TrainingStopped
from nasformer.train.loop import train_supernet
from nasformer.train.recipe import Recipe
from train.test_resume import ended

SIGNALS = [signal.SIGINT, signal.SIGTERM]


class Signalled(tiny.Watched):
    """Batches among which this process gets a signal."""

    def train(self, step: int) -> Batch:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().train(step)


class Slow(tiny.Watched):
    def train(self, step: int) -> Batch:
        time.sleep(0.02)
        return super().train(step)


def recipe() -> Recipe:
    """Lines after 4 and 8 steps, and no checkpoint by time after the first moments."""
    return tiny.recipe(epochs=1, log_epochs=0.5, checkpoint_seconds=1000.0)


def train_slowly(folder: Path, said: str, *rank_and_port: int) -> None:
    if rank_and_port:
        processes.join_two(*rank_and_port)
    try:
        train_supernet(tiny.supernet(), Slow(tiny.recipe()), tiny.recipe(iterations=500), folder=folder / "train")
    except KeyboardInterrupt as stopped:
        (folder / said).write_text(str(stopped))


def newest_checkpoint(folder: Path) -> int:
    found = (folder / "train" / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_stops_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    with processes.running(train_slowly, tmp_path, "said") as process:
        processes.wait_until(lambda: newest_checkpoint(tmp_path) > 0, process)
        os.kill(process.pid or 0, number)
        process.join(processes.PATIENCE)
        assert process.exitcode == 0
    step = newest_checkpoint(tmp_path)
    assert 0 < step < 500
    assert (tmp_path / "said").read_text() == f"at step {step} of 500"


def test_two_processes_stop_together_if_one_of_them_is_told_to(tmp_path: Path) -> None:
    port = processes.free_port()
    with (
        processes.running(train_slowly, tmp_path, "first", 0, port) as first,
        processes.running(train_slowly, tmp_path, "second", 1, port) as second,
    ):
        processes.wait_until(lambda: newest_checkpoint(tmp_path) > 0, first)
        os.kill(second.pid or 0, signal.SIGTERM)
        for process in (first, second):
            process.join(processes.PATIENCE)
            assert process.exitcode == 0
    step = newest_checkpoint(tmp_path)
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() == f"at step {step} of 500"


def test_stopped_and_resumed_is_the_same_as_uninterrupted(tmp_path: Path, capsys: Any) -> None:
    expected, _ = tiny.train(tmp_path / "whole", recipe())
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(TrainingStopped) as stopped:
        train_supernet(tiny.supernet(), Signalled(recipe()), recipe(), folder=tmp_path / "parts")
    error = stopped.value
    assert (error.step, error.total, error.saved, error.signal_number) == (5, 8, True, signal.SIGTERM)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    model, batches = tiny.supernet(), tiny.Watched(recipe())
    train_supernet(model, batches, recipe(), folder=tmp_path / "parts", label="baseline resnet18")
    assert batches.taken == [5, 6, 7]
    tiny.assert_same(model, expected)
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")
    said = capsys.readouterr().err.splitlines()
    assert "baseline resnet18: resuming at step 5 of 8" in said
    assert said[-1].startswith("baseline resnet18: 8/8, ")


def test_without_a_folder_nothing_is_kept() -> None:
    with pytest.raises(KeyboardInterrupt, match="at step 5 of 8, which was not saved"):
        train_supernet(tiny.supernet(), Signalled(recipe()), recipe(), quiet=True)


def test_a_second_signal_stops_at_once() -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_can_train() -> None:
    outcomes = []

    def enter() -> None:
        with StopSignals() as stop:
            outcomes.append(stop.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert outcomes == [None]
