"""Steps, epochs and the learning rate of a training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tiny
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.train.log import TrainLog
from nasformer.train.loop import learning_rate, train_supernet
from nasformer.train.recipe import Recipe

RECIPE = Recipe(epochs=10, warmup_epochs=2, lr=1.0, warmup_lr=0.1, min_lr=0.2)


def rates(recipe: Recipe = RECIPE, steps_per_epoch: int = 5) -> list[float]:
    return [learning_rate(step, steps_per_epoch, recipe) for step in range(recipe.total_steps(steps_per_epoch))]


def test_warm_up_is_a_line_from_warmup_lr_to_the_peak() -> None:
    assert rates()[:11] == pytest.approx([0.1 + 0.9 * step / 10 for step in range(11)])


def test_then_a_cosine_from_the_peak_to_the_minimum() -> None:
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * k / 40)) / 2 for k in range(40)]
    assert rates()[10:] == pytest.approx(expected)
    assert learning_rate(50, 5, RECIPE) == pytest.approx(0.2)
    assert learning_rate(999, 5, RECIPE) == pytest.approx(0.2)


def test_without_warm_up_it_starts_at_the_peak() -> None:
    assert learning_rate(0, 5, Recipe(warmup_epochs=0, lr=0.3)) == 0.3


def test_a_warm_up_longer_than_the_training_ends_on_the_way_up() -> None:
    found = rates(Recipe(epochs=2, warmup_epochs=4, lr=1.0, warmup_lr=0.0))
    assert found == pytest.approx([step / 20 for step in range(10)])


def test_the_rate_is_scaled_to_the_batch() -> None:
    assert Recipe(lr=5e-4, lr_batch=512, batch_size=1024).peak_lr() == pytest.approx(1e-3)
    assert Recipe(lr=5e-4, batch_size=1024).peak_lr() == 5e-4
    assert learning_rate(0, 5, Recipe(warmup_epochs=0, lr=1.0, lr_batch=64, batch_size=32)) == 0.5


# Steps in place of epochs


def test_it_ends_after_so_many_steps(tmp_path: Path) -> None:
    """In the middle of an epoch, of which there are eight steps."""
    _, batches = tiny.train(tmp_path, tiny.recipe(epochs=99, iterations=9))
    assert batches.taken == list(range(9))
    lines = TrainLog.read(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 9]
    assert lines[-1]["epoch"] == pytest.approx(9 / 8, abs=1e-4)
    _, again = tiny.train(tmp_path, tiny.recipe(epochs=7, iterations=9))
    assert again.taken == []  # what epochs would have been has no meaning


def test_whole_epochs_are_the_same_either_way() -> None:
    by_epochs, _ = tiny.train(None, tiny.recipe(epochs=1))
    by_steps, _ = tiny.train(None, tiny.recipe(iterations=8))
    tiny.assert_same(by_steps, by_epochs)


def test_the_cosine_ends_with_the_last_step() -> None:
    recipe = Recipe(iterations=37, warmup_epochs=0.5, lr=1.0, min_lr=0.25)
    assert learning_rate(37, 10, recipe) == 0.25
    assert learning_rate(21, 10, recipe) == pytest.approx(0.625)  # half way between 5 and 37


def test_another_number_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    for first, *others in ((None, 8), (8, None, 9)):
        folder = tmp_path / str(first)
        tiny.train(folder, tiny.recipe(epochs=1, iterations=first))
        for second in others:
            with pytest.raises(UserError, match=r"was trained with (iterations|epochs) = "):
                tiny.train(folder, tiny.recipe(epochs=1, iterations=second))


def test_what_a_recipe_leaves_open_is_chosen_by_the_images_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe().for_images(steps_per_epoch=1000, img_size=32, in_chans=3)
    assert (recipe.epochs, recipe.warmup_epochs, recipe.augment.padding, recipe.augment.hflip) == (30, 2, 4, 0.5)
    recipe = Recipe(augment=AugmentOptions(hflip=0.2)).for_images(steps_per_epoch=10, img_size=8, in_chans=1)
    assert (recipe.epochs, recipe.warmup_epochs, recipe.augment.padding, recipe.augment.hflip) == (150, 2, 0, 0.2)
    assert [AugmentOptions().for_images(size, 3).padding for size in (15, 16, 64)] == [0, 2, 4]
    assert Recipe(iterations=10).warmup_steps(steps_per_epoch=10) == 1

    train_supernet(tiny.supernet(), tiny.DATA, Recipe(epochs=1))
    said = capsys.readouterr().err.splitlines()[0]
    assert "supernet: no shifts (--train.augment.padding), images not mirrored, as they are grey" in said
    train_supernet(tiny.supernet(), tiny.DATA, Recipe(iterations=1, augment=AugmentOptions(crop="none")))
    assert "mirrored" in capsys.readouterr().err  # without a crop, too
    train_supernet(tiny.supernet(), tiny.DATA, Recipe(iterations=1, augment=tiny.PLAIN))
    assert "mirrored" not in capsys.readouterr().err


def test_a_training_with_the_values_chosen_before_goes_on(tmp_path: Path) -> None:
    given = Recipe(iterations=2, warmup_epochs=0, augment=AugmentOptions(padding=0, hflip=0.0))
    train_supernet(tiny.supernet(), tiny.DATA, given, folder=tmp_path, quiet=True)
    left_open = Recipe(iterations=2, warmup_epochs=0)
    train_supernet(tiny.supernet(), tiny.DATA, left_open, folder=tmp_path, quiet=True)
