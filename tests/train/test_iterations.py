"""A training may be told its steps in place of its epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from nasformer.errors import UserError
from nasformer.train.log import TrainLog
from nasformer.train.loop import learning_rate
from nasformer.train.recipe import Recipe


def test_it_ends_after_so_many_steps(tmp_path: Path) -> None:
    """In the middle of an epoch, of which there are eight steps."""
    _, batches = tiny.train(tmp_path, tiny.recipe(epochs=99, iterations=13))
    assert batches.taken == list(range(13))
    lines = TrainLog.read(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12, 13]
    assert lines[-1]["epoch"] == pytest.approx(13 / 8, abs=1e-4)


def test_resumed_is_the_same_as_uninterrupted(tmp_path: Path) -> None:
    recipe = tiny.recipe(iterations=13, ema=0.9)
    expected, _ = tiny.train(tmp_path / "whole", recipe)
    with pytest.raises(tiny.Interrupted):
        tiny.train(tmp_path / "parts", recipe, fail_at=9)
    found, batches = tiny.train(tmp_path / "parts", tiny.recipe(iterations=13, ema=0.9, epochs=7))
    assert batches.taken[0] == 8  # what epochs would have been has no meaning
    tiny.assert_same(found, expected)
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("whole", "parts")]
    assert logs[0] == logs[1]


def test_whole_epochs_are_the_same_either_way() -> None:
    by_epochs, _ = tiny.train(None, tiny.recipe(epochs=2))
    by_steps, _ = tiny.train(None, tiny.recipe(iterations=16))
    tiny.assert_same(by_steps, by_epochs)


def test_the_cosine_ends_with_the_last_step() -> None:
    recipe = Recipe(iterations=37, warmup_epochs=0.5, lr=1.0, min_lr=0.25)
    assert learning_rate(37, 10, recipe) == 0.25
    assert learning_rate(21, 10, recipe) == pytest.approx(0.625)  # half way between 5 and 37


@pytest.mark.parametrize(("first", "second"), [(None, 8), (8, None), (8, 9)])
def test_another_number_in_the_same_folder_is_refused(tmp_path: Path, first: int | None, second: int | None) -> None:
    tiny.train(tmp_path, tiny.recipe(epochs=1, iterations=first))
    with pytest.raises(UserError, match=r"was trained with (iterations|epochs) = "):
        tiny.train(tmp_path, tiny.recipe(epochs=1, iterations=second))


def test_no_steps_are_no_training() -> None:
    with pytest.raises(UserError, match="iterations is 0; give 1 or more, or epochs instead"):
        Recipe(iterations=0)
