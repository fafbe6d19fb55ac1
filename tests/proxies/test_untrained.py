"""Untrained layers: the same for the same seed, nested, spread like a layer of their own size, and never changed."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import tiny
from families.small import SPACES, images
from nasformer.families.pit import declare as declare_pit
from nasformer.models.base import Segment
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.proxies import untrained as module
from nasformer.proxies.parts import record_calls, reset_gains
from nasformer.proxies.untrained import UntrainedLayers
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet

from .spaces import SPACES as TINY, members

SPACE = get_space("autoformer-micro", img_size=16, patch_size=8, num_classes=10)
PIT = replace(
    get_space("pit-tiny", img_size=17, patch_size=3, stride=2, num_classes=10),
    root=declare_pit((16, 32), (2, 4), depth=((1, 2), (2,), (1, 2)), mlp_ratio=(2, 4)),
)
HEAD = "head.fc.weight"
MANY = 2000  # numbers that a weight needs for its spread to be known to a few percent
FAMILIES = {space.model.family: space for space in SPACES.values()}


def net(*heads: int, width: int = 32, ratio: float = 2.0) -> Arch:
    return Arch.from_dict({"embed_dim": width, "blocks": [{"num_heads": h, "mlp_ratio": ratio} for h in heads]})


def weights(layer: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(layer.state_dict())


def spread(weight: Tensor) -> float:
    return weight.std(correction=0).item()


# Which weights


def test_the_same_seed_the_same_weights() -> None:
    arch, larger = SPACE.sample(0), SPACE.root.largest()
    first, again, other = (UntrainedLayers(SPACE, seed) for seed in (1, 1, 2))
    again.model(larger)  # what was made before does not matter
    tiny.assert_same(again.model(arch), first.model(arch))
    assert not torch.equal(other.model(arch).get_parameter(HEAD), first.model(arch).get_parameter(HEAD))


@pytest.mark.parametrize("space", [SPACE, PIT], ids=lambda space: space.name)
def test_archs_share_the_layers_that_they_have_in_common(space: Space) -> None:
    layers = UntrainedLayers(space)
    archs = [space.root.smallest(), space.root.largest(), *(space.sample(seed) for seed in range(6))]
    seen: dict[Segment, dict[str, Tensor]] = {}
    shared = 0
    for arch in archs:
        model = layers.model(arch)
        for segment in space.plan(arch):
            layer = model.get_submodule(segment.name)
            shared += segment in seen
            tiny.assert_same(layer, seen.setdefault(segment, weights(layer)))
    assert shared > 10


def test_each_place_has_weights_of_its_own() -> None:
    """Also where the kind of layer is the same."""
    model = UntrainedLayers(SPACE).model(net(2, 2, 2))
    for name in ("attn.qkv.weight", "mlp.fc1.weight", "attn.rel_pos_k.vertical"):
        found = [block for key, block in model.state_dict().items() if key.startswith("blocks") and key.endswith(name)]
        assert not any(torch.equal(a, b) for a, b in pairwise(found))
        assert len(found) == 3


def sliced(name: str, largest: Tensor, shape: torch.Size) -> Tensor:
    """The first entries along every dimension; of queries, keys and values each."""
    groups = 3 if ".qkv." in name else 1
    largest = largest.unflatten(0, (groups, -1))
    for dim, size in enumerate([groups, shape[0] // groups, *shape[1:]]):
        largest = largest.narrow(dim, 0, size)
    return largest.flatten(0, 1)


@pytest.mark.parametrize("space", [SPACE, PIT], ids=lambda space: space.name)
def test_a_small_layer_is_a_slice_of_a_large_one_up_to_a_factor(space: Space) -> None:
    layers = UntrainedLayers(space, seed=3)
    small, large = layers.model(space.root.smallest()), dict(layers.model(space.root.largest()).named_parameters())
    smaller = 0
    for name, weight in small.named_parameters():
        expected = sliced(name, large[name], weight.shape)
        smaller += weight.numel() < large[name].numel()
        if weight.any():
            factor = ((weight * expected).sum() / expected.square().sum()).detach()
            torch.testing.assert_close(weight, expected * factor, rtol=1e-4, atol=1e-7)
            assert factor > 0
        if space is SPACE and weight.numel() > MANY:  # each weight starts with a spread of 0.02, whatever the width
            assert factor.item() == pytest.approx(1, rel=0.05), name
    assert smaller > 20


# How large they are


def plain_slices(space: Space, arch: Arch) -> dict[str, Tensor]:
    return Supernet(space, seed=0).slices(arch)


@pytest.mark.parametrize("extreme", ["smallest", "largest"])
def test_weights_have_the_spread_of_a_layer_of_their_size(extreme: str) -> None:
    """PiT's start depends on the width, so a slice of a wider layer is too small."""
    arch: Arch = getattr(PIT.root, extreme)()
    torch.manual_seed(7)
    built = dict(PIT.build(arch).named_parameters())
    plain = plain_slices(PIT, arch)
    found = {
        name: weight for name, weight in UntrainedLayers(PIT).model(arch).named_parameters() if weight.numel() > MANY
    }
    assert len(found) > 10
    for name, weight in found.items():
        assert spread(weight) == pytest.approx(spread(built[name]), rel=0.06), name
        if extreme == "smallest" and name.endswith(("qkv.weight", "proj.weight", "fc1.weight", "fc2.weight")):
            assert spread(plain[name]) < 0.7 * spread(built[name]), name


