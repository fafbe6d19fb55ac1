"""The training log, as lines of JSON and for TensorBoard."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.errors import UserError
from nasformer.train.log import TensorBoardEvents, TrainLog, read_snapshots
from nasformer.train.loop import train_model


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_lines_are_appended_and_read(tmp_path: Path) -> None:
    log = TrainLog(tmp_path / "new" / "log.jsonl", 0)
    lines = [{"step": 2, "loss": 0.1}, {"step": 4, "loss": 1e-30}]
    for line in lines:
        log.append(line)
    assert TrainLog.read(tmp_path / "new" / "log.jsonl") == lines


def test_lines_behind_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", "".join(json.dumps({"step": step}) + "\n" for step in (2, 4, 6, 8)))
    TrainLog(path, 4).append({"step": 6, "again": True})
    assert TrainLog.read(path) == [{"step": 2}, {"step": 4}, {"step": 6, "again": True}]


def test_a_line_that_a_kill_cut_short_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", '{"step": 2}\n{"step": 4, "lo')
    assert TrainLog.read(path) == [{"step": 2}]
    TrainLog(path, 4).append({"step": 6})
    assert path.read_text() == '{"step": 2}\n{"step": 6}\n'


def test_no_path_writes_nothing() -> None:
    TrainLog(None, 0).append({"step": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('what?\n{"step": 4}\n', " is damaged"),
        ("\udcff\n", " is damaged"),
        ('{"loss": 4}\n', ", line 1: step is missing, expected an integer"),
        ('{"step": 4}\n[1, 2]\n', ", line 2 is a list of 2, expected an object"),
        ('{"step": "4"}\n', ', line 1: step is "4", expected an integer'),
    ],
)
def test_a_damaged_log_is_said_to_be_one(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=rf"log\.jsonl{message}"):
        TrainLog(path, 4)


def test_the_last_loss_is_that_of_the_last_line_with_one(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", '{"step": 2, "loss": 0.5}\n{"step": 3, "watch": {}}\n')
    assert TrainLog.last_loss(path) == 0.5
    assert math.isnan(TrainLog.last_loss(tmp_path / "none.jsonl"))


def test_snapshots_are_told_from_the_lines_of_the_training(tmp_path: Path) -> None:
    snapshot = {"step": 4, "epoch": 0.5, "watch": {"conv": 0.5}}
    path = write(tmp_path / "log.jsonl", "".join(json.dumps(x) + "\n" for x in ({"step": 4, "loss": 1.0}, snapshot)))
    assert read_snapshots(path) == [snapshot]
    assert read_snapshots(tmp_path / "none.jsonl") == []


# TensorBoard

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is an extra")


def scalars_in(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard itself sees, by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: {one.step: one.value for one in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def line(step: int, **facts: Any) -> dict[str, Any]:
    return {"step": step, "epoch": step / 10, **facts}


@needs_tensorboard
def test_a_training_shows_in_tensorboard(tmp_path: Path) -> None:
    recipe = tiny.recipe(iterations=6, tensorboard=True)
    train_model(tiny.SPACE.build(tiny.SMALLEST), tiny.DATA, recipe, folder=tmp_path, quiet=True)
    found, log = scalars_in(tmp_path), TrainLog.read(tmp_path / "log.jsonl")
    assert set(found) == {"train/loss", "train/lr", "train/epoch"}
    assert found["train/loss"] == pytest.approx({one["step"]: one["loss"] for one in log})
    assert len(log) == 3


def test_without_being_asked_nothing_is_written(tmp_path: Path) -> None:
    train_model(tiny.SPACE.build(tiny.SMALLEST), tiny.DATA, tiny.recipe(iterations=1), folder=tmp_path, quiet=True)
    assert not (tmp_path / "tensorboard").exists()


@needs_tensorboard
def test_steps_that_come_again_count_once(tmp_path: Path) -> None:
    """A training that is killed at step 30 and goes on from a checkpoint at step 10."""
    log = TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True)
    for step in (10, 20, 30):
        log.append(line(step, loss=9.0))
    again = TrainLog(tmp_path / "log.jsonl", 10, tensorboard=True)
    for step in (20, 30):
        again.append(line(step, loss=1.0))
    assert scalars_in(tmp_path)["train/loss"] == {10: 9.0, 20: 1.0, 30: 1.0}


@needs_tensorboard
def test_a_finished_training_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True).append(line(10, loss=1.0))
    before = [path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()]
    TrainLog(tmp_path / "log.jsonl", 10, tensorboard=True)
    assert [path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()] == before


@needs_tensorboard
def test_snapshots_are_curves_and_rollbacks_are_not(tmp_path: Path) -> None:
    events = TensorBoardEvents(tmp_path)
    events.append(line(10, watch={"conv": 0.25, "largest": 0.5}))
    events.append(line(10, rollback={"back_to": 10, "step": 17}))
    found = scalars_in(tmp_path)
    assert found["watch/conv"] == {10: 0.25}
    assert {tag for tag in found if "rollback" in tag} == set()


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UserError, match=r"nasformer\[tensorboard\]"):
        TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True)
    TrainLog(tmp_path / "log.jsonl", 0).append(line(1))
    assert json.loads((tmp_path / "log.jsonl").read_text())["step"] == 1
