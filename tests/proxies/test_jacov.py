"""Jacobian covariance against Jacobians written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.responses import jacov

PROBE = noise_probe((1, 2, 3), num_classes=2, batch_size=4, seed=2)
K = 1e-5


def net(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), activation, nn.Linear(5, 2))


def test_formula() -> None:
    model = net(nn.Tanh())
    w1, b1, w2 = (p.detach().double().numpy() for p in (model[1].weight, model[1].bias, model[3].weight))
    x = PROBE.images.flatten(1).double().numpy()
    jacobians = (w2.sum(axis=0) * (1 - np.tanh(x @ w1.T + b1) ** 2)) @ w1
    v = np.linalg.eigvalsh(np.corrcoef(jacobians))
    expected = -sum(math.log(e + K) + 1 / (e + K) for e in v)
    assert jacov(model, PROBE) == pytest.approx(expected, rel=1e-3)


def test_nothing_is_worse_than_equal_jacobians() -> None:
    """Equal images, or a linear net: one eigenvalue is the number of images, all others are 0."""
    worst = -(math.log(4 + K) + 1 / (4 + K) + 3 * (math.log(K) + 1 / K))
    same = replace(PROBE, images=PROBE.images[:1].expand(4, -1, -1, -1))
    assert jacov(net(nn.Tanh()), same) == pytest.approx(worst, rel=1e-6)
    assert jacov(net(nn.Identity()), PROBE) == pytest.approx(worst, rel=1e-6)
    assert jacov(net(nn.Tanh()), PROBE) > worst


def test_only_images_matter() -> None:
    other_labels = replace(PROBE, labels=1 - PROBE.labels)
    assert jacov(net(nn.Tanh()), PROBE) == jacov(net(nn.Tanh()), other_labels)


def test_dead_nets_have_no_score() -> None:
    model = net(nn.ReLU())
    nn.init.constant_(model[1].bias, -1e3)
    assert math.isnan(jacov(model, PROBE))


def test_one_image_is_too_few() -> None:
    with pytest.raises(Inapplicable, match="at least 2"):
        jacov(net(nn.Tanh()), noise_probe((1, 2, 3), 2, batch_size=1))
