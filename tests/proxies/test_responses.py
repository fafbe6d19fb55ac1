"""SWAP, L-SWAG and WRCor against values written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.responses import l_swag, swap, wrcor

PROBE = noise_probe((1, 2, 3), num_classes=2, batch_size=4, seed=2)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2))


def test_patterns_of_all_layers_are_counted_together() -> None:
    model = net()
    first = model[1](PROBE.images.flatten(1)) > 0
    second = model[3](model[2](model[1](PROBE.images.flatten(1)))) > 0
    patterns = {tuple(unit.tolist()) for unit in torch.cat([first, second], dim=1).T}
    assert 1 < len(patterns) == swap(model, PROBE)


def test_labels_mean_nothing_to_swap() -> None:
    assert swap(net(), PROBE) == swap(net(), Probe(PROBE.images, 1 - PROBE.labels, PROBE.seed))


def test_l_swag_is_patterns_times_the_variation_of_gradients() -> None:
    model = net()
    halves = []
    for half in (slice(2), slice(2, 4)):
        model.zero_grad()
        F.cross_entropy(model(PROBE.images[half]), PROBE.labels[half]).backward()
        halves.append([model[layer].weight.grad.abs().double().numpy() for layer in (1, 3, 5)])
    deviations = [np.stack(both).std(axis=0) for both in zip(*halves, strict=True)]
    trainability = sum(math.log((1 / deviation[deviation > 0]).sum()) for deviation in deviations)
    assert l_swag(net(), PROBE) == pytest.approx(swap(net(), PROBE) * trainability, rel=1e-5)


def test_wrcor_weighs_later_layers_more() -> None:
    model = net()
    first = model[1](PROBE.images.flatten(1))
    second = model[3](model[2](first))
    gradients = torch.autograd.grad(F.cross_entropy(model[5](model[4](second)), PROBE.labels), [first, second])
    kernel = np.zeros((4, 4))
    for weight, response, gradient in zip((1, 2), (first, second), gradients, strict=True):
        for values in (response, gradient):
            kernel += weight * np.abs(np.corrcoef(values.detach().double().numpy()))
    assert wrcor(net(), PROBE) == pytest.approx(np.linalg.slogdet(kernel)[1], rel=1e-6)


@pytest.mark.parametrize("score", [swap, wrcor])
def test_a_net_without_activations_has_no_score(score: object) -> None:
    with pytest.raises(Inapplicable, match="no activation layers"):
        score(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), PROBE)  # type: ignore[operator]
