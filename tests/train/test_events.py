"""The training log for TensorBoard."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.errors import UserError
from nasformer.train.log import TensorBoardEvents, TrainLog
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe

pytest.importorskip("tensorboard", reason="TensorBoard is an extra")


def read(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard itself sees, by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {tag: {one.step: one.value for one in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def line(step: int, **facts: Any) -> dict[str, Any]:
    return {"step": step, "epoch": step / 10, **facts}


def test_a_training_shows_in_tensorboard(tmp_path: Path) -> None:
    model = tiny.SPACE.build(tiny.SPACE.root.smallest())
    recipe = Recipe(epochs=3, batch_size=64, tensorboard=True, augment=tiny.PLAIN)
    train_model(model, tiny.DATA, recipe, folder=tmp_path, quiet=True)
    found, log = read(tmp_path), TrainLog.read(tmp_path / "log.jsonl")
    assert set(found) == {"train/loss", "train/lr", "train/epoch"}
    assert found["train/loss"] == pytest.approx({one["step"]: one["loss"] for one in log})
    assert len(log) == 3


def test_without_being_asked_nothing_is_written(tmp_path: Path) -> None:
    model = tiny.SPACE.build(tiny.SPACE.root.smallest())
    train_model(model, tiny.DATA, Recipe(epochs=1, batch_size=64, augment=tiny.PLAIN), folder=tmp_path, quiet=True)
    assert not (tmp_path / "tensorboard").exists()


def test_steps_that_come_again_count_once(tmp_path: Path) -> None:
    """A training that is killed at step 30 and goes on from a checkpoint at step 10."""
    log = TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True)
    for step in (10, 20, 30):
        log.append(line(step, loss=9.0))
    again = TrainLog(tmp_path / "log.jsonl", 10, tensorboard=True)
    for step in (20, 30):
        again.append(line(step, loss=1.0))
    assert read(tmp_path)["train/loss"] == {10: 9.0, 20: 1.0, 30: 1.0}


def test_a_finished_training_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True).append(line(10, loss=1.0))
    before = [path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()]
    TrainLog(tmp_path / "log.jsonl", 10, tensorboard=True)
    assert [path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()] == before


def test_looks_at_archs_are_curves_and_rollbacks_are_not(tmp_path: Path) -> None:
    events = TensorBoardEvents(tmp_path)
    events.append(line(10, watch={"conv": 0.25, "largest": 0.5}))
    events.append(line(10, rollback={"back_to": 10, "step": 17}))
    found = read(tmp_path)
    assert found["watch/conv"] == {10: 0.25}
    assert {tag for tag in found if "rollback" in tag} == set()


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UserError, match=r"nasformer\[tensorboard\]"):
        TrainLog(tmp_path / "log.jsonl", 0, tensorboard=True)
    TrainLog(tmp_path / "log.jsonl", 0).append(line(1))
    assert json.loads((tmp_path / "log.jsonl").read_text())["step"] == 1
