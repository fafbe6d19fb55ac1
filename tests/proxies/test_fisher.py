"""Fisher in closed form, for tokens, for maps, and for maps with their channels last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.saliency import CHUNK, fisher

BATCH, ROWS, COLUMNS, INPUTS, CHANNELS = CHUNK["cpu"] + 3, 2, 4, 3, 5


class Net(nn.Module):
    """One layer, one activation, the mean over positions, a head. `layout` gives the input of the first layer."""

    def __init__(self, first: nn.Module, layout: Callable[[Tensor], Tensor], positions: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.activation, self.head = first, nn.ReLU(inplace=True), nn.Linear(CHANNELS, 4)
        self.layout, self.positions = layout, positions

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.first(self.layout(x))).mean(self.positions))


def tokens() -> Net:
    return Net(nn.Linear(INPUTS, CHANNELS), lambda x: x.flatten(2).mT, (1,))


def maps() -> Net:
    return Net(nn.Conv2d(INPUTS, CHANNELS, 1), lambda x: x, (2, 3))


def maps_with_channels_last() -> Net:
    return Net(nn.Linear(INPUTS, CHANNELS), lambda x: x.permute(0, 2, 3, 1), (1, 2))


def some_probe(batch: int = BATCH) -> Probe:
    probe = noise_probe((INPUTS, ROWS, COLUMNS), num_classes=4, batch_size=batch)
    return Probe(probe.images.double(), probe.labels)


def closed_form(net: Net, probe: Probe) -> float:
    """With m the mean activation of a channel, sum over positions of a . dL/da = m . (p - y) V."""
    x, labels = probe.images.flatten(2).numpy(), probe.labels.numpy()
    weight, bias = net.first.weight.detach().flatten(1).numpy(), net.first.bias.detach().numpy()
    head, head_bias = net.head.weight.detach().numpy(), net.head.bias.detach().numpy()
    mean = np.maximum(np.einsum("cd,bdn->bcn", weight, x) + bias[:, None], 0).mean(2)
    logits = mean @ head.T + head_bias
    error = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error[np.arange(len(x)), labels] -= 1
    return 0.5 * ((mean * (error @ head)) ** 2).mean(0).sum()


@pytest.mark.parametrize("make", [tokens, maps, maps_with_channels_last])
def test_fisher_sums_over_positions_and_keeps_channels(make: Callable[[], Net]) -> None:
    torch.manual_seed(0)
    net, probe = make().double().eval(), some_probe()
    expected = closed_form(net, probe)
    assert expected > 0
    assert fisher(net, probe) == pytest.approx(expected)


def test_every_call_of_a_shared_activation_counts() -> None:
    """The first ReLU's outputs go into a second one that changes nothing and has the same gradient."""
    torch.manual_seed(0)
    net, probe = tokens().double().eval(), some_probe()
    expected = closed_form(net, probe)
    net.first = nn.Sequential(net.first, net.activation)
    assert fisher(net, probe) == pytest.approx(2 * expected)


class Positioned(nn.Module):
    """A small net with an activation makes a bias that no image has a part in."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net, self.positions = net, nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 4))

    def bias(self) -> Tensor:
        return self.positions(torch.ones(1, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + self.bias()


def test_activations_that_see_no_image_do_not_count() -> None:
    torch.manual_seed(0)
    model, probe = Positioned(tokens()).double().eval(), some_probe()
    score = fisher(model, probe)
    model.net.head.bias.data += model.bias()[0]
    assert score == pytest.approx(closed_form(model.net, probe))


def test_a_model_without_activation_layers_has_no_score() -> None:
    with pytest.raises(Inapplicable, match="no activation layers"):
        fisher(nn.Sequential(nn.Flatten(), nn.Linear(24, 4), nn.Sigmoid()).double(), some_probe(2))


def test_the_probe_is_left_as_it_was() -> None:
    probe = some_probe(2)
    fisher(tokens().double(), probe)
    assert not probe.images.requires_grad
