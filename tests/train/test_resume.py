"""A training that is interrupted and started again ends as one that ran through, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.data.options import AugmentOptions
from nasformer.supernet.supernet import Supernet
from nasformer.train.recipe import Recipe

AUGMENT = AugmentOptions(padding=1, hflip=0.0, mixup=0.5)
RECIPES: dict[str, dict[str, Any]] = {
    "adamw": {"ema": 0.9, "clip_grad": 1.0, "augment": AUGMENT},
    "sgd": {"optimizer": "sgd", "lr": 0.05, "ema": 0.9},
    "slices": {"freeze": "slices", "ema": 0.9},
    "sandwich": {
        "freeze": "slices",
        "sandwich": 2,
        "inplace_distillation": True,
        "decay": "largest",
        "watch_epochs": 0.375,
    },
}
DROP = {"drop_path_rate": 0.3}


def ended(folder: Path) -> dict[str, bytes]:
    """All that a training leaves behind; the last checkpoint has weights, momenta and average."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupted(folder: Path, recipe: Recipe, moments: list[int]) -> tuple[Supernet, list[int]]:
    """Trains with an interruption at each of the steps; returns the model and where the last run began."""
    for moment in moments:
        with pytest.raises(tiny.Interrupted):
            tiny.train(folder, recipe, fail_at=moment, **DROP)
    model, batches = tiny.train(folder, recipe, **DROP)
    return model, batches.taken


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("adamw", [1]),
        ("adamw", [2]),
        ("adamw", [15]),
        ("adamw", [3, 6, 11]),
        ("sgd", [3, 6]),
        ("slices", [3, 6]),
        ("sandwich", [4, 7]),
    ],
)
def test_resumed_is_the_same_as_uninterrupted(tmp_path: Path, name: str, moments: list[int]) -> None:
    recipe = tiny.recipe(**RECIPES[name])
    expected, _ = tiny.train(tmp_path / "whole", recipe, **DROP)
    found, taken = interrupted(tmp_path / "parts", recipe, moments)
    tiny.assert_same(found, expected)
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")
    assert taken[0] == moments[-1] // 2 * 2  # a checkpoint every two steps: it went on from there


def test_drop_path_matters_here() -> None:
    recipe = tiny.recipe(epochs=1)
    dropped, _ = tiny.train(None, recipe, **DROP)
    plain, _ = tiny.train(None, recipe)
    with pytest.raises(AssertionError):
        tiny.assert_same(dropped, plain)


def test_a_finished_training_is_left_as_it_is(tmp_path: Path) -> None:
    recipe = tiny.recipe(ema=0.9)
    expected, _ = tiny.train(tmp_path, recipe, **DROP)
    before = ended(tmp_path)
    found, batches = tiny.train(tmp_path, recipe, **DROP)
    tiny.assert_same(found, expected)
    assert batches.taken == []
    assert ended(tmp_path) == before


def test_a_log_that_ran_ahead_of_the_checkpoint_is_cut_back(tmp_path: Path) -> None:
    """Lines are written more often than checkpoints, whose steps then come again."""
    recipe, rare = tiny.recipe(), tiny.recipe(checkpoint_seconds=1e9)
    tiny.train(tmp_path / "whole", recipe)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", recipe, fail_at=5)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", rare, fail_at=13)
    log = tmp_path / "parts" / "log.jsonl"
    assert len(log.read_text().splitlines()) == 6
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step-4"]
    tiny.train(tmp_path / "parts", recipe)
    assert log.read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()
