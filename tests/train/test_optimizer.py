"""Which weights decay, which move, and their moving average."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import tiny
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.train.optim import FrozenSlices, MovingAverage, make_optimizer

BARE = ("bias", "norm", "cls_token", "pos_embed")


def decaying(model: nn.Module, **changes: object) -> dict[str, bool]:
    """For each weight, whether it decays; each must be in one group."""
    optimizer = make_optimizer(model, tiny.recipe(weight_decay=0.1, **changes))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    assert set(decay.values()) == {0.0, 0.1}
    return {name: decay[id(p)] > 0 for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["supernet", "model"])
def test_biases_norms_class_token_and_positions_do_not_decay(kind: str) -> None:
    model = tiny.supernet() if kind == "supernet" else tiny.SPACE.build(tiny.SMALLEST)
    found = decaying(model)
    assert [name for name, decays in found.items() if decays == any(part in name for part in BARE)] == []
    tables = [name for name in found if "rel_pos" in name]
    assert tables
    assert all(found[name] for name in tables)


def test_weights_named_in_the_recipe_do_not_decay() -> None:
    before, after = decaying(tiny.supernet()), decaying(tiny.supernet(), no_decay=["rel_pos", "fc1"])
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if "rel_pos" in name or ("fc1" in name and "bias" not in name)}


def step(model: Supernet, optimizer: torch.optim.Optimizer, arch: Arch, frozen: bool) -> None:
    x, targets = tiny.Watched(tiny.recipe()).train(0)
    nn.functional.cross_entropy(model(x, arch), targets).backward()
    if frozen:
        FrozenSlices(model, optimizer).step([arch])
    else:
        optimizer.step()
    optimizer.zero_grad()


def values(model: Supernet, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All weights and all momenta, by name."""
    found = {name: p.detach().clone() for name, p in model.weights.named_parameters()}
    for name, p in model.weights.named_parameters():
        state = optimizer.state.get(p, {})
        found |= {f"{name}:{key}": t.clone() for key, t in state.items() if t is not None and t.shape == p.shape}
    return found


@torch.no_grad()
def used(model: Supernet, arch: Arch) -> dict[str, Tensor]:
    """Where an arch uses each weight, found by numbering all entries and looking which numbers its slices show."""
    numbered = copy.deepcopy(model)
    for weight in numbered.parameters():
        weight.copy_(torch.arange(weight.numel()).view_as(weight))
    slices = numbered.slices(arch)
    return {
        name: torch.isin(weight, slices[name]) if name in slices else torch.zeros_like(weight, dtype=torch.bool)
        for name, weight in numbered.weights.named_parameters()
    }


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("warm", [True, False], ids=["with momentum", "first step"])
def test_frozen_slices_move_only_what_the_arch_uses(kind: str, warm: bool) -> None:
    plain, frozen = tiny.supernet(), tiny.supernet()
    optimizers = [make_optimizer(model, tiny.recipe(optimizer=kind, weight_decay=0.1)) for model in (plain, frozen)]
    if warm:
        for model, optimizer in zip((plain, frozen), optimizers, strict=True):
            step(model, optimizer, tiny.LARGEST, frozen=False)
    before = values(frozen, optimizers[1])
    step(plain, optimizers[0], tiny.SMALLEST, frozen=False)
    step(frozen, optimizers[1], tiny.SMALLEST, frozen=True)
    by_plain, by_frozen, masks = (
        values(plain, optimizers[0]),
        values(frozen, optimizers[1]),
        used(frozen, tiny.SMALLEST),
    )
    moved_by_plain = 0
    for name, after in by_frozen.items():
        inside = masks[name.partition(":")[0]]
        old = before.get(name, torch.zeros_like(after))  # a momentum that this step made
        assert torch.equal(after[~inside], old[~inside]), name
        assert torch.equal(after[inside], by_plain[name][inside]), name
        moved_by_plain += int((by_plain[name][~inside] != old[~inside]).sum())
    assert moved_by_plain > 1000  # or the test would show nothing


def test_frozen_slices_of_several_archs_are_their_union() -> None:
    model = tiny.supernet()
    a, b = (tiny.SPACE.sample(seed) for seed in (1, 2))
    masks = FrozenSlices(model, make_optimizer(model, tiny.recipe())).masks([a, b])
    expected_a, expected_b = used(model, a), used(model, b)
    names = {id(weight): name for name, weight in model.weights.named_parameters()}
    found = {names[id(weight)]: mask for weight, mask in masks.items()}
    for name in expected_a:
        union = expected_a[name] | expected_b[name]
        assert torch.equal(found.get(name, torch.zeros_like(union)), union), name


# The moving average


def constant_layer(value: float) -> nn.Linear:
    layer = nn.Linear(2, 1)
    for weight in layer.parameters():
        nn.init.constant_(weight, value)
    return layer


def test_the_average_follows_the_formula() -> None:
    layer = constant_layer(1.0)
    average, expected = MovingAverage(layer, decay=0.9), 1.0
    for step, value in enumerate([2.0, -1.0, 5.0, 0.5] * 30):
        for weight in layer.parameters():
            nn.init.constant_(weight, value)
        average.update(layer, step)
        decay = min(0.9, (1 + step) / (10 + step))  # lower early on
        expected = decay * expected + (1 - decay) * value
        for tensor in average.tensors.values():
            assert tensor.flatten().tolist() == pytest.approx([expected] * tensor.numel(), rel=1e-5)


def test_the_average_is_of_its_own_until_it_is_copied() -> None:
    layer = constant_layer(1.0)
    average = MovingAverage(layer, decay=0.5)
    average.update(constant_layer(3.0), step=100)
    assert torch.equal(layer.weight, torch.ones(1, 2))
    average.copy_to(layer)
    assert torch.equal(layer.weight, torch.full((1, 2), 2.0))
    assert torch.equal(layer.bias, torch.full((1,), 2.0))


def test_restore_goes_back() -> None:
    average = MovingAverage(constant_layer(1.0), decay=0.5)
    kept = {name: tensor.clone() for name, tensor in average.tensors.items()}
    average.update(constant_layer(3.0), step=100)
    average.restore(kept)
    assert all(torch.equal(average.tensors[name], kept[name]) for name in kept)
