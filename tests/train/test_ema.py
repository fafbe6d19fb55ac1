from __future__ import annotations

import pytest
import torch
from torch import nn

from nasformer.train.optim import MovingAverage


def model(value: float) -> nn.Linear:
    layer = nn.Linear(2, 1)
    for weight in layer.parameters():
        nn.init.constant_(weight, value)
    return layer


def test_the_average_follows_the_formula() -> None:
    layer = model(1.0)
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
    layer = model(1.0)
    average = MovingAverage(layer, decay=0.5)
    average.update(model(3.0), step=100)
    assert torch.equal(layer.weight, torch.ones(1, 2))
    average.copy_to(layer)
    assert torch.equal(layer.weight, torch.full((1, 2), 2.0))
    assert torch.equal(layer.bias, torch.full((1,), 2.0))


def test_restore_goes_back() -> None:
    average = MovingAverage(model(1.0), decay=0.5)
    kept = {name: tensor.clone() for name, tensor in average.tensors.items()}
    average.update(model(3.0), step=100)
    average.restore(kept)
    assert all(torch.equal(average.tensors[name], kept[name]) for name in kept)
