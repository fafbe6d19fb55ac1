"""DSS against its formula written out, many at once against one by one, and the published magnitudes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from families.small import golden_path, randomise
from nasformer.families.autoformer import declare as declare_autoformer
from nasformer.families.pit import declare as declare_pit
from nasformer.models.base import Segment
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.proxies import dss as module
from nasformer.proxies.dss import dss, dss_many, is_projection
from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.ranking import read_table
from nasformer.proxies.registry import Inapplicable, get_proxies
from nasformer.proxies.scoring import Scorer
from nasformer.proxies.untrained import SideBySide, UntrainedLayers
from nasformer.space.arch import Arch
from nasformer.utils.statistics import kendall

ATTENTION, MLP = ("attn.qkv", "attn.proj"), ("mlp.fc1", "mlp.fc2")
MICRO: dict[str, Any] = {"img_size": 16, "patch_size": 4, "num_classes": 10}
WIDE = {"head_dim": None, "relative_position": False}

SPACES: dict[str, Space] = {
    "autoformer": get_space("autoformer-micro", **MICRO),
    "autoformer without relative positions": get_space("autoformer-micro", **MICRO, relative_position=False),
    "autoformer as a plain vit": replace(
        get_space("autoformer-micro", **MICRO, **WIDE), root=declare_autoformer((24, 48), (2, 3), (2, 3), (2, 3))
    ),
    "pit": replace(
        get_space("pit-tiny", img_size=17, patch_size=3, stride=2, num_classes=10),
        root=declare_pit((8, 12), (2, 4), depth=((1, 2), (1,), (1, 2)), mlp_ratio=(2, 4)),
    ),
}
each_space = pytest.mark.parametrize("space", [pytest.param(space, id=name) for name, space in SPACES.items()])


def probe_for(space: Space) -> Probe:
    return noise_probe((3, space.options["img_size"], space.options["img_size"]), num_classes=10, batch_size=2)


def nuclear(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix.detach().double(), "nuc").item()


def by_layer(model: nn.Module, image: Tensor) -> dict[str, float]:
    """Every term of the formula, by the name of its weight."""
    model.zero_grad()
    model(image).sum().backward()
    terms = {}
    for name, weight in model.named_parameters():
        layer = name.removesuffix(".weight")
        assert weight.grad is not None
        if name.endswith(".weight") and layer.endswith(ATTENTION):
            terms[layer] = nuclear(weight.grad) * nuclear(weight)
        elif name.endswith(".weight") and layer.endswith(MLP):
            terms[layer] = (weight.grad.double() * weight.detach().double()).abs().sum().item()
    return terms


def autoformer() -> nn.Module:
    return SPACES["autoformer"].build(SPACES["autoformer"].sample(3))


def pit() -> nn.Module:
    return SPACES["pit"].build(SPACES["pit"].root.smallest())


def vit() -> nn.Module:
    return timm.create_model("test_vit", img_size=16, patch_size=4, num_classes=10)


MODELS: dict[str, Callable[[], nn.Module]] = {"autoformer": autoformer, "pit": pit, "timm's vit": vit}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    """With weights of both signs everywhere, and far from their start."""
    torch.manual_seed(0)
    return randomise(MODELS[request.param]().eval())


def probe_of(model: nn.Module) -> Probe:
    side = getattr(model, "options", {"img_size": 16})["img_size"]
    return noise_probe((3, side, side), num_classes=10, batch_size=2)


def test_the_formula(model: nn.Module) -> None:
    probe = probe_of(model)
    terms = by_layer(model, probe.ones())
    assert len(terms) == 4 * sum(name.endswith("attn.qkv") for name, _ in model.named_modules())
    assert dss(model, probe) == pytest.approx(sum(terms.values()), rel=1e-5)


def test_the_published_code_loses_exactly_the_qkv_term(model: nn.Module) -> None:
    probe = probe_of(model)
    terms = by_layer(model, probe.ones())
    kept = [value for name, value in terms.items() if not name.endswith("qkv")]
    assert dss(model, probe, is_projection) == pytest.approx(sum(kept), rel=1e-5)
    ours, code = (proxy.score(model, probe) for proxy in get_proxies("dss,dss-code"))
    assert ours - code == pytest.approx(sum(terms.values()) - sum(kept), rel=1e-5)
    assert ours > code


def test_weights_keep_their_signs(model: nn.Module) -> None:
    probe = probe_of(model)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    score = dss(model, probe)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    with torch.no_grad():
        for weight in model.parameters():
            weight.abs_()
    assert dss(model, probe) != pytest.approx(score, rel=0.05)


def test_only_attention_and_mlps_are_measured(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the head, not the patch embedding, not what joins two stages."""
    measured: list[int] = []
    real = torch.autograd.grad

    def watched(outputs: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        measured.extend(map(id, inputs))
        return real(outputs, inputs)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    dss(model, probe_of(model))
    names = {id(weight): name.removesuffix(".weight") for name, weight in model.named_parameters()}
    found = sorted(names[weight] for weight in measured)
    assert found == sorted(name for name in names.values() if name.endswith((*ATTENTION, *MLP)))
    others = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert set(others) - set(found), "the model should have other layers too"


def test_the_images_of_the_probe_are_not_looked_at(model: nn.Module) -> None:
    probe = probe_of(model)
    assert dss(model, probe) == dss(model, replace(probe, images=probe.images + 1, labels=probe.labels * 0, seed=5))


def test_a_net_without_attention_has_no_score() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    probe = noise_probe((3, 8, 8), num_classes=10, batch_size=2)
    for proxy in get_proxies("dss,dss-code"):
        with pytest.raises(Inapplicable, match=r"no attention with linear layers such as attn\.qkv"):
            proxy.score(net, probe)


def mixed(space: Space, count: int = 5) -> list[Arch]:
    """Small, large and random ones, one of them twice."""
    archs = [space.root.smallest(), space.root.largest(), *(space.sample(seed) for seed in range(count - 3))]
    assert len({len(space.plan(arch)) for arch in archs}) > 1, "they should be of different depth"
    return [*archs, archs[0]]


class Moved(UntrainedLayers):
    """Layers with all weights off their start, also those that start as a constant."""

    def draw(self, segment: Segment) -> nn.Module:
        return randomise(super().draw(segment))


@pytest.fixture(scope="module")
def nets() -> dict[str, SideBySide]:
    """Layers by space, made when they are first needed."""
    return {}


def lockstep(nets: dict[str, SideBySide], space: Space) -> SideBySide:
    key = f"{space.name} {dict(space.options)}"
    if key not in nets:
        nets[key] = SideBySide(Moved(space, seed=1))
    return nets[key]


@each_space
@pytest.mark.parametrize("name", ["dss", "dss-code"])
def test_many_at_once_are_each_scored_as_if_alone(
    space: Space, name: str, nets: dict[str, SideBySide], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.CHUNK, "cpu", 4)  # five archs: a chunk of four and one of one
    net, archs, probe = lockstep(nets, space), mixed(space), probe_for(space)
    (proxy,) = get_proxies(name)
    assert proxy.many is not None
    alone = [proxy.score(net.layers.model(arch), probe) for arch in archs]
    assert len(set(alone)) == 4
    assert proxy.many(net, archs, probe) == pytest.approx(alone, rel=1e-6)


@each_space
def test_scores_do_not_depend_on_the_company(
    space: Space, nets: dict[str, SideBySide], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, archs, probe = lockstep(nets, space), mixed(space), probe_for(space)
    one_by_one = dss_many(net, archs, probe)
    monkeypatch.setitem(module.CHUNK, "cpu", 5)
    together = dss_many(net, archs, probe)
    assert together == pytest.approx(one_by_one, rel=1e-6)
    assert dss_many(net, archs[::-1], probe)[::-1] == pytest.approx(together, rel=1e-6)


def test_on_a_cpu_a_score_is_the_same_in_any_company_to_the_last_bit(nets: dict[str, SideBySide]) -> None:
    space = SPACES["autoformer"]
    net, archs, probe = lockstep(nets, space), mixed(space), probe_for(space)
    assert dss_many(net, archs[::-1], probe)[::-1] == dss_many(net, archs, probe)


def test_running_together_changes_nothing_in_the_layers(nets: dict[str, SideBySide]) -> None:
    space = SPACES["autoformer"]
    net, archs, probe = lockstep(nets, space), mixed(space), probe_for(space)
    layers = {segment: net.layers.layer(segment) for arch in archs for segment in space.plan(arch)}
    before = {segment: copy.deepcopy(layer.state_dict()) for segment, layer in layers.items()}
    dss_many(net, archs, probe)
    for segment, layer in layers.items():
        assert net.layers.layer(segment) is layer
        assert all(torch.equal(weight, before[segment][name]) for name, weight in layer.state_dict().items())
        assert not any(weight.requires_grad or weight.grad is not None for weight in layer.parameters())
        assert not any(module._forward_hooks for module in layer.modules())


def test_a_trace_says_where_it_was_taken(nets: dict[str, SideBySide]) -> None:
    space = SPACES["autoformer"]
    archs = mixed(space)
    _, traces = lockstep(nets, space).run(archs, probe_for(space).ones(), is_projection)
    plans = [space.plan(arch) for arch in archs]
    for trace in traces:
        assert trace.name == f"{trace.segment.name}.attn.proj"
        assert trace.members == [index for index, plan in enumerate(plans) if trace.segment in plan]
        assert len(trace.input) == len(trace.output) == len(trace.members)
    found = sorted((trace.name, member) for trace in traces for member in trace.members)
    assert found == sorted(
        (f"{one.name}.attn.proj", index) for index, plan in enumerate(plans) for one in plan if "blocks" in one.name
    )


def test_the_published_magnitudes() -> None:
    """TF-TAS's own code, with its defect mended, gives for one random net of this shape (192 wide, 13 blocks, 224 px)
    qkv 57584, proj 30062, fc1 2239 and fc2 2266."""
    space = get_space("autoformer-tiny-mlp3")
    torch.manual_seed(0)
    model = space.build(space.arch("autoformer-t")).eval()
    probe = noise_probe((3, 224, 224), num_classes=1000, batch_size=1)
    terms = by_layer(model, probe.ones())
    total = {kind: sum(value for name, value in terms.items() if name.endswith(kind)) for kind in (*ATTENTION, *MLP)}
    published = {"attn.qkv": 57584, "attn.proj": 30062, "mlp.fc1": 2239, "mlp.fc2": 2266}
    for kind, value in published.items():
        assert value / 2 < total[kind] < value * 2, total
    diversity, saliency = (sum(total[kind] for kind in kinds) for kinds in (ATTENTION, MLP))
    assert 7 < diversity / saliency < 40, total
    assert dss(model, probe) == pytest.approx(diversity + saliency, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "targets"), [("autoformer", ["flower_kd"]), ("pit", ["c100_kd", "flower_kd"])])
def test_ranks_trained_nets_about_as_well_as_their_size(family: str, targets: list[str]) -> None:
    table = read_table(golden_path(f"ground_truth_{family}.json"))
    scores = [found["dss"] for found in Scorer(table.space, "dss", batch_size=1, seed=0).many(table.archs)]
    sizes = [table.space.cost(arch).params for arch in table.archs]
    for target in targets:
        ours, rival = (kendall(values, table.accuracy[target]) for values in (scores, sizes))
        assert ours == pytest.approx(rival, abs=0.05), target
