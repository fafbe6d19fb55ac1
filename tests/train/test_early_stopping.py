"""Early stopping by held-out accuracy, and classes that count alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from nasformer.data.loaders import Batches
from nasformer.errors import UserError
from nasformer.train.log import TrainLog
from nasformer.train.loop import Trainer, train_model, train_supernet
from nasformer.train.recipe import Recipe

ACCURACIES = [0.5, 0.7, 0.7, 0.6, 0.9]
"""After each interval; with a patience of two intervals the last is never reached."""


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Held-out accuracies as listed, by the step; and the weights that were evaluated."""
    seen = list[Tensor]()

    def evaluate(model: Any, batches: Any, split: str, **_: Any) -> dict[str, float]:
        assert split == "holdout"
        seen.append(torch.cat([tensor.detach().flatten() for tensor in model.state_dict().values()]).clone())
        return {"accuracy": ACCURACIES[len(seen) - 1], "loss": 1.0}

    monkeypatch.setattr("nasformer.train.loop.evaluate", evaluate)
    return seen


def flat_weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in model.state_dict().values()])


def recipe(**changes: Any) -> Recipe:
    """Eight steps an epoch, a line of the log every half epoch."""
    return tiny.recipe(epochs=4, log_epochs=0.5, patience=1, **changes)


def test_a_training_stops_without_progress_and_keeps_its_best_weights(
    scores: list[Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.SPACE.build(tiny.SMALLEST)
    train_model(model, tiny.Watched(recipe()), recipe(), folder=tmp_path)
    lines = TrainLog.read(tmp_path / "log.jsonl")
    assert [(line["step"], line["holdout_accuracy"]) for line in lines] == [(4, 0.5), (8, 0.7), (12, 0.7), (16, 0.6)]
    assert torch.equal(flat_weights(model), scores[1])
    assert "model: stopped early, with the weights of epoch 1, the best on held-out images" in capsys.readouterr().err

    again, batches = tiny.SPACE.build(tiny.SMALLEST), tiny.Watched(recipe())
    train_model(again, batches, recipe(), folder=tmp_path, quiet=True)
    assert batches.taken == []
    assert torch.equal(flat_weights(again), scores[1])


def test_a_killed_training_stops_where_one_that_ran_through_does(scores: list[Tensor], tmp_path: Path) -> None:
    with pytest.raises(tiny.Interrupted):
        train_model(
            tiny.SPACE.build(tiny.SMALLEST), tiny.Watched(recipe(), fail_at=14), recipe(), folder=tmp_path, quiet=True
        )
    model, batches = tiny.SPACE.build(tiny.SMALLEST), tiny.Watched(recipe())
    train_model(model, batches, recipe(), folder=tmp_path, quiet=True)
    assert max(batches.taken) == 15
    assert torch.equal(flat_weights(model), scores[1])


def test_a_supernet_is_judged_by_its_largest_arch(tmp_path: Path) -> None:
    short = tiny.recipe(iterations=4, log_epochs=0.25, patience=1)
    supernet, batches = tiny.supernet(), tiny.Watched(short)
    train_supernet(supernet, batches, short, folder=tmp_path, quiet=True)
    best = max(line["holdout_accuracy"] for line in TrainLog.read(tmp_path / "log.jsonl"))
    from nasformer.train.evaluate import evaluate

    assert evaluate(supernet, batches, "holdout", arch=tiny.LARGEST)["accuracy"] == best


def test_patience_without_sense_is_refused() -> None:
    with pytest.raises(UserError, match="patience keeps the best weights, ema an average"):
        Recipe(patience=2, ema=0.9)
    from nasformer.data.sources import load_data

    batches = Batches(load_data("digits", holdout=0), tiny.PLAIN, 64)
    with pytest.raises(UserError, match="patience needs images held out"):
        Trainer(tiny.SPACE.build(tiny.SMALLEST), batches, recipe())


def test_with_balance_all_classes_count_alike() -> None:
    settings, batches = tiny.recipe(balance=True), tiny.Watched(tiny.recipe())
    trainer = Trainer(tiny.SPACE.build(tiny.SMALLEST), batches, settings, quiet=True)
    counts = batches.class_counts
    assert counts.sum() == len(tiny.DATA.train)
    weights = trainer.class_weights
    assert weights is not None
    torch.testing.assert_close(weights * counts, torch.full((10,), counts.sum() / 10))

    x, targets = batches.train(0)
    trainer.model.eval()
    losses = torch.nn.functional.cross_entropy(trainer.model(x), targets.argmax(1), reduction="none")
    expected = (losses * weights[targets.argmax(1)]).mean()
    torch.testing.assert_close(trainer.gradients(x, targets, [None]), expected.detach())


def test_checkpoints_from_before_balance_are_read(tmp_path: Path) -> None:
    from nasformer.train.loop import result_settings

    assert "balance" not in result_settings(Recipe())
    assert result_settings(Recipe(balance=True))["balance"] is True
