from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from nasformer.errors import UserError
from nasformer.train import checkpoint
from nasformer.train.checkpoint import Checkpoints
from nasformer.utils import files

SETTINGS = {"lr": 0.1, "space": "one", "augment": {"hflip": 0.5}}


def parts(value: float) -> dict[str, dict[str, Tensor]]:
    return {"weights": {"a": torch.full((2, 3), value)}, "optimizer": {"a:step": torch.tensor(value)}}


def assert_at(checkpoints: Checkpoints, step: int) -> None:
    """The newest checkpoint is that of the step, with the number of the step in all its tensors."""
    found, tensors = checkpoints.load()
    assert found == step
    for name, expected in parts(step).items():
        tiny.assert_same(tensors[name], expected)


def test_nothing_saved_is_step_0(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, SETTINGS).load() == (0, {})


def test_the_newest_comes_back_and_the_only_one_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100):  # by number, not by name
        Checkpoints(tmp_path, SETTINGS).save(step, parts(step))
        assert_at(Checkpoints(tmp_path, SETTINGS), step)
    assert [path.name for path in tmp_path.iterdir()] == ["step-100"]


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_while_writing_leaves_the_old_one(tmp_path: Path, monkeypatch: Any, writes: int) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    checkpoints.save(4, parts(4))
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", failing(files.write_bytes, after=writes))
        with pytest.raises(tiny.Interrupted):
            checkpoints.save(8, parts(8))
    assert_at(checkpoints, 4)
    checkpoints.save(12, parts(12))
    assert_at(checkpoints, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["step-12"]  # nothing half written stays


def test_a_kill_just_before_it_counts_leaves_the_old_one(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    checkpoints.save(4, parts(4))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", failing(os.replace, after=3))  # three files, then the folder
        with pytest.raises(tiny.Interrupted):
            checkpoints.save(8, parts(8))
    assert_at(checkpoints, 4)
    checkpoints.save(8, parts(8))
    assert_at(checkpoints, 8)


def test_a_kill_before_the_old_one_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    checkpoints.save(9, parts(9))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", failing(lambda *_, **__: None, after=1))
        with pytest.raises(tiny.Interrupted):
            checkpoints.save(10, parts(10))
    assert checkpoints.steps() == [9, 10]
    assert_at(checkpoints, 10)


def failing(function: Any, after: int) -> Any:
    """The function, until it has been called so many times; then an interruption."""
    count = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise tiny.Interrupted
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 0.2}, "was trained with lr = 0.1, not 0.2; go on with the old setting or use another --out folder"),
        ({"space": "two"}, "was trained with space = one, not two"),
        ({"augment": {"hflip": 0.0}}, "was trained with augment.hflip = 0.5, not 0.0"),
        ({"ema": 0.9}, "was trained with ema = None, not 0.9"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    Checkpoints(tmp_path, SETTINGS).save(4, parts(4))
    with pytest.raises(UserError, match=message) as error:
        Checkpoints(tmp_path, SETTINGS | changed).load()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "size"), [("weights.safetensors", 20), ("settings.json", 5)])
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path: Path, name: str, size: int) -> None:
    Checkpoints(tmp_path, SETTINGS).save(4, parts(4))
    path = tmp_path / "step-4" / name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=name):
        Checkpoints(tmp_path, SETTINGS).load()


def test_other_recipes_are_refused_but_not_other_speeds(tmp_path: Path) -> None:
    tiny.train(tmp_path, tiny.recipe(epochs=1))
    tiny.train(tmp_path, tiny.recipe(epochs=1, accumulate=2, checkpoint_seconds=99.0))
    for name, value in {"epochs": 2, "lr": 0.5, "optimizer": "sgd", "ema": 0.9, "freeze": "slices"}.items():
        with pytest.raises(UserError, match=f"was trained with {name} = "):
            tiny.train(tmp_path, tiny.recipe(**{"epochs": 1, name: value}))
