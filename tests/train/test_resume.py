"""A training that is interrupted and started again ends as one that ran through, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from nasformer.data.options import AugmentOptions
from nasformer.supernet.supernet import Supernet
from nasformer.train.loop import Trainer
from nasformer.train.recipe import Recipe

AUGMENT = AugmentOptions(padding=1, hflip=0.0, mixup=0.5)
RECIPES: dict[str, dict[str, Any]] = {
    "adamw": {"ema": 0.9, "clip_grad": 1.0, "augment": AUGMENT},
    "sgd": {"optimizer": "sgd", "lr": 0.05, "freeze": "slices", "ema": 0.9},
    "sandwich": {"freeze": "slices", "sandwich": 2, "inplace_distillation": True, "decay": "largest"},
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
        ("adamw", [1, 4, 13]),  # within the first interval, between two, and within the last
        ("sgd", [5, 6]),
        ("sandwich", [2, 5]),
    ],
)
def test_resumed_is_the_same_as_uninterrupted(tmp_path: Path, name: str, moments: list[int]) -> None:
    """An epoch is eight steps, and a line of the log four; there is a checkpoint after every step."""
    steps = moments[-1] + 2
    recipe = tiny.recipe(iterations=steps, log_epochs=0.5, **RECIPES[name])
    expected, _ = tiny.train(tmp_path / "whole", recipe, **DROP)
    found, taken = interrupted(tmp_path / "parts", recipe, moments)
    tiny.assert_same(found, expected)
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")
    assert taken == list(range(moments[-1], steps))
    again, batches = tiny.train(tmp_path / "parts", recipe, **DROP)  # a finished training is left as it is
    tiny.assert_same(again, expected)
    assert batches.taken == []
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")


def test_drop_path_matters_here() -> None:
    recipe = tiny.recipe(iterations=2)
    dropped, _ = tiny.train(None, recipe, **DROP)
    plain, _ = tiny.train(None, recipe)
    with pytest.raises(AssertionError):
        tiny.assert_same(dropped, plain)


def test_a_log_that_ran_ahead_of_the_checkpoint_is_cut_back(tmp_path: Path) -> None:
    """Lines are written more often than checkpoints, whose steps then come again."""
    recipe, rare = tiny.recipe(epochs=1), tiny.recipe(epochs=1, checkpoint_seconds=1e9)
    tiny.train(tmp_path / "whole", recipe)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", recipe, fail_at=3)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", rare, fail_at=7)
    log = tmp_path / "parts" / "log.jsonl"
    assert len(log.read_text().splitlines()) == 3
    names = sorted(path.name for path in (tmp_path / "parts" / "checkpoints").iterdir())
    assert names == ["step-2", "step-3"]
    tiny.train(tmp_path / "parts", recipe)
    assert log.read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()


def test_the_first_checkpoint_comes_early(tmp_path: Path, monkeypatch: Any) -> None:
    """One step takes ten seconds here: after the first checkpoint they come by the recipe's time."""
    now, saved = 0.0, list[int]()

    class Timed(tiny.Watched):
        def train(self, step: int) -> Any:
            nonlocal now
            now += 10
            return super().train(step)

    real = Trainer.save
    monkeypatch.setattr("nasformer.train.loop.time.monotonic", lambda: now)
    monkeypatch.setattr(Trainer, "save", lambda self: (saved.append(self.done), real(self))[1])
    recipe = tiny.recipe(epochs=1, log_epochs=1, checkpoint_seconds=30.0)
    Trainer(tiny.supernet(), Timed(recipe), recipe, sampler=lambda step: [tiny.SMALLEST], folder=tmp_path).run()
    assert saved == [1, 4, 7, 8]
