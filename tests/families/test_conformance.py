"""What every family must do, on one small space of each; closed forms on all spaces. New families need no line here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from timm.models import group_parameters
from timm.models._features import FeatureGetterNet
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from families.small import FAMILIES, each_arch, each_space, image_size, images, randomise
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.registry import list_spaces
from nasformer.models.space import Space
from nasformer.space.arch import Arch


@pytest.fixture(scope="module", params=list(FAMILIES))
def space(request: pytest.FixtureRequest) -> Space:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def template(space: Space) -> Backbone:
    return randomise(space.build(space.root.smallest())).eval()


@pytest.fixture
def model(template: Backbone) -> Backbone:
    """The smallest net of the space with random weights, in evaluation mode, for the test to do with as it likes."""
    return copy.deepcopy(template)


@pytest.fixture(scope="module")
def x(space: Space) -> Tensor:
    return images(space)


def numel(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(space: Space, arch: Arch) -> Backbone:
    """The model without its numbers: quick to build, whatever its size."""
    with torch.device("meta"):
        return space.build(arch).eval()


def counted_macs(model: Backbone, x: Tensor) -> float:
    """By FLOP counter, on the meta device: there every version of torch counts fused attention.

    Local attention is counted as its formula has it: what runs multiplies more, in tiles, because that is faster.
    """
    with patch("nasformer.layers.resnet.local_attention", unfolded), FlopCounterMode(display=False) as counter:
        model(x.to("meta"))
    return counter.get_total_flops() / 2


def unfolded(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int, dropout: float) -> Tensor:
    """Local attention with every window copied out, but for its borders, which no count can see."""
    k, v = (nn.functional.unfold(part.flatten(1, 2), window, padding=window // 2) for part in (k, v))
    k, v = (part.unflatten(1, (q.shape[1], -1, window**2)) for part in (k, v))
    content = torch.einsum("bhdn,bhdpn->bhpn", q.flatten(3), k)
    place = torch.einsum("bhdn,hdp->bhpn", q.flatten(3), positions.flatten(2))
    return torch.einsum("bhpn,bhdpn->bhdn", (content + place).softmax(2), v).unflatten(3, q.shape[3:])


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of a loss in training mode, with the same stochastic depth each time."""
    model.train()
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    model(x).square().mean().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing, f"no gradient for {missing}"
    return {name: parameter.grad for name, parameter in model.named_parameters()}


# Cost


def check_cost(space: Space, arch: Arch) -> None:
    cost, model = space.cost(arch), on_meta(space, arch)
    assert cost.params == numel(model)
    assert cost.macs + cost.position_macs == counted_macs(model, images(space, batch=1))
    assert space.costs(arch)["macs"] == cost.macs


@each_arch
def test_closed_form_counts_the_built_model(space: Space, arch: Arch) -> None:
    check_cost(space, arch)


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_counts_the_built_model_at_full_size(family: str) -> None:
    full = next(space for space in list_spaces().values() if space.model.family == family)
    check_cost(full, full.sample(seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_spaces())
def test_closed_form_counts_the_built_model_in_every_space(name: str) -> None:
    space = list_spaces()[name]
    for arch in (space.root.smallest(), space.root.largest(), space.sample(seed=0)):
        check_cost(space, arch)


@pytest.mark.parametrize("name", list_spaces())
def test_closed_form_counts_the_parameters_of_every_space(name: str) -> None:
    space = list_spaces()[name]
    arch = space.sample(seed=0)
    assert space.cost(arch).params == numel(on_meta(space, arch))


@pytest.mark.parametrize("name", list_spaces())
def test_presets_can_be_costed(name: str) -> None:
    space = list_spaces()[name]
    for label in space.presets:
        cost = space.cost(space.arch(label))
        assert cost.params > 0, label
        assert cost.macs > 0, label


@each_space
def test_largest_costs_most(space: Space) -> None:
    smallest, largest = space.cost(space.root.smallest()), space.cost(space.root.largest())
    for seed in range(20):
        cost = space.cost(space.sample(seed))
        assert smallest.params <= cost.params <= largest.params
        assert smallest.macs <= cost.macs <= largest.macs


# The network


@each_arch
def test_every_parameter_learns_and_evaluation_is_deterministic(space: Space, arch: Arch) -> None:
    model, x = space.build(arch), images(space, batch=4)
    assert numel(model) == space.cost(arch).params
    found = gradients(model, x)
    assert not [name for name, gradient in found.items() if not gradient.isfinite().all()]
    assert not [name for name, gradient in found.items() if not gradient.any()]
    with torch.no_grad():
        logits = model.eval()(x)
        assert logits.shape == (len(x), model.num_classes)
        assert torch.equal(model(x), logits)
        torch.testing.assert_close(model(x[1:]), logits[1:])  # images do not see each other


def test_deep_copy_is_equal_and_apart(model: Backbone, x: Tensor) -> None:
    twin = copy.deepcopy(model)
    logits = model(x)
    assert torch.equal(twin(x), logits)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(model(x), logits)


def test_arch_and_options_rebuild_the_model(model: Backbone, x: Tensor) -> None:
    rebuilt = type(model)(model.arch, **model.options).eval()
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(rebuilt(x), model(x))


def test_checkpointing_changes_no_gradient(model: Backbone, x: Tensor) -> None:
    plain = gradients(model, x)
    model.set_grad_checkpointing()
    calls: list[int] = []
    model.get_submodule(model.feature_info[0]["module"]).register_forward_pre_hook(lambda *_: calls.append(1))
    again = gradients(model, x)
    assert len(calls) == 2  # once forward, once more for backward
    for name, gradient in again.items():
        torch.testing.assert_close(gradient, plain[name], msg=name)
    model.set_grad_checkpointing(False)
    gradients(model, x)
    assert len(calls) == 3


def test_export(model: Backbone, x: Tensor) -> None:
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))


