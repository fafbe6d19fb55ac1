"""What every proxy owes, on a small net of every family: a number or a reason, no chance of its own, no traces."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from families.small import SPACES, image_size, randomise
from nasformer.families.space import Space
from nasformer.proxies.proxy import Probe, Proxy, list_proxies, noise_probe
from nasformer.proxies.scoring import Score, score_model

BATCH = 8
PROXIES = list_proxies()
BY_SIZE = sorted(SPACES.values(), key=lambda space: space.costs(space.root.smallest())["params"], reverse=True)
FAMILIES: dict[str, Space] = {space.model.family: space for space in BY_SIZE}  # of each the last, which is the smallest
DOCUMENTED = ("formula", "sees", "loss", "init", "higher", "paper")
COUNTS = {"regions"}  # whole numbers that differ only where images share a region, which few images never do
DOCS = Path(__file__).parents[2] / "docs" / "proxies.md"

each_proxy = pytest.mark.parametrize("proxy", PROXIES.values(), ids=lambda proxy: proxy.name)
each_family = pytest.mark.parametrize("family", FAMILIES)
MODELS: dict[str, nn.Module] = {}


def model_of(family: str) -> nn.Module:
    """The smallest net of the family's smallest space; shared, so whoever changes it spoils the next test."""
    if family not in MODELS:
        torch.manual_seed(0)
        space = FAMILIES[family]
        MODELS[family] = randomise(space.build(space.root.smallest()))  # in training mode, as models come
    return MODELS[family]


def probe_of(family: str, seed: int = 0) -> Probe:
    return noise_probe((3, *image_size(FAMILIES[family])), num_classes=10, batch_size=BATCH, seed=seed)


def score(proxy: Proxy, model: nn.Module, probe: Probe) -> Score:
    return score_model(model, [proxy.name], probe)[proxy.name]


def state(model: nn.Module) -> dict[str, Any]:
    """All that may be changed in a model, beside its tensors."""
    return {
        "modes": [module.training for module in model.modules()],
        "wanted": [weight.requires_grad for weight in model.parameters()],
        "gradients": [weight.grad for weight in model.parameters()],
        "hooks": [
            len(getattr(module, name))
            for module in model.modules()
            for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        ],
        "kinds": [type(module) for module in model.modules()],
    }


@each_family
@each_proxy
def test_a_finite_number_or_a_reason(proxy: Proxy, family: str) -> None:
    found = score(proxy, model_of(family), probe_of(family))
    if found.reason:
        assert found.values == ()
        assert math.isnan(found.mean)
    else:
        (value,) = found.values
        assert type(value) is float
        assert math.isfinite(value)
    assert found.seconds > 0


@each_family
@each_proxy
def test_the_same_every_time_and_no_traces(proxy: Proxy, family: str) -> None:
    model, probe = model_of(family), probe_of(family)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before, images, labels = state(model), probe.images.clone(), probe.labels.clone()
    torch.manual_seed(1)
    dice, threads, precision = torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    first = score(proxy, model, probe)
    assert torch.equal(torch.get_rng_state(), dice)
    torch.manual_seed(2)
    assert score(proxy, model, probe).values == first.values
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    assert state(model) == before
    assert torch.equal(probe.images, images)
    assert torch.equal(probe.labels, labels)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, precision)
    assert torch.is_grad_enabled()


@each_family
@each_proxy
def test_a_model_that_trained_is_scored_like_one_for_inference(proxy: Proxy, family: str) -> None:
    """Whatever mode a model comes in, and with frozen weights: stochastic depth adds no noise."""
    probe = probe_of(family)
    frozen = copy.deepcopy(model_of(family)).eval().requires_grad_(False)
    assert score(proxy, frozen, probe).values == score(proxy, model_of(family), probe).values


@each_family
@each_proxy
def test_chance_comes_from_the_seed(proxy: Proxy, family: str) -> None:
    """Another seed, another value, for those that say that they see chance; the others do not change."""
    by_chance = proxy.sees.startswith(("noise", "labelled")) or not proxy.init.startswith("own")
    found = [score(proxy, model_of(family), probe_of(family, seed)) for seed in (0, 1)]
    by_chance = by_chance and not found[0].reason  # what does not apply has no value to change
    assert len({one.values for one in found}) == 1 + (by_chance and proxy.name not in COUNTS)


@each_proxy
def test_only_who_says_so_looks_at_the_labelled_batch(proxy: Proxy) -> None:
    model, probe = model_of("autoformer"), probe_of("autoformer")
    brighter = replace(probe, images=probe.images * 1.5, labels=(probe.labels + 1) % 10)
    values = {score(proxy, model, each).mean for each in (probe, brighter)}
    assert (len(values) == 2) == proxy.sees.startswith("labelled")


def test_they_are_listed_by_the_alphabet() -> None:
    """Whichever file was imported first."""
    assert list(PROXIES) == sorted(PROXIES)
    assert all(name == proxy.name for name, proxy in PROXIES.items())


@each_proxy
def test_everything_is_documented(proxy: Proxy) -> None:
    for field in DOCUMENTED:
        text = getattr(proxy, field)
        assert text.strip() == text
        assert text
        assert "\n" not in text
    if DOCS.exists():
        assert f"`{proxy.name}`" in DOCS.read_text()
