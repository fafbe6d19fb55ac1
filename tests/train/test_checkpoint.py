from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from nasformer.errors import UserError
from nasformer.train import checkpoint
from nasformer.train.checkpoint import Checkpoints, Rollback
from nasformer.train.loop import train_supernet
from nasformer.utils import files

SETTINGS = {"lr": 0.1, "space": "one", "shape": (1, 2), "augment": {"hflip": 0.5}}


def parts(value: float) -> dict[str, dict[str, Tensor]]:
    return {"weights": {"a": torch.full((2, 3), value)}, "optimizer": {"a:step": torch.tensor(value)}}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_at(checkpoints: Checkpoints, step: int) -> None:
    """The newest checkpoint is that of the step, with the number of the step in all its tensors."""
    loaded, tensors = checkpoints.load()
    assert loaded == step
    for name, expected in parts(step).items():
        tiny.assert_same(tensors[name], expected)


def test_nothing_saved_is_step_0(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, SETTINGS).load() == (0, {})


def test_the_newest_comes_back_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100):  # by number, not by name
        Checkpoints(tmp_path, SETTINGS).save(step, parts(step))
        assert_at(Checkpoints(tmp_path, SETTINGS), step)
    assert names(tmp_path) == ["step-10", "step-100"]
    Checkpoints(tmp_path, SETTINGS).save(101, parts(101), keep=10)
    assert names(tmp_path) == ["step-10", "step-101"]
    Checkpoints(tmp_path, SETTINGS).save(200, parts(200), last=True)
    assert names(tmp_path) == ["step-200"]


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
    assert names(tmp_path) == ["step-12", "step-4"]  # nothing half written stays


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


def test_a_kill_before_old_ones_are_removed(tmp_path: Path, monkeypatch: Any) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    for step in (8, 9):
        checkpoints.save(step, parts(step))
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "remove_others", failing(lambda *_, **__: None, after=0))
        with pytest.raises(tiny.Interrupted):
            checkpoints.save(10, parts(10))
    assert checkpoints.steps() == [8, 9, 10]
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


# Damage


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def change_setting(path: Path) -> None:
    path.write_text(path.read_text().replace("0.1", "0.2"))


DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "flipped bit": ("weights.safetensors", flip_bit),
    "cut off": ("optimizer.safetensors", lambda path: path.write_bytes(path.read_bytes()[:20])),
    "missing": ("weights.safetensors", lambda path: path.unlink()),
    "no settings": ("settings.json", lambda path: path.unlink()),
    "changed setting": ("settings.json", change_setting),
    "cut JSON": ("settings.json", lambda path: path.write_bytes(path.read_bytes()[:5])),
    "other JSON": ("settings.json", lambda path: path.write_text("[1, 2]")),
    "other checksums": ("settings.json", lambda path: path.write_text('{"checksums": 3}')),
    "empty": ("settings.json", lambda path: path.write_text("{}")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, capsys: Any, name: str) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    checkpoints.save(4, parts(4))
    checkpoints.save(8, parts(8))
    file, damage = DAMAGES[name]
    damage(tmp_path / "step-8" / file)
    if name == "empty":  # as if of a version without checksums, but incomplete
        (tmp_path / "step-8" / "weights.safetensors").unlink()
        file = "weights.safetensors"
    assert_at(checkpoints, 4)
    said = capsys.readouterr().err
    assert str(tmp_path / "step-8" / file) in said
    assert said.endswith("; going on from the checkpoint before, at step 4\n")
    checkpoints.save(8, parts(8))  # in place of the damaged one
    assert_at(checkpoints, 8)
    assert capsys.readouterr().err == ""


def test_where_no_other_checkpoint_is_left_it_starts_over_only_if_nothing_is_lost(tmp_path: Path, capsys: Any) -> None:
    checkpoints = Checkpoints(tmp_path, SETTINGS)
    checkpoints.save(4, parts(4))
    flip_bit(tmp_path / "step-4" / "weights.safetensors")
    with pytest.raises(UserError, match=r"step-4/weights.safetensors is damaged .* no other checkpoint; restore it"):
        checkpoints.load()
    assert checkpoints.load(start_over=True) == (0, {})
    assert "is damaged (its checksum differs); starting over" in capsys.readouterr().err


