"""A step of several archs: what each of them learns from, and whose weights decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiny
from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.supernet.samplers import sandwich
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import Trainer, train_model
from nasformer.train.loss import soft_cross_entropy
from nasformer.train.optim import add_decay, make_optimizer
from nasformer.train.recipe import Recipe
from supernet.toy import toy_esformer
from train.test_optimizer import used

ARCHS = sandwich(tiny.SPACE)(0)


class Probe(Trainer):
    """Remembers the gradients of each update instead of making it."""

    def update(self, archs: list[Arch | None]) -> None:
        self.grads = gradients(self.model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def stepped(recipe: Recipe, archs: list[Arch] = ARCHS, **options: Any) -> tuple[dict[str, Tensor], float]:
    """The gradients and the loss of one step."""
    batches = tiny.Watched(recipe)
    probe = Probe(tiny.supernet(), batches, recipe, sampler=lambda step: archs, **options)
    loss = probe.step(0, *batches.train(0))
    return probe.grads, loss.item()


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6, msg=name)


# In-place distillation


def taught_by_hand() -> tuple[dict[str, Tensor], list[float]]:
    """The largest learns from the targets, the others from its probabilities."""
    model, (x, targets) = tiny.supernet().train(), tiny.Watched(tiny.recipe()).train(0)
    losses = []
    for arch in ARCHS:
        logits = model(x, arch)
        loss = -(targets * F.log_softmax(logits, -1)).sum(-1).mean()
        loss.backward()
        losses.append(loss.item())
        if arch == ARCHS[0]:
            targets = logits.detach().exp() / logits.detach().exp().sum(-1, keepdim=True)
    return gradients(model), losses


@pytest.mark.parametrize("parts", [1, 3])
def test_the_others_learn_from_the_largest(parts: int) -> None:
    expected, losses = taught_by_hand()
    found, loss = stepped(tiny.recipe(sandwich=2, inplace_distillation=True, accumulate=parts))
    assert loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert_close(found, expected)
    plain, _ = stepped(tiny.recipe(sandwich=2))
    assert any(not torch.allclose(found[name], plain[name], rtol=0.01) for name in plain)


def test_only_the_largest_learns_by_the_loss_that_was_asked_for() -> None:
    """Such as one with a teacher, whom the largest passes on."""

    def tripled(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        return 3 * soft_cross_entropy(logits, images, targets)

    _, losses = taught_by_hand()
    _, loss = stepped(tiny.recipe(sandwich=2, inplace_distillation=True), loss=tripled)
    assert loss == pytest.approx((3 * losses[0] + sum(losses[1:])) / 4, rel=1e-5)


def test_a_sandwich_learns_the_digits() -> None:
    """Taught by the largest, it is slower at first: chance is 0.1."""
    changes: dict[str, Any] = {"inplace_distillation": True, "decay": "largest", "weight_decay": 1e-3}
    model, batches = tiny.train(None, tiny.recipe(epochs=2, batch_size=64, lr=3e-3, sandwich=2, **changes))
    for arch in (tiny.SMALLEST, tiny.LARGEST):
        assert evaluate(model, batches, "test", arch=arch)["accuracy"] > 0.3


# Weight decay through the largest


def test_the_decay_of_an_arch_is_the_gradient_of_its_squared_weights() -> None:
    """Found entry by entry: numbered weights show which of them an arch of several operators uses."""
    model = Supernet(toy_esformer())
    arch = model.space.sample(1)  # not a largest one: then it uses parts of many weights
    assert len({name for _, name in model.space.root.picks(arch)}) > 1
    add_decay(model, arch, tiny.recipe(sandwich=2, decay="largest", weight_decay=0.1, no_decay=["stem"]))
    decayed, partly = 0, 0
    masks = used(model, arch)
    for name, weight in model.weights.named_parameters():
        if weight.ndim > 1 and "stem" not in name and masks[name].any():
            assert weight.grad is not None, name
            torch.testing.assert_close(weight.grad, 0.1 * weight * masks[name], rtol=1e-6, atol=0, msg=name)
            decayed, partly = decayed + 1, partly + (not bool(masks[name].all()))
        else:
            assert weight.grad is None, name
    assert decayed > 20
    assert partly > 10


def test_the_classes_that_a_model_spares_are_spared() -> None:
    model = tiny.supernet()
    add_decay(model, tiny.LARGEST, tiny.recipe(sandwich=2, decay="largest"))
    bare = ("bias", "norm", "cls_token", "pos_embed")
    found = {name for name, p in model.named_parameters() if p.grad is not None}
    assert found == {name for name, _ in model.named_parameters() if not any(part in name for part in bare)}


@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_decays_its_largest_once(parts: int) -> None:
    changes: dict[str, Any] = {"sandwich": 2, "decay": "largest", "accumulate": parts}
    plain, loss = stepped(tiny.recipe(**changes, weight_decay=0.0))
    found, with_decay = stepped(tiny.recipe(**changes, weight_decay=0.1))
    assert with_decay == loss  # the log shows how well the archs do, not how large they are
    alone = tiny.supernet()
    add_decay(alone, ARCHS[0], tiny.recipe(**changes, weight_decay=0.1))
    term = gradients(alone)
    assert_close(found, {name: grad + term.get(name, 0) for name, grad in plain.items()})


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_then_the_optimizer_decays_nothing_of_a_supernet_but_still_a_single_model(kind: str) -> None:
    recipe = tiny.recipe(optimizer=kind, sandwich=2, decay="largest", weight_decay=0.1)
    decays = [group["weight_decay"] for group in make_optimizer(tiny.supernet(), recipe).param_groups]
    assert decays == [0.0, 0.0]
    model = tiny.SPACE.build(tiny.SMALLEST)
    assert [group["weight_decay"] for group in make_optimizer(model, recipe).param_groups] == [0.1, 0.0]


def test_a_single_model_is_trained_as_if_the_options_of_supernets_were_not_there() -> None:
    options: dict[str, Any] = {"sandwich": 2, "decay": "largest", "inplace_distillation": True, "watch_epochs": 0.5}
    models = []
    for changes in ({}, options):
        torch.manual_seed(0)
        models.append(tiny.SPACE.build(tiny.SMALLEST))
        train_model(models[-1], tiny.DATA, tiny.recipe(iterations=2, **changes), quiet=True)
    tiny.assert_same(*models)


@pytest.mark.parametrize("changes", [{"inplace_distillation": True}, {"decay": "largest"}])
def test_without_a_sandwich_there_is_no_largest(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="needs the largest arch in every step; set sandwich to 2"):
        tiny.recipe(**changes)
