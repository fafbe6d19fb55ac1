"""Models that are not ours: a ViT and two convolutional nets of timm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from nasformer.proxies.parts import noise_probe
from nasformer.proxies.registry import Inapplicable, get_proxies

PROBE = noise_probe((3, 64, 64), num_classes=10, batch_size=3, seed=7)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: timm.create_model("test_vit", img_size=64, num_classes=10),
    "convnext": lambda: timm.create_model("test_convnext", num_classes=10),
    "resnet": lambda: timm.create_model("test_resnet", num_classes=10),
}
OF_ANY_MODEL = ["naswot", "ntk", "regions", "te", "jacov", "zen", "params", "macs"]
OF_BLOCKS = ["depth", "az_expressivity", "az_progressivity", "az_trainability", "token_entropy"]


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


@pytest.mark.parametrize("name", OF_ANY_MODEL + OF_BLOCKS)
def test_scores_any_model_or_says_why_not(model: nn.Module, name: str) -> None:
    (proxy,) = get_proxies(name)
    if name in OF_BLOCKS and isinstance(model, timm.models.ResNet):  # it has neither blocks.<n> nor mlp.*
        with pytest.raises(Inapplicable):
            proxy.score(copy.deepcopy(model), PROBE)
        return
    state = torch.get_rng_state()
    score, again = (proxy.score(copy.deepcopy(model), PROBE) for _ in range(2))
    assert isinstance(score, float)
    assert math.isfinite(score)
    assert score == again
    assert torch.equal(torch.get_rng_state(), state)
