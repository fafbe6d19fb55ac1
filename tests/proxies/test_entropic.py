"""The readings of the Entropic Score against formulas written out in numpy, and what must follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.entropy import DEFAULT, READINGS, REPEATS, entropies
from nasformer.proxies.parts import kaiming_fan_in, noise_probe, reinitialise
from nasformer.proxies.registry import Inapplicable, get_proxies

PROBE = noise_probe((3, 4, 4), num_classes=2, batch_size=4, seed=5)
Array = np.ndarray
each_reading = pytest.mark.parametrize("reading", READINGS)


class Hybrid(nn.Module):
    """A convolution with batch norm makes a map [B, 5, 4, 4], a linear layer then tokens [B, 16, 7]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act1 = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()
        self.fc, self.act2, self.head = nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        return self.head(self.act2(self.fc(x)).mean(1))


class ChannelsLast(nn.Module):
    """A linear layer on a map [B, H, W, C], as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(3, 6), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x.permute(0, 2, 3, 1))).mean((1, 2))


@torch.no_grad()
def layers_of_hybrid() -> list[Array]:
    """What both activations put out in each of the three passes, as [B, positions, channels]."""
    net, source, found = Hybrid(), PROBE.generator("entropic weights"), []
    for repeat in range(REPEATS):
        reinitialise(net, kaiming_fan_in, source)
        x = net.conv(PROBE.noise(f"entropic {repeat}")).flatten(2).transpose(1, 2).double().numpy()
        x = np.maximum((x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-5), 0)
        y = x @ net.fc.weight.double().numpy().T
        found += [x, y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))]
    return found


def entropy(p: Array) -> float:
    p = p[p > 0]
    return -float((p * np.log(p)).sum())


def mass_by_hand(a: Array) -> float:
    return float(np.mean([entropy(np.abs(image) / np.abs(image).sum()) for image in a])) / math.log(a[0].size)


def gap_by_hand(a: Array) -> float:
    return (mass_by_hand(a) - 1) * math.log(a[0].size)


def softmax_by_hand(a: Array) -> float:
    positions = [np.exp(row) / np.exp(row).sum() for row in a.reshape(-1, a.shape[-1])]
    return float(np.mean([entropy(p) for p in positions])) / math.log(a.shape[-1])


def histogram_by_hand(a: Array) -> float:
    z = np.clip((a - a.mean()) / a.std(), -3.999, 3.999)
    counts, _ = np.histogram(z, bins=32, range=(-4, 4))
    return entropy(counts / a.size) / math.log(32)


def binary_by_hand(a: Array) -> float:
    units = a.reshape(len(a), -1).T
    shares = [np.mean(unit > 0) for unit in units]
    return float(np.mean([entropy(np.array([p, 1 - p])) for p in shares])) / math.log(2)


def sigmoid_by_hand(a: Array) -> float:
    s = 1 / (1 + np.exp(-a))
    return float(np.mean(-s * np.log(s)))


BY_HAND: dict[str, Callable[[Array], float]] = {
    "binary": binary_by_hand,
    "mass": mass_by_hand,
    "gap": gap_by_hand,
    "softmax": softmax_by_hand,
    "histogram": histogram_by_hand,
    "sigmoid": sigmoid_by_hand,
}


@each_reading
def test_the_mean_over_inits_and_layers_of_the_formula(reading: str) -> None:
    name = "entropic" if reading == DEFAULT else f"entropic-{reading}"
    (proxy,) = get_proxies(name)
    expected = np.mean([BY_HAND[reading](a) for a in layers_of_hybrid()])
    assert proxy.score(Hybrid().eval(), PROBE) == pytest.approx(expected, rel=1e-4)


@each_reading
def test_several_readings_at_once_are_the_same_as_each_alone(reading: str) -> None:
    together = entropies(Hybrid().eval(), PROBE)
    assert entropies(Hybrid().eval(), PROBE, [reading]) == {reading: together[reading]}


def read(reading: str, *values: list[float]) -> float:
    """A reading of one layer with one row an image; its columns are the channels."""
    return READINGS[reading](torch.tensor(values), -1).item()


def test_equal_activations_are_the_maximum() -> None:
    rows = [[0.7] * 5, [0.2] * 5]
    assert read("mass", *rows) == pytest.approx(1)
    assert read("gap", *rows) == pytest.approx(0, abs=1e-6)
    assert read("softmax", *rows) == pytest.approx(1)


def test_a_single_active_element_is_the_minimum() -> None:
    rows = [[0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, -2.0]]
    assert read("mass", *rows) == 0
    assert read("gap", *rows) == pytest.approx(-math.log(4))
    assert read("softmax", [0.0, 100.0, 0.0, 0.0]) == pytest.approx(0, abs=1e-6)


def test_units_that_half_of_the_images_switch_on_are_the_maximum_and_constant_ones_the_minimum() -> None:
    assert read("binary", [1.0, -1.0], [-1.0, 1.0]) == 1
    assert read("binary", [1.0, -1.0], [2.0, -3.0]) == 0
    assert read("binary", [1.0, 1.0], [-1.0, 3.0]) == 0.5


def test_values_in_every_bin_alike_are_the_maximum_of_the_histogram_and_one_value_the_minimum() -> None:
    assert read("histogram", [0.4] * 8) == 0
    assert read("histogram", [1.0] * 4, [-1.0] * 4) == pytest.approx(math.log(2) / math.log(32))
    spread = np.linspace(-1, 1, 1000).tolist()  # reaches 1.73 standard deviations: 14 of 32 bins
    assert read("histogram", spread) == pytest.approx(math.log(14) / math.log(32), abs=0.01)


def test_silent_layers_of_the_sigmoid_reading() -> None:
    assert read("sigmoid", [0.0, 0.0]) == pytest.approx(math.log(2) / 2)
    assert read("sigmoid", [-math.log(math.e - 1)]) == pytest.approx(1 / math.e)
    assert read("sigmoid", [50.0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("reading", ["mass", "gap", "histogram", "binary"])
def test_scale_does_not_matter(reading: str) -> None:
    a = PROBE.noise("scale").clamp(min=0)
    assert READINGS[reading](a * 8, -3) == READINGS[reading](a, -3)  # by 8: exact in binary


def test_only_the_gap_forgets_how_many_elements_there_are() -> None:
    few, many = (torch.randn(2, n, generator=torch.Generator().manual_seed(n)) for n in (1_000, 100_000))
    change = {name: (READINGS[name](many, -1) - READINGS[name](few, -1)).item() for name in ("gap", "mass")}
    assert change["gap"] == pytest.approx(0, abs=0.02)
    assert change["mass"] > 0.01  # towards 1, as 1 - constant / ln n


def test_channels_of_a_map_made_by_a_linear_layer_are_last() -> None:
    net, source, found = ChannelsLast(), PROBE.generator("entropic weights"), []
    for repeat in range(REPEATS):
        reinitialise(net, kaiming_fan_in, source)
        a = nn.functional.gelu(net.fc(PROBE.noise(f"entropic {repeat}").permute(0, 2, 3, 1)))
        found.append(softmax_by_hand(a.detach().double().numpy()))
    assert entropies(net, PROBE)["softmax"] == pytest.approx(np.mean(found), rel=1e-5)


def test_a_silent_layer_has_no_distribution_of_activity() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Threshold(1e9, 0.0), nn.ReLU())
    found = entropies(net, PROBE)
    assert math.isnan(found["mass"])
    assert found["binary"] == found["histogram"] == 0


def test_needs_activations_and_two_images() -> None:
    with pytest.raises(Inapplicable, match="no activation layers"):
        entropies(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), PROBE)
    with pytest.raises(Inapplicable, match="at least 2"):
        entropies(Hybrid(), noise_probe((3, 4, 4), num_classes=2, batch_size=1), READINGS)
