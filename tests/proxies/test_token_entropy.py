"""Token entropy: the four places, and what it is for simple clouds of tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nasformer.proxies.entropy import token_entropy
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable

PROBE = noise_probe((1, 5, 4), num_classes=2, batch_size=3, seed=6)


class Part(nn.Module):
    """Two linear layers under names that say what they are."""

    def __init__(self, **layers: nn.Linear) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attn = Part(qkv=nn.Linear(4, 6), proj=nn.Linear(6, 4))
        self.mlp = Part(fc1=nn.Linear(4, 8), fc2=nn.Linear(8, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mlp(self.attn(x[:, 0])).mean(dim=1))


def entropy(rows: np.ndarray) -> float:
    spectrum = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    shares = spectrum[spectrum > 1e-12] / spectrum.sum()
    return -float((shares * np.log(shares)).sum())


def test_sum_over_the_outputs_of_attention_and_mlp_but_not_the_head() -> None:
    net, x, expected = Net(), PROBE.noise("token entropy")[:, 0], 0.0
    for layer in (net.attn.qkv, net.attn.proj, net.mlp.fc1, net.mlp.fc2):
        x = layer(x)
        expected += entropy(x.detach().double().numpy().reshape(-1, x.shape[-1]))
    assert token_entropy(net, PROBE) == pytest.approx(expected, rel=1e-4)


def test_the_scale_of_weights_does_not_matter() -> None:
    net, small = Net(), Net()
    for layer in (small.attn.qkv, small.attn.proj, small.mlp.fc1, small.mlp.fc2):
        layer.weight.data *= 0.5  # single precision would lose far smaller outputs beside the biases
    assert token_entropy(small, PROBE) == pytest.approx(token_entropy(net, PROBE), rel=1e-4)


def test_collapsed_tokens_score_lower() -> None:
    net, flat = Net(), Net()
    flat.attn.qkv.weight.data[:] = flat.attn.qkv.weight.data[:1]  # all channels alike: one direction
    assert token_entropy(flat, PROBE) == pytest.approx(0, abs=1e-3)
    assert token_entropy(net, PROBE) > 1


def test_constant_tokens_have_no_entropy() -> None:
    net = Net()
    nn.init.zeros_(net.attn.qkv.weight)
    assert math.isnan(token_entropy(net, PROBE))


def test_only_transformers() -> None:
    with pytest.raises(Inapplicable, match="attn"):
        token_entropy(nn.Sequential(nn.Flatten(), nn.Linear(20, 2)), PROBE)
