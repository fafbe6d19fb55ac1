"""A training whose loss is not finite goes back once, goes on in another way, and says so; also when it is killed."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from nasformer.data.loaders import Batch
from nasformer.errors import UserError
from nasformer.supernet.supernet import Supernet
from nasformer.train.log import TrainLog
from nasformer.train.loop import Trainer, train_supernet
from nasformer.train.loss import soft_cross_entropy
from nasformer.train.recipe import Recipe
from train.test_resume import ended

TOTAL = 12  # steps, of which an epoch has eight and an interval two; there is a checkpoint after each
SHIFT = 16  # to the first whole epoch behind the end


def recipe_of(**changes: Any) -> Recipe:
    return tiny.recipe(iterations=TOTAL, **changes)


class Poisoned(tiny.Watched):
    """One batch of images that are no numbers."""

    def __init__(self, recipe: Recipe, bad: int, fail_at: int | None = None) -> None:
        super().__init__(recipe, fail_at)
        self.bad = bad

    def train(self, step: int) -> Batch:
        x, targets = super().train(step)
        return (x * math.nan if step == self.bad else x), targets


def train(
    folder: Path | None, recipe: Recipe, bad: int = 5, fail_at: int | None = None, quiet: bool = True
) -> tuple[Supernet, Poisoned]:
    model, batches = tiny.supernet(drop_path_rate=0.3), Poisoned(recipe, bad, fail_at)
    train_supernet(model, batches, recipe, folder=folder, quiet=quiet)
    return model, batches


def test_it_goes_back_once_and_on_with_other_draws_and_half_the_rate(tmp_path: Path, capsys: Any) -> None:
    recipe = recipe_of(ema=0.9)
    model, batches = train(tmp_path / "bad", recipe, quiet=False)
    plain, _ = train(tmp_path / "good", recipe, bad=-1)
    assert batches.taken == [*range(6), *range(SHIFT + 4, SHIFT + TOTAL)]
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    with pytest.raises(AssertionError):
        tiny.assert_same(model, plain)
    told = {"back_to": 4, "failed": 6, "what": "loss", "shift": SHIFT}
    log, good = TrainLog.read(tmp_path / "bad" / "log.jsonl"), TrainLog.read(tmp_path / "good" / "log.jsonl")
    assert log[:2] == good[:2]
    assert log[2] == {"step": 4, "epoch": 0.5, "rollback": told}
    assert [line["step"] for line in log[3:]] == [line["step"] for line in good[2:]]
    assert [line["lr"] for line in log[3:]] == [line["lr"] / 2 for line in good[2:]]
    message = "the loss was not finite at step 6: training went back to step 4, and on from there"
    assert capsys.readouterr().err.count(message) == 1


def test_killed_in_the_second_attempt_it_ends_the_same(tmp_path: Path) -> None:
    recipe = recipe_of(ema=0.9, optimizer="sgd", lr=0.05)
    expected, _ = train(tmp_path / "whole", recipe)
    for moment in (3, SHIFT + 4, SHIFT + 5, SHIFT + TOTAL - 1):  # before, just after, within an interval, at the end
        with pytest.raises(tiny.Interrupted):
            train(tmp_path / "parts", recipe, fail_at=moment)
    found, _ = train(tmp_path / "parts", recipe)
    tiny.assert_same(found, expected)
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")
    before = ended(tmp_path / "parts")
    train(tmp_path / "parts", recipe)  # a finished one is left as it is
    assert ended(tmp_path / "parts") == before


def test_a_checkpoint_of_the_failed_attempt_does_not_count(tmp_path: Path) -> None:
    """There is one after step 5, with weights that are still finite, when the next step fails."""
    recipe = recipe_of(log_epochs=0.5)
    expected, _ = train(None, recipe, bad=6)
    with pytest.raises(tiny.Interrupted):
        train(tmp_path, recipe, bad=6, fail_at=6)
    assert (tmp_path / "checkpoints" / "step-6").exists()
    with pytest.raises(tiny.Interrupted):
        train(tmp_path, recipe, bad=6, fail_at=SHIFT + 4)
    assert not (tmp_path / "checkpoints" / "step-6").exists()
    found, batches = train(tmp_path, recipe, bad=6)
    assert batches.taken == list(range(SHIFT + 4, SHIFT + TOTAL))
    tiny.assert_same(found, expected)


def test_where_the_start_of_the_interval_is_lost_it_cannot_go_back(tmp_path: Path) -> None:
    recipe = recipe_of(log_epochs=0.5)
    with pytest.raises(tiny.Interrupted):
        train(tmp_path, recipe, bad=6, fail_at=6)
    shutil.rmtree(tmp_path / "checkpoints" / "step-4")
    with pytest.raises(UserError, match="the loss is not finite at step 8; the last checkpoint is kept"):
        train(tmp_path, recipe, bad=6)


def test_where_it_goes_back_to_does_not_depend_on_the_moments_of_checkpoints(tmp_path: Path) -> None:
    """Here there is no checkpoint before the failure: it goes back to weights in memory, and saves these."""
    often, rare = recipe_of(), recipe_of(checkpoint_seconds=1e9)
    expected, _ = train(tmp_path / "often", often)
    with pytest.raises(tiny.Interrupted):
        train(tmp_path / "rare", rare, fail_at=SHIFT + 9)
    found, batches = train(tmp_path / "rare", rare)
    assert batches.taken == list(range(SHIFT + 4, SHIFT + TOTAL))  # it knows, and does not fail a second time
    tiny.assert_same(found, expected)
    assert ended(tmp_path / "rare") == ended(tmp_path / "often")
    tiny.assert_same(train(None, often)[0], expected)  # the same without a folder


def test_it_goes_back_to_the_beginning_where_nothing_was_good_before(tmp_path: Path) -> None:
    with pytest.raises(tiny.Interrupted):
        train(tmp_path, recipe_of(), bad=1, fail_at=SHIFT)  # its first attempt left a checkpoint at step 1
    model, batches = train(tmp_path, recipe_of(), bad=1)
    assert batches.taken == list(range(SHIFT, SHIFT + TOTAL))
    again, _ = train(None, recipe_of(), bad=0)
    tiny.assert_same(again, model)  # from the same initial weights, with the momenta of none


def test_a_lower_rate_can_save_a_training() -> None:
    """A loss that is no number wherever the rate is high."""

    def delicate(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        rate = trainer.optimizer.param_groups[0]["lr"]
        return soft_cross_entropy(logits, images, targets) * (math.nan if rate > 6e-4 else 1.0)

    def make(lr: float) -> Trainer:
        recipe = recipe_of(lr=lr)
        return Trainer(
            tiny.supernet(),
            tiny.Watched(recipe),
            recipe,
            sampler=lambda step: [tiny.LARGEST],
            loss=delicate,
            quiet=True,
        )

    trainer = make(1e-3)
    assert math.isfinite(trainer.run())
    assert trainer.rollback is not None
    trainer = make(2e-3)
    with pytest.raises(UserError, match="the loss is not finite at step 4; the last checkpoint is kept: lower"):
        trainer.run()


def test_weights_that_are_no_numbers_are_gone_back_from(tmp_path: Path) -> None:
    """The loss is finite, but its gradient is not: seen in the weights before any further step."""

    def sly(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        bad = trainer.rollback is None
        return soft_cross_entropy(logits, images, targets) + ((logits * 0).sqrt().sum() if bad else 0)

    recipe = recipe_of(log_epochs=0.001)
    trainer = Trainer(
        tiny.supernet(), tiny.Watched(recipe), recipe, sampler=lambda step: [tiny.LARGEST], loss=sly, quiet=True
    )
    trainer.run()
    assert trainer.rollback is not None
    assert (trainer.rollback.what, trainer.rollback.back_to, trainer.rollback.failed) == ("weights' norm", 0, 1)
    assert all(torch.isfinite(weight).all() for weight in trainer.model.parameters())
