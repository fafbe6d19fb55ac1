"""The parts of the TE-score against gradients and regions written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.responses import ntk, regions, te

PROBE = noise_probe((1, 2, 2), num_classes=2, batch_size=4, seed=1)


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def condition_number(net: nn.Sequential, x: np.ndarray) -> float:
    """Gradients of the two weight matrices (not the biases) by the chain rule."""
    w1, b1, w2 = (p.detach().double().numpy() for p in (net[1].weight, net[1].bias, net[3].weight))
    pre = x @ w1.T + b1
    rows = []
    for image, hidden in zip(x, pre, strict=True):
        of_w1 = np.outer(w2.sum(axis=0) * (hidden > 0), image)
        of_w2 = np.outer(np.ones(2), np.maximum(hidden, 0))
        rows.append(np.concatenate([of_w1.ravel(), of_w2.ravel()]))
    eigenvalues = np.linalg.eigvalsh(np.array(rows) @ np.array(rows).T)
    return eigenvalues[-1] / eigenvalues[0]


def test_ntk_is_the_condition_number_as_a_power_of_ten() -> None:
    net = two_layers()
    kappa = condition_number(net, PROBE.noise("ntk").flatten(1).double().numpy())
    assert ntk(net, PROBE) == pytest.approx(-math.log10(kappa), rel=1e-4)


def test_a_weight_used_without_its_layer_counts() -> None:
    class Functional(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[3](nn.functional.linear(x.flatten(1), self[1].weight, self[1].bias).relu())

    assert ntk(Functional(*two_layers()), PROBE) == pytest.approx(ntk(two_layers(), PROBE), rel=1e-5)


def test_a_singular_kernel_is_no_score() -> None:
    """The gradient of a linear net is the image: two pixels cannot tell four images apart."""
    probe = noise_probe((1, 1, 2), num_classes=3, batch_size=4)
    assert math.isnan(ntk(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)), probe))


def test_ntk_needs_weights_and_two_images() -> None:
    with pytest.raises(Inapplicable, match="neither linear nor convolutional"):
        ntk(nn.Flatten(), PROBE)
    with pytest.raises(Inapplicable, match="at least 2"):
        ntk(two_layers(), noise_probe((1, 2, 2), 2, batch_size=1))


def test_regions_of_a_line_cut_in_two_places() -> None:
    """Two units, x > 0 and x > 1: three regions, of which only those that hold an image count."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2), nn.GELU())
    with torch.no_grad():
        net[1].weight.copy_(torch.ones(2, 1))
        net[1].bias.copy_(torch.tensor([0.0, -1.0]))
    found = set()
    for seed in range(6):
        probe = noise_probe((1, 1, 1), num_classes=2, batch_size=3, seed=seed)
        points = probe.noise("regions").flatten().tolist()
        expected = len({(x > 0, x > 1) for x in points})
        assert regions(net, probe) == expected
        found.add(expected)
    assert len(found) > 1, "the seeds should show different numbers of regions"


def test_te_is_regions_over_condition_number() -> None:
    net = two_layers()
    kappa = condition_number(net, PROBE.noise("ntk").flatten(1).double().numpy())
    patterns = {tuple(row) for row in (net[1](PROBE.noise("regions").flatten(1)) > 0).tolist()}
    assert te(net, PROBE) == pytest.approx(math.log10(len(patterns) / kappa), rel=1e-4)
