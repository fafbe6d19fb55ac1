"""An ordinary model is trained as a supernet is: killed and started again, with a teacher, an average, any recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from nasformer.errors import UserError
from nasformer.models.storage import save_model
from nasformer.runs.single import fresh_model
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.files import read_tensors

DROP = {"drop_path_rate": 0.3}


class Normed(nn.Module):
    """A model of somebody else's, with statistics that are not parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x.flatten(1)))


def model(**options: Any) -> nn.Module:
    return fresh_model(tiny.SPACE.with_options(**options), tiny.SMALLEST, seed=0)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return Normed()


def train(made: nn.Module, folder: Path | None, recipe: Recipe, fail_at: int | None = None) -> tuple[nn.Module, Any]:
    batches = tiny.Watched(recipe, fail_at)
    train_model(made, batches, recipe, folder=folder, quiet=True)
    return made, batches.taken


@pytest.mark.parametrize("make", [lambda: model(**DROP), normed], ids=["ours", "batch norm"])
def test_resumed_is_the_same_as_uninterrupted(tmp_path: Path, make: Any) -> None:
    recipe = tiny.recipe(iterations=8, ema=0.9, clip_grad=1.0)
    expected, _ = train(make(), tmp_path / "whole", recipe)
    for moment in (3, 6):
        with pytest.raises(tiny.Interrupted):
            train(make(), tmp_path / "parts", recipe, fail_at=moment)
    found, taken = train(make(), tmp_path / "parts", recipe)
    assert taken == [6, 7]
    tiny.assert_same(found, expected)
    again, taken = train(make(), tmp_path / "parts", recipe)
    assert taken == []
    tiny.assert_same(again, expected)


def test_it_learns() -> None:
    made = model()
    loss = train_model(made, tiny.DATA, Recipe(epochs=9, lr=5e-3, batch_size=64, augment=tiny.PLAIN), quiet=True)
    assert evaluate(made, tiny.Watched(tiny.recipe()), "test")["accuracy"] > 0.6
    assert loss < 1.2


def test_what_a_recipe_says_of_supernets_changes_nothing() -> None:
    plain, _ = train(model(), None, tiny.recipe(iterations=2))
    other, _ = train(model(), None, tiny.recipe(iterations=2, freeze="slices"))
    tiny.assert_same(other, plain)


def test_a_teacher_is_listened_to(tmp_path: Path) -> None:
    save_model(fresh_model(tiny.SPACE, tiny.SMALLEST, seed=1), tmp_path)
    plain, _ = train(model(), None, tiny.recipe(iterations=2))
    taught, _ = train(model(), None, tiny.recipe(iterations=2, teacher=str(tmp_path)))
    with pytest.raises(AssertionError):
        tiny.assert_same(taught, plain)


def test_compiled_it_is_trained_alike_and_its_weights_keep_their_names(tmp_path: Path, monkeypatch: Any) -> None:
    real, asked = nn.Module.compile, []

    def quickly(self: nn.Module, **options: Any) -> None:
        asked.append(options)
        real(self, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", quickly)
    plain, _ = train(normed(), None, tiny.recipe(iterations=2))
    assert asked == []
    found, _ = train(normed(), tmp_path, tiny.recipe(iterations=2, compile=True))
    assert len(asked) == 1
    expected = plain.state_dict()
    assert found.state_dict().keys() == expected.keys()
    (weights,) = tmp_path.rglob("weights.safetensors")
    assert read_tensors(weights).keys() == expected.keys()
    x = torch.randn(8, 1, 8, 8)
    torch.testing.assert_close(found.eval()(x), plain.eval()(x), rtol=1e-3, atol=1e-3)


def test_the_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    recipe = tiny.recipe(iterations=1)
    train(model(), tmp_path / "model", recipe)
    tiny.train(tmp_path / "supernet", recipe)
    with pytest.raises(UserError, match="was trained with arch = "):
        train(fresh_model(tiny.SPACE, tiny.LARGEST, 0), tmp_path / "model", recipe)
    with pytest.raises(UserError, match="was trained with arch = None, not "):
        train(model(), tmp_path / "supernet", recipe)
    with pytest.raises(UserError, match="was trained with "):
        tiny.train(tmp_path / "model", recipe)


def test_the_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, same, other = (fresh_model(tiny.SPACE, tiny.SMALLEST, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    tiny.assert_same(same, one)
    with pytest.raises(AssertionError):
        tiny.assert_same(other, one)
