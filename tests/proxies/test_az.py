"""AZ-NAS's proxies against numpy, on nets whose blocks are linear maps of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.entropy import az_expressivity, az_progressivity, az_trainability
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable

PROBE = noise_probe((4, 3, 3), num_classes=2, batch_size=3, seed=5)
SCORES = (az_expressivity, az_progressivity, az_trainability)


class Net(nn.Module):
    """Blocks, one after the other, on the image as it is or as tokens of 4 channels."""

    def __init__(self, blocks: list[nn.Module], tokens: bool = True) -> None:
        super().__init__()
        self.blocks, self.tokens = nn.Sequential(*blocks), tokens

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x.flatten(2).transpose(1, 2) if self.tokens else x)
        return x.flatten(1)


class Halve(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::2]


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class ChannelsLast(nn.Module):
    """Maps with channels last that it normalises, as Swin's blocks do."""

    def __init__(self, linear: nn.Linear, first: bool) -> None:
        super().__init__()
        self.linear, self.first, self.norm = linear, first, nn.LayerNorm(linear.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.movedim(1, -1) if self.first else x)


def matrices() -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=source) for shape in ((4, 4), (6, 4), (5, 6))]


def linears() -> list[nn.Module]:
    layers: list[nn.Module] = []
    for matrix in matrices():
        layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        layer.weight.data = matrix
        layers.append(layer)
    return layers


def convolutions() -> list[nn.Module]:
    layers: list[nn.Module] = []
    for matrix in matrices():
        layer = nn.Conv2d(matrix.shape[1], matrix.shape[0], 1, bias=False)
        layer.weight.data = matrix[:, :, None, None]
        layers.append(layer)
    return layers


def entropies() -> list[float]:
    rows = PROBE.noise("az").double().numpy().transpose(0, 2, 3, 1).reshape(-1, 4)
    found = []
    for matrix in matrices():
        rows = rows @ matrix.double().numpy().T
        spectrum = np.linalg.eigvalsh(np.cov(rows.T))
        shares = [value / spectrum.sum() for value in spectrum if value > 1e-9]
        found.append(-sum(share * math.log(share) for share in shares))
    return found


def test_expressivity_is_the_sum_of_the_blocks_entropies() -> None:
    assert az_expressivity(Net(linears()), PROBE) == pytest.approx(sum(entropies()), rel=1e-5)


def test_progressivity_is_the_smallest_increase() -> None:
    first, second, third = entropies()
    expected = min(second - first, third - second)
    assert az_progressivity(Net(linears()), PROBE) == pytest.approx(expected, rel=1e-4)


def test_trainability_of_linear_blocks() -> None:
    """The gradient goes back through the matrix: g_in = g_out W, from the last two blocks to those before them."""
    source, scores = PROBE.generator("az gradients"), []
    for matrix in matrices()[1:]:
        signs = torch.randint(0, 2, (3, 9, matrix.shape[0]), generator=source).double().numpy().reshape(27, -1) * 2 - 1
        outer = [np.outer(g @ matrix.double().numpy(), g) for g in signs]
        norm = np.linalg.svd(np.mean(outer, axis=0), compute_uv=False)[0]
        scores.append(2 - norm - 1 / norm)
    assert az_trainability(Net(linears()), PROBE) == pytest.approx(np.mean(scores), rel=1e-5)


def test_gradients_that_keep_their_size_are_best() -> None:
    first, *_ = linears()
    scores = {factor: az_trainability(Net([first, Scale(factor)]), PROBE) for factor in (0.1, 1.0, 10.0)}
    assert max(scores, key=scores.__getitem__) == 1.0


@pytest.mark.parametrize("score", [az_expressivity, az_progressivity])
def test_maps_are_tokens_with_channels_first(score: Callable[..., float]) -> None:
    assert score(Net(convolutions(), tokens=False), PROBE) == pytest.approx(score(Net(linears()), PROBE), rel=1e-4)


def test_maps_with_channels_last() -> None:
    blocks: list[nn.Module] = [ChannelsLast(layer, index == 0) for index, layer in enumerate(linears())]  # type: ignore[arg-type]
    assert az_expressivity(Net(blocks, tokens=False), PROBE) == pytest.approx(sum(entropies()), rel=1e-5)


def test_neighbours_with_other_tokens_are_left_out() -> None:
    first, second, third = linears()
    with_pool = Net([first, second, nn.Sequential(Halve(), third)])
    assert az_trainability(with_pool, PROBE) == az_trainability(Net([first, second]), PROBE)
    with pytest.raises(Inapplicable, match="same number of tokens"):
        az_trainability(Net([first, nn.Sequential(Halve(), second)]), PROBE)


@pytest.mark.parametrize("score", SCORES)
def test_nets_without_blocks_are_left_out(score: Callable[..., float]) -> None:
    with pytest.raises(Inapplicable, match=r"0 modules named blocks\.<number>"):
        score(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), PROBE)


def test_constant_features_have_no_entropy() -> None:
    layer = nn.Linear(4, 4)
    nn.init.zeros_(layer.weight)
    assert math.isnan(az_expressivity(Net([layer]), PROBE))