@pytest.mark.parametrize("space", [SPACE, PIT], ids=lambda space: space.name)
@pytest.mark.parametrize("extreme", ["smallest", "largest"])
def test_constants_stay(space: Space, extreme: str) -> None:
    arch = getattr(space.root, extreme)()
    model, built = UntrainedLayers(space).model(arch), dict(space.build(arch).named_parameters())
    constants = {name for name, weight in built.items() if spread(weight) == 0}
    zero = {name for name in constants if name.endswith("bias")}
    assert "head.fc.bias" in zero
    assert {name for name in built if "norm" in name} <= constants
    if space is SPACE:
        assert {name for name in built if name.startswith("blocks") and name.endswith("bias")} <= zero
    for name, weight in model.named_parameters():
        if name in constants:
            assert torch.equal(weight, built[name]), name
            assert (weight == (0 if name in zero else 1)).all(), name
        else:
            assert spread(weight) > 0, name


def is_gain(name: str) -> bool:
    return "gamma" in name or ("norm" in name and name.endswith("weight"))


def test_gains_that_start_near_zero_are_one() -> None:
    """Of every kind, whichever layer they belong to; or the score of an untrained net would not see the branch."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma_1, self.layer_scale = (nn.Parameter(torch.full((3,), 1e-6)) for _ in range(2))
            self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.RMSNorm(3)])
            self.linear = nn.Linear(3, 3)

    net = Scaled()
    weight = net.linear.weight.detach().clone()
    for norm in net.norms:
        nn.init.zeros_(norm.weight)
    reset_gains(net)
    gains = [net.gamma_1, net.layer_scale, *(norm.weight for norm in net.norms)]
    assert all((gain == 1).all() for gain in gains)
    assert torch.equal(net.linear.weight, weight)


def test_batch_norms_have_the_statistics_of_noise() -> None:
    """With a mean of 0 and a variance of 1 they would do nothing, and what enters them is far smaller than that."""
    space = TINY["esformer"]
    arch = members(space, {})[-1]
    layers = UntrainedLayers(space)
    model, again = layers.model(arch), layers.model(arch)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert all(norm.running_var.mean() < 0.5 for norm in norms)
    with record_calls(model, lambda name, module: isinstance(module, nn.BatchNorm2d)) as calls:
        model(images(space, batch=8, seed=5))
    assert all(0.5 < call.output.std() < 2 for call in calls)
    tiny.assert_same(again, model)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    space = FAMILIES[family]
    layers, arch = UntrainedLayers(space), space.root.smallest()
    model, built = layers.model(arch), space.build(arch)
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in built.state_dict().items()
    }
    for (name, weight), other in zip(model.named_parameters(), built.parameters(), strict=True):
        if is_gain(name):
            assert (weight == 1).all(), name
        elif other.min() == other.max():
            assert torch.equal(weight, other), name
        elif weight.numel() > MANY:
            assert spread(weight) == pytest.approx(spread(other), rel=0.08), name
    logits = model(images(space))
    assert logits.isfinite().all()
    assert logits.std() > 0


# A net that is too large for the space


def test_a_larger_net_has_layers_of_its_own() -> None:
    preset = SPACE.presets["autoformer-t"]
    first, again, other = (UntrainedLayers(SPACE, seed).model(preset) for seed in (0, 0, 1))
    assert sum(weight.numel() for weight in first.parameters()) == SPACE.cost(preset).params
    tiny.assert_same(again, first)
    assert not torch.equal(other.get_parameter(HEAD), first.get_parameter(HEAD))
    queries = [weight for name, weight in first.named_parameters() if name.endswith("qkv.weight")]
    assert all(spread(weight) == pytest.approx(0.02, rel=0.05) for weight in queries)
    equal = [(a, b) for a in range(13) for b in range(a) if torch.equal(queries[a], queries[b])]
    assert not equal
    assert first(images(SPACE)).isfinite().all()


def test_only_the_layers_that_do_not_fit_are_its_own() -> None:
    layers, largest = UntrainedLayers(SPACE), SPACE.root.largest()
    blocks = largest.to_dict()["blocks"]
    deeper = Arch.from_dict({**largest.to_dict(), "blocks": [*blocks, blocks[0]]})
    model, inside = layers.model(deeper), layers.model(largest)
    for name, weight in inside.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name
    queries = [model.get_parameter(f"blocks.{index}.attn.qkv.weight") for index in range(len(blocks) + 1)]
    assert not any(torch.equal(queries[-1], other) for other in queries[:-1])


# What is kept


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_PARAMETERS", 30_000)
    layers = UntrainedLayers(SPACE)
    segments = list(dict.fromkeys(segment for seed in range(6) for segment in SPACE.plan(SPACE.sample(seed))))
    first: dict[Segment, dict[str, Tensor]] = {}
    for segment in segments:
        first[segment] = weights(layers.layer(segment))
        kept = sum(weight.numel() for layer in layers.cache.values() for weight in layer.parameters())
        assert layers.cached_parameters == kept
        assert kept <= 30_000 or list(layers.cache) == [segment]
        assert segment in layers.cache
    assert len(layers.cache) < len(segments) / 2
    for segment in segments:  # those that were dropped are made again, the same
        tiny.assert_same(layers.layer(segment), first[segment])


def test_what_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SPACE.plan(net(2, 2, 2))
    a, b, c = (segment for segment in plan if segment.name.startswith("blocks"))
    monkeypatch.setattr(module, "CACHED_PARAMETERS", 2 * a.cost().params)
    layers = UntrainedLayers(SPACE)
    for segment in (a, b, a, c):
        layers.layer(segment)
    assert list(layers.cache) == [a, c]


def test_a_layer_larger_than_the_limit_is_used_and_dropped_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = UntrainedLayers(SPACE).model(SPACE.sample(0))
    monkeypatch.setattr(module, "CACHED_PARAMETERS", 1)
    layers = UntrainedLayers(SPACE)
    tiny.assert_same(layers.model(SPACE.sample(0)), expected)
    assert len(layers.cache) == 1


def test_a_model_is_a_private_copy() -> None:
    layers, arch = UntrainedLayers(SPACE), SPACE.sample(0)
    model = layers.model(arch)
    before = weights(model)
    assert all(weight.requires_grad for weight in model.parameters())
    model.train()
    model(images(SPACE)).sum().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(5.0)
    after = layers.model(arch)
    tiny.assert_same(after, before)
    assert not any(part.training for part in after.modules())
    assert all(weight.grad is None for weight in after.parameters())
    for layer in layers.cache.values():
        assert not any(weight.requires_grad or weight.grad is not None for weight in layer.parameters())
        assert not any(part.training for part in layer.modules())


def test_no_global_chance() -> None:
    torch.manual_seed(4)
    dice = torch.get_rng_state()
    layers = UntrainedLayers(SPACE)
    for arch in (SPACE.sample(0), SPACE.presets["autoformer-t"]):
        layers.model(arch)
    assert torch.equal(torch.get_rng_state(), dice)
