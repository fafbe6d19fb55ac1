"""Parameters, multiply-accumulates and depth: counted by hand, and equal to what budgets use."""

from __future__ import annotations

import pytest
from torch import nn

from families.small import SPACES
from nasformer.proxies.counts import depth, macs, params
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable

PROBE = noise_probe((3, 8, 8), num_classes=10, batch_size=2)


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


def test_any_module() -> None:
    assert params(conv_net(), PROBE) == (3 * 9 + 1) * 4 + (256 + 1) * 10
    assert macs(conv_net(), PROBE) == 64 * 3 * 9 * 4 + 256 * 10


def test_a_shared_parameter_counts_once() -> None:
    layer = nn.Linear(5, 5)
    assert params(nn.Sequential(layer, layer), PROBE) == 30


def test_our_models_count_as_their_budget_does() -> None:
    space = SPACES["autoformer-tiny"]
    arch = space.sample(1)
    cost, model = space.cost(arch), space.build(arch)
    assert macs(model, PROBE) == cost.macs
    assert params(model, PROBE) == cost.params
    assert depth(model, PROBE) == len(arch.blocks)


def test_depth_needs_named_blocks() -> None:
    with pytest.raises(Inapplicable, match=r"0 modules named blocks\.<number>"):
        depth(conv_net(), PROBE)