def test_a_checkpoint_of_a_version_without_checksums_is_taken(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, {"lr": 0.1})
    checkpoints.save(4, parts(4))
    (tmp_path / "step-4" / "settings.json").write_text('{"lr": 0.1}')
    assert_at(checkpoints, 4)


def test_a_training_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    recipe = tiny.recipe(epochs=1)
    expected, _ = tiny.train(tmp_path / "whole", recipe)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", recipe, fail_at=6)
    flip_bit(tmp_path / "parts" / "checkpoints" / "step-6" / "weights.safetensors")
    found, batches = tiny.train(tmp_path / "parts", recipe)
    assert batches.taken[0] == 5
    tiny.assert_same(found, expected)
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    flip_bit(tmp_path / "parts" / "checkpoints" / "step-8" / "weights.safetensors")  # the only one of a finished one
    with pytest.raises(UserError, match="there is no other checkpoint"):
        tiny.train(tmp_path / "parts", recipe)
    (tmp_path / "parts" / "log.jsonl").unlink()
    assert tiny.train(tmp_path / "parts", recipe)[1].taken[0] == 0


def test_other_recipes_are_refused_but_not_other_speeds(tmp_path: Path) -> None:
    tiny.train(tmp_path, tiny.recipe(iterations=2))
    tiny.train(tmp_path, tiny.recipe(iterations=2, accumulate=2, checkpoint_seconds=99.0))
    for name, value in {"iterations": 3, "lr": 0.5, "optimizer": "sgd", "ema": 0.9, "freeze": "slices"}.items():
        with pytest.raises(UserError, match=f"was trained with {name} = "):
            tiny.train(tmp_path, tiny.recipe(**{"iterations": 2, name: value}))


# The note of a rollback


def test_a_rollback_of_other_settings_does_not_count(tmp_path: Path) -> None:
    rollback = Rollback(back_to=0, failed=2, what="loss", shift=16)
    Checkpoints(tmp_path, {"lr": 0.1, "shape": (1, 2)}).save_rollback(rollback)
    assert Checkpoints(tmp_path, {"lr": 0.1, "shape": (1, 2)}).load_rollback() == rollback
    assert Checkpoints(tmp_path, {"lr": 0.2, "shape": (1, 2)}).load_rollback() is None
    assert Checkpoints(tmp_path / "none", {"lr": 0.1}).load_rollback() is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", " is damaged"),
        ("{", " is damaged"),
        ('{"settings": {}}', ": rollback is missing, expected an object"),
        ('{"settings": {}, "rollback": 3}', ": rollback is 3, expected an object"),
        ('{"settings": {}, "rollback": {"back_to": "0"}}', ": rollback.failed is missing, expected an integer"),
        (
            '{"settings": {}, "rollback": {"back_to": "0", "failed": 2, "what": "loss", "shift": 16}}',
            ': rollback.back_to is "0", expected an integer',
        ),
    ],
)
def test_a_damaged_note_of_a_rollback_is_said_to_be_one(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rollback.json").write_text(content)
    with pytest.raises(UserError, match=rf"rollback\.json{message}.*; restore .* or start in another folder"):
        Checkpoints(tmp_path, {}).load_rollback()


def test_another_number_of_processes_is_said(tmp_path: Path, capsys: Any) -> None:
    """The same settings, but sums in another order: the weights differ in their last digits."""
    Checkpoints(tmp_path, SETTINGS, processes=2).save(4, parts(4))
    Checkpoints(tmp_path, SETTINGS, processes=2).warn_of_other_processes(4)
    assert capsys.readouterr().err == ""
    one = Checkpoints(tmp_path, SETTINGS)
    assert_at(one, 4)
    one.warn_of_other_processes(4)
    assert "was trained by 2 processes so far, now by 1: sums are rounded in another order" in capsys.readouterr().err


def test_a_training_that_goes_on_says_it(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path, tiny.recipe(epochs=1), fail_at=3)
    monkeypatch.setattr(Checkpoints, "__init__", with_processes(Checkpoints.__init__, 2))
    model, batches = tiny.supernet(), tiny.Watched(tiny.recipe(epochs=1))
    train_supernet(model, batches, tiny.recipe(epochs=1), folder=tmp_path)
    assert "was trained by 1 processes so far, now by 2" in capsys.readouterr().err


def with_processes(init: Any, count: int) -> Any:
    def initialise(self: Checkpoints, *arguments: Any) -> None:
        init(self, *arguments)
        self.processes = count

    return initialise