# timm's interface


def test_features_and_head_make_the_forward(model: Backbone, x: Tensor) -> None:
    features = model.forward_features(x)
    assert torch.equal(model.forward_head(features), model(x))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (len(x), model.num_features)
    assert torch.equal(model.get_classifier()(pooled), model(x))


def test_reset_classifier(model: Backbone, space: Space, x: Tensor) -> None:
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    for num_classes in (7, 0, 3):
        model.reset_classifier(num_classes)
        assert model.num_classes == num_classes
        assert torch.equal(model.forward_features(x), features)
        expected = (len(x), num_classes) if num_classes else pooled.shape
        assert model(x).shape == expected
        assert bool(list(model.get_classifier().parameters())) == bool(num_classes)
        rebuilt = on_meta(replace(space, options=model.options), model.arch)
        assert numel(model) == numel(rebuilt)  # the options went along
    model.reset_classifier(0)
    assert torch.equal(model(x), pooled)


def test_no_weight_decay_names_weights(model: Backbone) -> None:
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("coarse", [False, True])
def test_group_matcher_orders_layers_from_stem_to_head(model: Backbone, coarse: bool) -> None:
    groups = group_parameters(model, model.group_matcher(coarse))
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    units = [info["module"] for info in model.feature_info]  # the stages, or blocks where there are no stages
    if not coarse:
        units = [name for name in model.segment_names if "blocks." in name]
    assert len(groups) == len(units) + 2  # stem and head besides
    head = {name for name, _ in model.named_parameters() if name.startswith("head.")}
    assert head
    assert set(groups[max(groups)]) == head
    assert len(param_groups_layer_decay(model, layer_decay=0.7)) > len(model.feature_info)


def test_feature_info_tells_what_intermediates_are(model: Backbone, space: Space, x: Tensor) -> None:
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert len(maps) == len(model.feature_info)
    height, width = image_size(space)
    for info, feature_map in zip(model.feature_info, maps, strict=True):
        model.get_submodule(info["module"])
        rows, columns = height // info["reduction"], width // info["reduction"]
        assert feature_map.shape == (len(x), info["num_chs"], rows, columns)


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def test_intermediates_agree_with_each_other(model: Backbone, x: Tensor) -> None:
    features, maps = model.forward_intermediates(x)
    assert torch.equal(features, model.forward_features(x))
    assert same(model.forward_intermediates(x, intermediates_only=True), maps)
    tokens = model.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
    assert same(tokens, [feature_map.flatten(2).transpose(1, 2) for feature_map in maps])


