"""What every proxy must do, on a tiny net of every family: a number or a reason, no chance of its own, no traces, and
a response to every size gene."""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from families.small import randomise
from nasformer.errors import UserError
from nasformer.proxies import registry
from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import (
    CATALOGUE,
    Proxy,
    catalogue,
    get_proxies,
    list_proxies,
    register_proxy,
)
from nasformer.proxies.scoring import Score, Scorer, score_model

from .spaces import SPACES, members, pairs

PROXIES = list_proxies()
DOCS = Path(__file__).parents[2] / "docs" / "proxies.md"

each_proxy = pytest.mark.parametrize("proxy", PROXIES.values(), ids=lambda proxy: proxy.name)
QUICK = ("autoformer", "trionet")  # tokens and maps; with the other families every proxy runs in `make slow`
each_family = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in QUICK else pytest.mark.slow) for family in SPACES]
)


@cache
def model_of(family: str) -> nn.Module:
    """A small net of the family, with attention where it has a choice; shared, so no test may change it."""
    torch.manual_seed(0)
    space = SPACES[family]
    return randomise(space.build(members(space, {})[-1]))  # in training mode, as models come


def probe_of(family: str, seed: int = 0) -> Probe:
    return noise_probe(SPACES[family].image_shape, num_classes=4, batch_size=4, seed=seed)


def score(proxy: Proxy, model: nn.Module, probe: Probe) -> Score:
    return score_model(model, [proxy.name], probe)[proxy.name]


@cache
def first_score(name: str, family: str) -> tuple[Score, list[str]]:
    """The score of a model in training mode, and what it has left changed that it should not."""
    model, probe = model_of(family), probe_of(family)
    torch.manual_seed(1)
    before = state(model, probe)
    found = score(PROXIES[name], model, probe)
    return found, [part for part, value in state(model, probe).items() if value != before[part]]


def state(model: nn.Module, probe: Probe) -> dict[str, Any]:
    """All that may be changed."""
    tensors = [*model.state_dict().values(), probe.images, probe.labels, torch.get_rng_state()]
    return {
        "tensors": [tensor.numpy().tobytes() for tensor in tensors],
        "modes": [module.training for module in model.modules()],
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "gradients": [weight.grad for weight in model.parameters()],
        "hooks": [
            len(getattr(module, name))
            for module in model.modules()
            for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        ],
        "types": [type(module) for module in model.modules()],
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
    }


@each_family
@each_proxy
def test_a_finite_number_or_a_reason_and_no_traces(proxy: Proxy, family: str) -> None:
    found, traces = first_score(proxy.name, family)
    assert traces == []
    assert found.seconds > 0
    if found.reason:
        assert found.values == ()
        assert math.isnan(found.mean)
    else:
        (value,) = found.values
        assert type(value) is float
        assert math.isfinite(value)


@each_family
@each_proxy
def test_the_same_every_time_in_training_mode_and_for_inference(proxy: Proxy, family: str) -> None:
    """Also with frozen weights, and whatever was drawn before: stochastic depth adds no noise."""
    frozen = copy.deepcopy(model_of(family)).eval().requires_grad_(False)
    torch.manual_seed(2)
    assert score(proxy, frozen, probe_of(family)).values == first_score(proxy.name, family)[0].values


SATURATED = {"swap": "four images have no more than 16 patterns, and all of them may occur"}


@each_family
@each_proxy
def test_chance_comes_from_the_seed(proxy: Proxy, family: str) -> None:
    """Another seed, another value, for those that say that they see chance; the others do not change."""
    if proxy.name in SATURATED:
        pytest.skip(SATURATED[proxy.name])
    first, _ = first_score(proxy.name, family)
    by_chance = proxy.sees.startswith(("noise", "labelled")) or not proxy.init.startswith("own")
    by_chance = by_chance and not first.reason  # what does not apply has no value to change
    by_chance = by_chance and proxy.name != "regions"  # a whole number: few images never share a region
    assert (score(proxy, model_of(family), probe_of(family, seed=1)).values != first.values) == by_chance


@each_proxy
def test_only_a_proxy_that_says_so_reads_the_labelled_batch(proxy: Proxy) -> None:
    if proxy.name in SATURATED:
        pytest.skip(SATURATED[proxy.name])
    model, probe = model_of("autoformer"), probe_of("autoformer")
    brighter = replace(probe, images=probe.images * 1.5, labels=(probe.labels + 1) % 4)
    values = {found.mean for found in (first_score(proxy.name, "autoformer")[0], score(proxy, model, brighter))}
    assert (len(values) == 2) == proxy.sees.startswith("labelled")


