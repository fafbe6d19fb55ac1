"""NASWOT against codes written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.responses import naswot

PROBE = noise_probe((1, 3, 4), num_classes=2, batch_size=5, seed=3)


class Tokens(nn.Module):
    """Rows of the image are tokens [B, 3, 4]; two activation layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.act1 = nn.Linear(4, 6), nn.GELU()
        self.fc2, self.act2 = nn.Linear(6, 5), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(self.fc2(self.act1(self.fc1(x[:, 0])))).mean(dim=1)


class Twice(nn.Module):
    """One activation module in two places, as in torchvision's ResNets."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.relu = nn.Linear(12, 20), nn.Linear(20, 30), nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.fc2(self.relu(self.fc1(x.flatten(1)))))


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs() + 1


def log_det(*pre_activations: Tensor) -> float:
    """One row of zeros and ones for each image, compared pair by pair."""
    codes = np.concatenate([x.flatten(1).numpy() > 0 for x in pre_activations], axis=1)
    kernel = [[sum(a == b for a, b in zip(one, other, strict=True)) for other in codes] for one in codes]
    return np.linalg.slogdet(np.array(kernel, dtype=float))[1]


def test_every_channel_of_every_token_is_a_unit() -> None:
    net, x = Tokens(), PROBE.noise("naswot")
    with torch.no_grad():
        first = net.fc1(x[:, 0])
        second = net.fc2(nn.functional.gelu(first))
    assert naswot(net, PROBE) == pytest.approx(log_det(first, second), rel=1e-10)


@pytest.mark.parametrize("inplace", [True, False])
def test_an_activation_counts_each_time_it_is_used(inplace: bool) -> None:
    net, x = Twice(inplace), PROBE.noise("naswot").flatten(1)
    with torch.no_grad():
        first = net.fc1(x)
        second = net.fc2(first.relu())
    assert naswot(net, PROBE) == pytest.approx(log_det(first, second), rel=1e-10)


def test_equal_codes_are_no_score() -> None:
    assert math.isnan(naswot(nn.Sequential(Positive(), nn.ReLU(), nn.Flatten()), PROBE))


def test_what_it_cannot_score() -> None:
    with pytest.raises(Inapplicable, match="no activation layers"):
        naswot(nn.Flatten(), PROBE)
    with pytest.raises(Inapplicable, match="at least 2"):
        naswot(Tokens(), noise_probe((1, 3, 4), 2, batch_size=1))