def test_intermediates_by_index(model: Backbone, x: Tensor) -> None:
    maps = model.forward_intermediates(x, intermediates_only=True)
    last = len(maps) - 1
    for indices, expected in ((2, maps[-2:]), ([0, last], [maps[0], maps[-1]]), ([-1], maps[-1:]), ([-2], [maps[-2]])):
        assert same(model.forward_intermediates(x, indices, intermediates_only=True), expected), indices
    for wrong in ([last + 1], [-last - 2]):
        with pytest.raises(IndexError):
            model.forward_intermediates(x, wrong)
        with pytest.raises(IndexError):
            model.prune_intermediate_layers(wrong)


def test_normed_intermediates_end_in_the_features(model: Backbone, x: Tensor) -> None:
    features, (tokens,) = model.forward_intermediates(x, [-1], norm=True, output_fmt="NLC")
    if features.ndim == 4:
        features = features.flatten(2).transpose(1, 2)
    assert torch.equal(tokens, features[:, -tokens.shape[1] :])  # behind a class token, if there is one
    plain = model.forward_intermediates(x, [-1], output_fmt="NLC", intermediates_only=True)[0]
    assert torch.equal(tokens, plain) == (not numel(model.norm))  # ResNets end without a norm


def test_stop_early_spares_the_rest(model: Backbone, x: Tensor) -> None:
    maps = model.forward_intermediates(x, [0, 1], intermediates_only=True)
    calls: list[str] = []
    for info in model.feature_info:
        name = info["module"]
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    early = model.forward_intermediates(x, [0, 1], stop_early=True, intermediates_only=True)
    assert same(early, maps)
    assert calls == [info["module"] for info in model.feature_info[:2]]


def test_pruned_model_gives_the_same_intermediates(model: Backbone, x: Tensor) -> None:
    maps = model.forward_intermediates(x, intermediates_only=True)
    infos, full = model.feature_info, numel(model)
    start, end = (model.segment_names.index(info["module"]) for info in infos[-2:])
    other_width = infos[-2]["num_chs"] != model.num_features
    if other_width:  # neither the norm nor the head can stay
        end = len(model.segment_names)
        with pytest.raises(UserError, match="prune it too"):
            model.prune_intermediate_layers([0, -2], prune_head=False)
    dropped = sum(numel(model.get_submodule(name)) for name in model.segment_names[start + 1 : end + 1])
    assert model.prune_intermediate_layers([0, -2], prune_head=other_width) == [0, len(maps) - 2]
    assert numel(model) == full - dropped > 0
    assert model.feature_info == infos[:-1]
    assert same(model.forward_intermediates(x, [0, len(maps) - 2], intermediates_only=True), [maps[0], maps[-2]])
    assert model(x).shape == (len(x), model.num_classes or model.num_features)
    model.prune_intermediate_layers([0])
    assert model.num_classes == 0
    assert model(x).shape == (len(x), model.num_features)


def test_pruning_can_keep_the_head_and_drop_the_norm(model: Backbone, x: Tensor) -> None:
    full, norm = numel(model), numel(model.norm)
    model.prune_intermediate_layers(1, prune_norm=True, prune_head=False)
    assert full - numel(model) == norm
    assert norm in (0, 2 * model.num_features)
    (last,) = model.forward_intermediates(x, 1, intermediates_only=True)
    assert torch.equal(model.forward_intermediates(x, 1, norm=True, intermediates_only=True)[0], last)
    assert model(x).shape == (len(x), model.num_classes)


def test_timm_wraps_it_as_a_feature_extractor(model: Backbone, x: Tensor) -> None:
    maps = model.forward_intermediates(x, [0, 2], intermediates_only=True)
    reductions = [model.feature_info[index]["reduction"] for index in (0, 2)]
    extractor = FeatureGetterNet(model, out_indices=[0, 2])
    assert same(extractor(x), maps)
    assert extractor.feature_info.reduction() == reductions


# Archs


@each_arch
def test_arch_survives_json(space: Space, arch: Arch, tmp_path: Path) -> None:
    file = tmp_path / "arch.json"
    file.write_text(arch.to_json())
    for source in (arch, arch.to_dict(), arch.to_json(), file, str(file)):
        assert space.arch(source) == arch


@each_space
def test_plan_takes_the_options_of_the_space(space: Space) -> None:
    assert set(space.options) <= set(space.model.default_options())
    names = [segment.name for segment in space.plan(space.root.largest())]
    assert len(set(names)) == len(names)
    assert names[-1] == "head"