# Size genes that a proxy does not respond to by design, as a pattern of their names, with the reason.
BLIND = {
    "depth": (r"(?!.*depth)", "counts blocks and nothing else"),
    "regions": (r"", "counts images that have a region of their own, and in all but the smallest nets each has"),
    "stream": (r"(?!.*(depth|embed_dim|base_dim)|num_heads\.stage)", "adds up widths of blocks (PiT's is by heads)"),
    "stream-fit": (
        r"(depth|blocks\.depth|.*(ibn|conv|local|axial)\.)",
        "is constant far from 13.5 blocks, and knows only attention and MLPs of transformers",
    ),
    "az_progressivity": (r".*depth", "is the smallest step between two blocks; a further block need not be it"),
    "swap": (r"", SATURATED["swap"]),
}
NOISE = 1e-6  # of a score in single precision


@pytest.mark.parametrize(
    "family",
    # ESFormer has the kinds of blocks that scores were blind to, but takes ten seconds.
    [pytest.param(family, marks=() if family == "autoformer" else pytest.mark.slow) for family in SPACES],
)
def test_scores_respond_to_every_size_gene(family: str) -> None:
    """With initial gains near 0, or batch norms without statistics, whole blocks would go unseen."""
    space, genes = SPACES[family], list(pairs(SPACES[family]))
    archs = list(dict.fromkeys(arch for _, *pair in genes for arch in pair))
    rows = dict(zip(archs, Scorer(space, list(PROXIES), batch_size=4).score_many(archs), strict=True))
    blind = {
        (name, gene)
        for name in PROXIES
        for gene, small, large in genes
        if not differ(rows[small][name], rows[large][name])
    }
    by_design = {(name, gene) for name, (pattern, _) in BLIND.items() for gene, *_ in genes if re.match(pattern, gene)}
    assert blind - by_design == set(), "the score does not respond: a defect, or to be declared in BLIND with a reason"
    assert {entry for entry in by_design - blind if entry[0] in ("depth", "regions", "stream")} == set()


def differ(small: Score, large: Score) -> bool:
    """Whether two scores differ by more than rounding; a proxy that does not apply has nothing to tell."""
    if small.reason or large.reason:
        return True
    return abs(large.mean - small.mean) > NOISE * max(abs(small.mean), abs(large.mean))


# Registration and documentation


def test_they_are_listed_in_alphabetical_order() -> None:
    """Whichever file was imported first."""
    assert list(PROXIES) == sorted(PROXIES)
    assert all(name == proxy.name for name, proxy in PROXIES.items())


@each_proxy
def test_everything_is_documented(proxy: Proxy) -> None:
    for text in proxy.entry().to_dict().values():
        assert text.strip() == text
        assert text
        assert "\n" not in text
    if DOCS.exists():
        assert f"`{proxy.name}`" in DOCS.read_text()


def test_the_catalogue_is_the_registry() -> None:
    """After a change, `make catalogue` writes it anew."""
    entries = {name: proxy.entry() for name, proxy in PROXIES.items()}
    assert catalogue() == entries
    assert json.loads(CATALOGUE.read_text()) == {name: entry.to_dict() for name, entry in entries.items()}
    assert catalogue("snip,dss") == {name: entries[name] for name in ("snip", "dss")}


def test_the_catalogue_and_the_registry_need_no_torch() -> None:
    code = "import sys, nasformer.proxies.registry as registry; registry.catalogue(); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "timm", "scipy"} & set(found.stdout.split())


DOCUMENTED = {"formula": "1", "sees": "nothing", "higher": "nothing", "paper": "none"}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of a user's module that is registered as a proxy."""
    monkeypatch.setattr(registry, "_PROXIES", dict(PROXIES))

    @register_proxy("mine", **DOCUMENTED)
    def mine(model: nn.Module, probe: Probe) -> float:
        return 1.0

    return mine


def test_a_plugin_registers_a_proxy(plugin: Any) -> None:
    (proxy,) = get_proxies("mine")
    assert proxy.score is plugin
    assert catalogue("mine")["mine"].formula == "1"
    register_proxy("mine", **DOCUMENTED)(plugin)  # as when its module is imported again


@pytest.mark.parametrize("name", ["mine", "dss"])
def test_a_name_that_another_function_has_is_refused(plugin: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"there is a proxy named '{name}' already"):
        register_proxy(name, **DOCUMENTED)(lambda model, probe: 2.0)
    assert get_proxies(name)[0].score is not None


def test_a_built_in_name_is_taken_before_its_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PROXIES", {})
    with pytest.raises(UserError, match="there is a proxy named 'dss' already"):
        register_proxy("dss", **DOCUMENTED)(lambda model, probe: 2.0)
