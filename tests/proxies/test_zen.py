"""Zen-score against a forward pass in numpy with the weights it draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.responses import zen

PROBE = noise_probe((2, 2, 3), num_classes=2, batch_size=4, seed=4)


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    source = PROBE.generator("zen weights")
    return [torch.empty(shape).normal_(generator=source).double().numpy() for shape in shapes]


def inputs() -> tuple[np.ndarray, np.ndarray]:
    x, z = (PROBE.noise(f"zen {name}").double().numpy() for name in "xz")
    return x, x + 0.01 * z


def log_change(before: np.ndarray, after: np.ndarray) -> float:
    return math.log(np.abs(after - before).reshape(len(before), -1).sum(axis=1).mean())


def test_without_forward_features_the_input_of_the_last_linear_layer_counts() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    weight, _ = drawn((5, 12), (2, 5))
    before, after = (np.maximum(x.reshape(4, -1) @ weight.T, 0) for x in inputs())
    assert zen(net, PROBE) == pytest.approx(log_change(before, after), rel=1e-10)


def test_forward_features_come_before_pooling() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(3, 7), nn.Linear(7, 2)

        def forward_features(self, x: Tensor) -> Tensor:
            return self.fc(x.flatten(1, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.forward_features(x).mean(dim=1))

    weight, _ = drawn((7, 3), (2, 7))
    before, after = (x.reshape(4, -1, 3) @ weight.T for x in inputs())
    assert zen(Net(), PROBE) == pytest.approx(log_change(before, after), rel=1e-10)


def test_batch_norm_adds_the_scale_it_hides() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(18, 2)).eval()
    weight, _ = drawn((3, 2, 1, 1), (2, 18))
    maps = [np.einsum("bchw,oc->bohw", x, weight[:, :, 0, 0]) for x in inputs()]
    mean, variance = ([m.mean(axis=(0, 2, 3), keepdims=True) for m in maps], [m.var(axis=(0, 2, 3)) for m in maps])
    eps = net[1].eps
    normed = [(m - a) / np.sqrt(v[None, :, None, None] + eps) for m, a, v in zip(maps, mean, variance, strict=True)]
    unbiased = variance[0].mean() * 24 / 23  # 4 images of 2 x 3 pixels
    assert zen(net, PROBE) == pytest.approx(log_change(*normed) + math.log(math.sqrt(unbiased)), rel=1e-8)


def test_deep_nets_do_not_overflow() -> None:
    """60 layers of 64 units with N(0, 1) weights grow by about 8 a layer: far beyond single precision."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 64), *(nn.Linear(64, 64) for _ in range(60)))
    score = zen(net, PROBE)
    assert math.isfinite(score)
    assert score > math.log(torch.finfo(torch.float32).max)


def test_nets_without_features_are_left_out() -> None:
    with pytest.raises(Inapplicable, match="neither forward_features nor a linear layer"):
        zen(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten()), PROBE)
