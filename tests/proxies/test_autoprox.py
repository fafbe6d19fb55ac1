"""AutoProxA against gradients taken by hand, layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nasformer.models.registry import get_space
from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable
from nasformer.proxies.saliency import autoprox


def test_autoprox_is_its_formula() -> None:
    space = get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=3)
    torch.manual_seed(0)
    model = space.build(space.sample(0)).eval()
    model(torch.ones(1, 1, 8, 8)).sum().backward()
    expected, counted = 0.0, 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if name.endswith(("attn.qkv.weight", "attn.proj.weight")):
            expected += gradient.abs().sum().item()
        elif name.endswith(("mlp.fc1.weight", "mlp.fc2.weight")):
            expected += (1 / (1 + (-gradient).exp())).mean().item()
        else:
            continue
        counted += 1
    assert counted
    assert counted % 4 == 0
    assert autoprox(model, noise_probe((1, 8, 8), num_classes=3, batch_size=2)) == pytest.approx(expected)


def test_autoprox_needs_attention() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(Inapplicable, match="no attention"):
        autoprox(model, noise_probe((1, 2, 2), num_classes=3, batch_size=2))
