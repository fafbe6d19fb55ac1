from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.train.checkpoint import Checkpoints
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import Trainer, train_supernet
from nasformer.train.recipe import Recipe


class Probe(Trainer):
    """Remembers the gradients of each update instead of making it."""

    def update(self, archs: list[Arch | None]) -> None:
        self.grads = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}


def gradients(recipe: Recipe, size: int = 128) -> tuple[dict[str, Tensor], float]:
    """The gradients and the loss of one step of training the largest arch."""
    batches = tiny.Watched(recipe)
    probe = Probe(tiny.supernet(), batches, recipe, sampler=lambda step: [tiny.LARGEST])
    x, targets = batches.train(0)
    loss = probe.step(0, x[:size], targets[:size])
    return probe.grads, loss.item()


def norm(grads: dict[str, Tensor]) -> float:
    return math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))


@pytest.mark.parametrize(("parts", "size"), [(3, 128), (8, 3)])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(parts: int, size: int) -> None:
    whole, loss = gradients(tiny.recipe(), size)
    found, found_loss = gradients(tiny.recipe(accumulate=parts), size)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found.keys() == whole.keys()
    for name, grad in whole.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    model, (x, targets) = tiny.supernet(), tiny.Watched(tiny.recipe()).train(0)
    nn.functional.cross_entropy(model(x, tiny.LARGEST), targets).backward()
    found, _ = gradients(tiny.recipe())
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


def test_gradients_of_several_archs_add_up() -> None:
    a, b = tiny.SMALLEST, tiny.LARGEST
    each = {}
    for key, archs in {"a": [a], "b": [b], "both": [a, b]}.items():
        batches = tiny.Watched(tiny.recipe())
        probe = Probe(tiny.supernet(), batches, tiny.recipe(), sampler=lambda step, archs=archs: archs)
        each[key] = (probe.step(0, *batches.train(0)).item(), probe.grads)
    assert each["both"][0] == pytest.approx((each["a"][0] + each["b"][0]) / 2)
    for name, grad in each["both"][1].items():
        torch.testing.assert_close(grad, each["b"][1][name] + each["a"][1].get(name, 0))


def test_the_gradient_is_clipped_to_its_norm() -> None:
    free, _ = gradients(tiny.recipe())
    limit = norm(free) / 3
    clipped, _ = gradients(tiny.recipe(clip_grad=limit))
    assert norm(clipped) == pytest.approx(limit, rel=1e-3)
    for name, grad in free.items():
        torch.testing.assert_close(clipped[name] * 3, grad, rtol=1e-3, atol=1e-6)
    loose, _ = gradients(tiny.recipe(clip_grad=norm(free) * 3))
    tiny.assert_same(loose, free)


def test_it_learns_the_digits(tmp_path: Path) -> None:
    recipe = tiny.recipe(epochs=4, batch_size=64, lr=6e-3, clip_grad=1.0, log_epochs=1.0, checkpoint_seconds=99.0)
    model, batches = tiny.train(tmp_path, recipe)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 1.8
    assert losses[-1] < 1.2
    for arch in (tiny.SMALLEST, tiny.LARGEST, tiny.SPACE.sample(5)):
        assert evaluate(model, batches, "test", arch=arch)["accuracy"] > 0.6


def test_the_log_says_step_epoch_loss_and_rate(tmp_path: Path) -> None:
    from nasformer.train.loop import learning_rate

    recipe = tiny.recipe(epochs=1, log_epochs=0.4)
    last = train_supernet(tiny.supernet(), tiny.Watched(recipe), recipe, folder=tmp_path, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 8]
    assert [line["epoch"] for line in lines] == [0.375, 0.75, 1.0]
    assert [line["lr"] for line in lines] == [learning_rate(step, 8, recipe) for step in (2, 5, 7)]
    assert lines[-1]["loss"] == last
    again = train_supernet(tiny.supernet(), tiny.Watched(recipe), recipe, folder=tmp_path, quiet=True)
    assert again == last


def test_the_average_is_what_is_kept_in_the_end() -> None:
    plain, _ = tiny.train(None, tiny.recipe(iterations=4))
    averaged, _ = tiny.train(None, tiny.recipe(iterations=4, ema=0.9))
    start, weight = tiny.supernet(), "patch_embed.proj.weight"
    first, last, kept = (model.weights.get_parameter(weight) for model in (start, plain, averaged))
    assert not torch.equal(kept, last)
    assert (kept - last).norm() < (first - last).norm()


def test_bf16_trains_on_the_cpu() -> None:
    plain, _ = tiny.train(None, tiny.recipe(iterations=2))
    halved, _ = tiny.train(None, tiny.recipe(iterations=2, precision="bf16"))
    a, b = plain.weights.head.fc.weight, halved.weights.head.fc.weight
    assert b.dtype == torch.float32
    assert torch.isfinite(b).all()
    assert not torch.equal(a, b)


class Poisoned(tiny.Watched):
    """Images that are no numbers from some step on."""

    def train(self, step: int) -> tuple[Tensor, Tensor]:
        x, targets = super().train(step)
        return (x * math.nan if step >= 5 else x), targets


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    recipe = tiny.recipe()
    with pytest.raises(UserError, match="the loss is not finite at step 6; the last checkpoint is kept") as error:
        train_supernet(tiny.supernet(), Poisoned(recipe), recipe, folder=tmp_path, quiet=True)
    assert "\n" not in str(error.value)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 4]  # the last: that it went back
    step, parts = Checkpoints(tmp_path / "checkpoints", {}).load()
    assert step == 4
    assert all(torch.isfinite(tensor).all() for part in parts.values() for tensor in part.values())


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    def sly(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        return (logits * 0).sqrt().sum()  # zero, with a gradient that is no number

    recipe = tiny.recipe(log_epochs=0.001)  # a checkpoint after each step
    trainer = Trainer(
        tiny.supernet(),
        tiny.Watched(recipe),
        recipe,
        sampler=lambda step: [tiny.LARGEST],
        loss=sly,
        folder=tmp_path,
        quiet=True,
    )
    with pytest.raises(UserError, match="the weights' norm is not finite at step"):
        trainer.run()
    assert not list(tmp_path.glob("checkpoints/step-*"))


FINITE = [
    *("epochs", "iterations", "batch_size", "accumulate", "lr", "lr_batch", "min_lr", "warmup_epochs", "warmup_lr"),
    *("weight_decay", "clip_grad", "ema", "sandwich", "teacher_weight", "teacher_features", "repeats", "log_epochs"),
    *("checkpoint_seconds", "watch_epochs", "layer_decay", "patience"),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: value}, f"{name} is {value}; give ") for name in FINITE for value in (math.nan, math.inf, -1)),
        ({"epochs": 0}, "epochs is 0; give 1 or more"),
        ({"iterations": 0}, "iterations is 0; give 1 or more, or leave it out"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0; give more than 0, or leave it out"),
        ({"log_epochs": 0.0}, "log_epochs is 0.0; give more than 0"),
        ({"lr": "fast"}, "lr is 'fast'; give 0 or more"),
        ({"ema": 1.0}, "ema is 1.0; give a number from 0 to below 1"),
        ({"teacher_weight": 2.0}, "teacher_weight is 2.0; give a number from 0 to 1"),
    ],
)
def test_recipes_without_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe(**changes)


def test_every_number_of_a_recipe_has_a_range() -> None:
    numbers = [item.name for item in fields(Recipe) if str(item.type).startswith(("int", "float"))]
    assert sorted(numbers) == sorted(FINITE)
