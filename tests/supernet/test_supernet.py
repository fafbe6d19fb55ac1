"""The supernet: what it computes by slices is what the extracted model computes, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families.small import FAMILIES, each_arch, each_family, images, randomise, some_archs
from nasformer.families.autoformer import AutoFormer, declare
from nasformer.models.sharing import SharingRule
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import corners
from nasformer.supernet.supernet import Supernet
from supernet.toy import alternatives_space, toy_space, toy_supernet


@cache
def shared_supernet(family: str) -> Supernet:
    """For tests that leave its weights alone."""
    return randomise(Supernet(FAMILIES[family]))


def run(model: Callable[..., Tensor], x: Tensor, *arch: Arch) -> Tensor:
    """A forward pass whose stochastic depth is the same each time."""
    torch.manual_seed(0)
    return model(x, *arch)


def gradients(module: nn.Module, prefix: str = "") -> dict[str, Tensor | None]:
    return {name.removeprefix(prefix): weight.grad for name, weight in module.named_parameters()}


# Slices and the extracted model


@each_arch
def test_sliced_equals_extracted(space: Space, arch: Arch) -> None:
    supernet, x = shared_supernet(space.model.family), images(space)
    model = supernet.extract(arch)
    with torch.no_grad():
        for training in (False, True):
            output = run(supernet.train(training), x, arch)
            assert torch.equal(output, run(model.train(training), x))
            assert output.isfinite().all()


@each_family
def test_gradients_flow_into_the_slices_and_nowhere_else(space: Space) -> None:
    arch, x = space.root.smallest(), images(space, batch=4)
    supernet = shared_supernet(space.model.family).train()
    supernet.zero_grad()
    model = supernet.extract(arch)
    run(supernet, x, arch).square().mean().backward()
    run(model, x).square().mean().backward()
    expected, found = gradients(model), gradients(supernet, "weights.")
    parts = {segment.name: supernet.skeleton(segment).parts for segment in space.plan(arch)}
    rules = {f"{segment}.{part.name}": part.rule for segment in parts for part in parts[segment]}
    for name, gradient in found.items():
        if name not in expected:  # a block that this arch does not have
            assert gradient is None, name
        else:
            check_gradient(name, gradient, expected[name], rules[name])
    supernet.zero_grad()


def check_gradient(name: str, found: Tensor | None, expected: Tensor | None, rule: SharingRule) -> None:
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(rule(found, expected.shape), expected, msg=name)
    used = rule(torch.arange(found.numel()).reshape(found.shape), expected.shape).flatten()
    assert len(used.unique()) == len(used), name
    rest = found.flatten().index_fill(0, used, 0)
    assert not rest.any(), name


def test_gradients_of_two_archs_add_up() -> None:
    supernet = toy_supernet()
    x, archs = images(supernet.space), (supernet.space.root.smallest(), supernet.space.root.largest())
    apart = []
    for arch in archs:
        supernet.zero_grad()
        supernet(x, arch).sum().backward()
        apart.append(gradients(supernet))
    supernet.zero_grad()
    sum(supernet(x, arch).sum() for arch in archs).backward()
    for name, together in gradients(supernet).items():
        parts = [part[name] for part in apart if part[name] is not None]
        torch.testing.assert_close(together, sum(parts), msg=name)


def test_extracted_model_owns_its_weights() -> None:
    supernet = toy_supernet()
    x, arch = images(supernet.space), supernet.space.sample(seed=3)
    model, before = supernet.extract(arch), supernet(x, arch)
    assert not model.training
    assert all(weight.requires_grad for weight in model.parameters())
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    assert torch.equal(supernet(x, arch), before)
    assert supernet.train().extract(arch).training


@pytest.mark.parametrize(("sharing", "expected"), [("by_head", [0, 1, 4, 5, 8, 9]), ("contiguous", [0, 1, 2, 3, 4, 5])])
def test_bias_of_qkv_is_sliced_by_head_or_contiguously(sharing: str, expected: list[int]) -> None:
    """2 heads of 2: entries 0-3 are q, 4-7 k, 8-11 v. What does the net with 1 head use?"""
    options = {"img_size": 8, "patch_size": 8, "head_dim": 2, "qkv_bias_sharing": sharing}
    space = Space("one", AutoFormer, declare((8,), (1, 2), (1.0,), (1,)), options)
    supernet = Supernet(space)
    weights = dict(supernet.weights.named_parameters())
    with torch.no_grad():
        weights["blocks.0.attn.qkv.bias"].copy_(torch.arange(12))
        weights["blocks.0.attn.qkv.weight"].copy_(torch.arange(12)[:, None].expand(-1, 8))
    smallest, largest = supernet.slices(space.root.smallest()), supernet.slices(space.root.largest())
    assert smallest["blocks.0.attn.qkv.bias"].tolist() == expected
    assert smallest["blocks.0.attn.qkv.weight"][:, 0].tolist() == [0, 1, 4, 5, 8, 9]  # by head either way
    assert largest["blocks.0.attn.qkv.bias"].tolist() == list(range(12))


# The shared weights


@pytest.mark.parametrize("space", [*FAMILIES.values(), alternatives_space()], ids=lambda space: space.name)
def test_weights_are_those_of_the_largest_members(space: Space) -> None:
    supernet = Supernet(space)
    shared = {name: weight.shape for name, weight in supernet.weights.named_parameters()}
    needed: dict[str, torch.Size] = {}
    with torch.device("meta"):
        for corner in corners(space.root):
            for name, weight in space.build(corner).named_parameters():
                needed[name] = max(needed.get(name, weight.shape), weight.shape, key=torch.Size.numel)
    assert shared == needed
    for arch in some_archs(space, count=5).values():
        assert set(supernet.slices(arch)) <= set(shared)


def test_alternatives_have_weights_of_their_own() -> None:
    space = alternatives_space()
    supernet = randomise(Supernet(space)).eval()
    names = {name.rpartition(".")[0] for name, _ in supernet.weights.named_parameters()}
    assert names >= {f"blocks.{index}.{kind}" for index in (0, 1) for kind in ("norm", "mlp.fc1", "mlp.fc2")}
    x = images(space)
    for arch in space.root.enumerate():
        assert torch.equal(supernet(x, arch), supernet.extract(arch)(x)), arch


def test_seed_decides_the_weights_and_leaves_other_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    states = [Supernet(toy_space(), seed=seed).state_dict() for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(states[0][name], weight) for name, weight in states[1].items())
    assert not torch.equal(states[0]["weights.head.fc.weight"], states[2]["weights.head.fc.weight"])


def test_building_a_skeleton_draws_no_random_numbers() -> None:
    """Otherwise a training that was killed and went on would see other stochastic depth than one that ran through."""
    supernet = toy_supernet(drop_path_rate=0.5).train()
    x, arch = images(supernet.space, batch=8), supernet.space.root.largest()
    assert not supernet.skeletons
    assert torch.equal(run(supernet, x, arch), run(supernet, x, arch))


def test_repr_is_short_and_html_is_escaped() -> None:
    supernet = toy_supernet()
    params = sum(weight.numel() for weight in supernet.parameters())
    assert repr(supernet) == f"Supernet('toy', {params:,} shared parameters, cpu)"
    hostile = Supernet(replace(toy_space(), name="<script>", about="a & b"))
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()
    assert f"{params:,} shared parameters, cpu" in hostile._repr_html_()


def test_no_weight_decay_names_shared_weights() -> None:
    supernet = toy_supernet()
    assert supernet.no_weight_decay() == {"weights.patch_embed.pos_embed", "weights.patch_embed.cls_token"}
    assert supernet.no_weight_decay() <= {name for name, _ in supernet.named_parameters()}


# Copies, types, compilation


@pytest.mark.parametrize("compiled", [False, True])
def test_deep_copy(compiled: bool) -> None:
    supernet = randomise(Supernet(alternatives_space())).eval()
    if compiled:
        supernet.compile(backend="eager")
    x, arch = images(supernet.space), supernet.space.root.smallest()
    before = supernet(x, arch)
    twin = copy.deepcopy(supernet)
    assert not twin.skeletons  # compiled code is not copied
    assert torch.equal(twin(x, arch), before)
    randomise(twin)
    assert not torch.equal(twin(x, arch), before)
    assert torch.equal(supernet(x, arch), before)


def test_state_dict_round_trip() -> None:
    supernet, other = toy_supernet(), Supernet(toy_space(), seed=1).eval()
    x, arch = images(supernet.space), supernet.space.sample(seed=1)
    assert not torch.equal(other(x, arch), supernet(x, arch))
    other.load_state_dict(supernet.state_dict())
    assert torch.equal(other(x, arch), supernet(x, arch))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.bfloat16, 0.2)])
def test_other_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    supernet = toy_supernet()
    x, arch = images(supernet.space), supernet.space.sample(seed=1)
    expected = supernet(x, arch)
    supernet.to(dtype)
    found = supernet(x.to(dtype), arch)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(supernet.extract(arch)(x.to(dtype)), found)
    supernet.train()(x.to(dtype), arch).sum().backward()
    assert {weight.grad.dtype for weight in supernet.parameters() if weight.grad is not None} == {dtype}


def test_other_device() -> None:
    """The meta device stands for a GPU: what the layers keep beside their weights must move along."""
    supernet = toy_supernet()
    x, arch = images(supernet.space), supernet.space.sample(seed=1)
    supernet(x, arch)
    supernet.to("meta")
    assert supernet(x.to("meta"), arch).device == supernet.device == torch.device("meta")
    assert {skeleton.device.type for skeleton in supernet.skeletons.values()} == {"meta"}
    assert {tensor.device.type for tensor in supernet.extract(arch).state_dict().values()} == {"meta"}


def test_one_skeleton_and_one_compiled_graph_for_each_kind_of_segment() -> None:
    supernet, graphs = toy_supernet(drop_path_rate=0.3).train(), list[Any]()
    x = images(supernet.space)
    block, other = {"num_heads": 2, "mlp_ratio": 3.0}, {"num_heads": 1, "mlp_ratio": 2.0}
    archs = [
        supernet.space.arch({"embed_dim": 40, "blocks": blocks})
        for blocks in ([block, block, other], [other, block, block, other])
    ]
    expected = [run(supernet, x, arch) for arch in archs]
    kinds = {segment.kind for arch in archs for segment in supernet.space.plan(arch)}
    assert len(kinds) == 5  # stem, two kinds of blocks, norm and head
    assert set(supernet.skeletons) == kinds

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    supernet.compile(backend=backend)
    with torch._dynamo.config.patch(recompile_limit=1):  # no layer needs a second graph
        for arch, output in zip(archs, expected, strict=True):
            torch.testing.assert_close(run(supernet, x, arch), output)
    assert set(supernet.skeletons) == kinds
    assert len(graphs) == len(kinds)  # blocks with other drop-path rates and at other places share theirs


def test_compiled_gradients_are_the_same() -> None:
    supernet = toy_supernet()
    x, arch = images(supernet.space), supernet.space.root.smallest()
    supernet(x, arch).square().sum().backward()
    plain = gradients(supernet)
    supernet.zero_grad()
    supernet.compile(backend="aot_eager")
    supernet(x, arch).square().sum().backward()
    compiled = gradients(supernet)
    torch.testing.assert_close(compiled, plain)
    assert any(gradient is None for gradient in compiled.values())
