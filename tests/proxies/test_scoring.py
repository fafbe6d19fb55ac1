"""Scorers: which weights, which probes, how often; and that the answers do not depend on anything else."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import nn

import tiny
from nasformer.data.loaders import Batches
from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.proxies import registry
from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import Inapplicable, list_proxies, register_proxy
from nasformer.proxies.scoring import Score, Scorer, data_probes, image_shape, merge, score_model
from nasformer.proxies.untrained import UntrainedLayers
from nasformer.space.arch import Arch
from nasformer.utils.device import cpu_threads

from .spaces import SPACES

SPACE = SPACES["autoformer"]
ARCHS = [SPACE.root.smallest(), SPACE.root.largest(), *(SPACE.sample(seed) for seed in range(3))]
PROXIES = list_proxies()
SOME = "dss,naswot,snip,params"  # by many at once, on noise, on a labelled batch, of the weights' number


def scorer(proxies: str = SOME, **settings: Any) -> Scorer:
    return Scorer(SPACE, proxies, **{"batch_size": 8, **settings})


def values(found: list[dict[str, Score]]) -> list[dict[str, tuple[float, ...]]]:
    return [{name: score.values for name, score in scores.items()} for scores in found]


@pytest.fixture
def fussy(monkeypatch: pytest.MonkeyPatch) -> str:
    """A proxy that does not apply to narrow nets."""
    monkeypatch.setattr(registry, "_PROXIES", dict(PROXIES))

    @register_proxy("fussy", formula="1", sees="nothing", higher="nothing", paper="none")
    def score(model: nn.Module, probe: Probe) -> float:
        if sum(weight.numel() for weight in model.parameters()) < 2_000:
            raise Inapplicable("the net is too narrow")
        return 1.0

    return "fussy"


def test_a_repeat_has_weights_and_images_of_its_own() -> None:
    score = scorer(repeats=3).score(ARCHS[2])
    for name in ("dss", "naswot", "snip"):
        assert len(set(score[name].values)) == 3
    assert score["params"].values == (SPACE.cost(ARCHS[2]).params,) * 3


def test_mean_and_spread_of_the_repeats() -> None:
    found = scorer("dss,params", repeats=4).score(ARCHS[2])["dss"]
    assert found.mean == pytest.approx(sum(found.values) / 4)
    assert found.std == pytest.approx(statistics.stdev(found.values))
    content = {"mean": found.mean, "std": found.std, "values": list(found.values), "seconds": found.seconds}
    assert found.to_dict() == content
    single = Score((2.5,), 0.1)
    assert (single.mean, single.std) == (2.5, 0.0)


def test_more_repeats_keep_the_first() -> None:
    one, three = (scorer(repeats=repeats).score(ARCHS[0]) for repeats in (1, 3))
    assert all(three[name].values[:1] == one[name].values for name in one)


def test_the_same_seed_the_same_scores_bit_for_bit() -> None:
    torch.manual_seed(1)
    first = scorer(repeats=2, seed=3).score_many(ARCHS)
    torch.manual_seed(2)
    assert values(scorer(repeats=2, seed=3).score_many(ARCHS)) == values(first)
    other = scorer(repeats=2, seed=4).score_many(ARCHS)
    assert all(a[name].mean != b[name].mean for a, b in zip(first, other, strict=True) for name in ("dss", "snip"))


def test_neither_order_nor_company_nor_history_matters() -> None:
    same = scorer()
    together = same.score_many(ARCHS)
    assert values(same.score_many(ARCHS[::-1]))[::-1] == values(together)
    assert values([same.score(arch) for arch in ARCHS]) == values(together)
    assert values([scorer(name).score(ARCHS[1]) for name in SOME.split(",")]) == [
        {name: score.values} for name, score in together[1].items()
    ]


def test_an_arch_is_made_of_untrained_layers() -> None:
    """So a score is that of the model made of them, and scoring leaves them as they are."""
    same = scorer()
    (trial,) = same.trials
    before = [trial.layers.model(arch) for arch in ARCHS[:3]]
    layers = UntrainedLayers(SPACE, trial.probe.seed)
    for arch in ARCHS[:3]:
        expected = score_model(layers.model(arch), SOME, trial.probe)
        found = same.score(arch)
        for name in expected:
            assert found[name].mean == pytest.approx(expected[name].mean, rel=1e-9)
    for arch, model in zip(ARCHS, before, strict=False):
        tiny.assert_same(trial.layers.model(arch), model)


def test_no_global_chance() -> None:
    torch.manual_seed(5)
    dice = torch.get_rng_state()
    scorer(repeats=2).score_many(ARCHS[:2])
    assert torch.equal(torch.get_rng_state(), dice)


def test_what_does_not_apply_is_nan_with_a_reason(fussy: str) -> None:
    narrow, wide = scorer(f"{fussy},params", repeats=2).score_many(ARCHS[:2])
    assert narrow[fussy].reason == "the net is too narrow"
    assert narrow[fussy].values == ()
    assert math.isnan(narrow[fussy].mean)
    assert narrow[fussy].std == 0
    reason = {"not_applicable": "the net is too narrow"}
    assert narrow[fussy].to_dict() | {"seconds": 0} == {"mean": None, "std": 0.0, "values": [], "seconds": 0, **reason}
    assert wide[fussy].values == (1.0, 1.0)
    assert wide[fussy].reason == ""
    assert math.isnan(scorer(fussy)(ARCHS[0])[fussy])


def test_what_does_not_apply_to_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(*_: Any) -> list[float]:
        raise Inapplicable("no such net has attention")

    dss = replace(PROXIES["dss"], many=many)
    monkeypatch.setattr(registry, "_PROXIES", PROXIES | {"dss": dss})
    for scores in scorer("dss", repeats=2).score_many(ARCHS[:2]):
        assert scores["dss"].reason == "no such net has attention"
        assert scores["dss"].values == ()


def test_a_value_that_is_not_finite_is_null_in_json() -> None:
    content = {"mean": None, "std": None, "values": [None, 1.0], "seconds": 0.5}
    assert Score((math.nan, 1.0), 0.5).to_dict() == content
    assert Score((math.inf,), 0.5).to_dict()["mean"] is None


@pytest.mark.parametrize("score", [Score((1.5, 2.5), 0.25), Score((), 0.5, "why not"), Score((3.0,), 1.0)])
def test_there_and_back_again(score: Score) -> None:
    assert Score.from_dict(json.loads(json.dumps(score.to_dict()))) == score


def test_what_is_not_finite_comes_back_as_nan() -> None:
    back = Score.from_dict(json.loads(json.dumps(Score((math.inf, 1.0), 0.5).to_dict())))
    assert math.isnan(back.values[0])
    assert back.values[1] == 1.0


def test_a_kernel_without_a_score_does_not_end_a_search_with_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1.0, math.nan])
    ntk = replace(PROXIES["ntk"], score=lambda model, probe: next(values))
    monkeypatch.setattr(registry, "_PROXIES", PROXIES | {"ntk": ntk})
    scores = scorer("ntk", repeats=2)(ARCHS[0])
    assert math.isnan(scores["ntk"])
    assert math.isnan(scores["ntk_std"])


def test_repeats_of_which_some_do_not_apply() -> None:
    """What some say counts; the reason stands only where none has anything to say."""
    some = merge([Score((), 1.0, "why not"), Score((3.0,), 2.0)])
    assert (some.values, some.seconds, some.reason) == ((3.0,), 1.5, "")
    assert merge([Score((), 1.0, "why not"), Score((), 1.0, "why not")]).reason == "why not"


def test_a_scorer_is_the_evaluation_of_a_search() -> None:
    once, thrice = scorer(), scorer(repeats=3)
    assert once(ARCHS[0]) == {name: score.mean for name, score in once.score(ARCHS[0]).items()}
    assert once.many(ARCHS) == [once(arch) for arch in ARCHS]
    scores = thrice.score(ARCHS[0])
    means = {name: score.mean for name, score in scores.items()}
    assert thrice(ARCHS[0]) == means | {f"{name}_std": score.std for name, score in scores.items()}


def test_settings_tell_scorers_apart() -> None:
    """A journal is refused where the scores in it are of another kind."""
    changes: list[dict[str, Any]] = [{"proxies": "dss"}, {"repeats": 2}, {"batch_size": 4}, {"seed": 1}]
    kinds = [scorer(**change).settings for change in [{}, *changes]]
    kinds.append(Scorer(SPACE.with_options(patch_size=2), SOME, batch_size=8).settings)
    assert scorer().settings == kinds[0]
    assert all(a != b for index, a in enumerate(kinds) for b in kinds[:index])


def test_no_archs_at_all() -> None:
    assert scorer().score_many([]) == []


def test_a_net_larger_than_the_space_is_scored_too() -> None:
    same = scorer()
    (trial,) = same.trials
    largest = SPACE.root.largest().to_dict()
    deeper = Arch.from_dict({**largest, "blocks": [*largest["blocks"], largest["blocks"][0]]})
    wider = Arch.from_dict({**largest, "embed_dim": largest["embed_dim"] + 1})
    more_heads = Arch.from_dict({**largest, "blocks": [{**block, "num_heads": 9} for block in largest["blocks"]]})
    archs = [deeper, wider, more_heads]
    for arch, found in zip(archs, same.score_many(archs), strict=True):
        assert not SPACE.root.contains(arch)
        assert found["params"].mean == SPACE.cost(arch).params
        expected = score_model(trial.layers.model(arch), SOME, trial.probe)
        for name in expected:
            assert found[name].mean == pytest.approx(expected[name].mean, rel=1e-6)
            assert found[name].mean != same.score(ARCHS[1])[name].mean


def test_the_shape_of_the_images() -> None:
    assert image_shape(SPACE) == ((3, 8, 8), 4)
    assert image_shape(get_space("autoformer-tiny", img_size=(32, 48), in_chans=1)) == ((1, 32, 48), 1000)
    assert image_shape(get_space("pit-tiny")) == ((3, 224, 224), 1000)


def test_noise_is_shown_where_there_is_no_data() -> None:
    probes = [trial.probe for trial in scorer("params", repeats=2, batch_size=5).trials]
    assert all(probe.images.shape == (5, 3, 8, 8) and probe.labels.shape == (5,) for probe in probes)
    assert not torch.equal(probes[0].images, probes[1].images)
    assert abs(probes[0].images.mean()) < 0.2


def digits(batch_size: int = 16, seed: int = 0) -> Batches:
    return Batches(tiny.DATA, tiny.PLAIN, batch_size, seed)


def test_probes_from_data() -> None:
    batches = digits()
    probes = data_probes(batches, batch_size=6, repeats=3, seed=2)
    assert len(probes) == 3
    for step, probe in enumerate(probes):
        images, targets = batches.train(step)
        assert torch.equal(probe.images, images[:6])
        assert torch.equal(probe.labels, targets.argmax(1)[:6])
        assert probe.images.shape == (6, 1, 8, 8)
    assert len({probe.seed for probe in probes}) == 3


def test_scores_from_data() -> None:
    shown, again, noise, other = (
        Scorer(tiny.SPACE, "snip,dss", batches=batches, batch_size=16, repeats=2).score(tiny.SMALLEST)
        for batches in (digits(), digits(), None, digits(seed=1))
    )
    assert shown["snip"].values == again["snip"].values
    assert len({score["snip"].mean for score in (shown, noise, other)}) == 3
    assert len({score["dss"].mean for score in (shown, noise, other)}) == 1  # it is shown ones, whatever there is


def test_a_model_of_others_is_left_untouched() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=16, patch_size=4, num_classes=10, drop_path_rate=0.3)
    model.blocks[0].requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    wanted = [weight.requires_grad for weight in model.parameters()]
    found = score_model(model, SOME, noise_probe((3, 16, 16), num_classes=10, batch_size=4))
    assert list(found) == SOME.split(",")
    assert all(math.isfinite(score.mean) for score in found.values())
    assert found["params"].mean == sum(weight.numel() for weight in model.parameters())
    tiny.assert_same(model.state_dict(), before)
    assert model.training
    assert [weight.requires_grad for weight in model.parameters()] == wanted
    assert all(weight.grad is None for weight in model.parameters())


def test_an_arch_of_a_hybrid_space_without_attention_says_so_beside_one_with_it() -> None:
    space = SPACES["esformer"]
    plain, mixed = space.root.smallest(), space.root.largest()
    by_dss = Scorer(space, "dss")
    scores = [row["dss"] for row in by_dss.score_many([plain, mixed])]
    assert math.isnan(scores[0].mean)
    assert "no attention" in scores[0].reason
    assert not scores[1].reason
    (trial,) = by_dss.trials
    assert scores[1].values == score_model(trial.layers.model(mixed), "dss", trial.probe)["dss"].values


def test_proxies_may_see_smaller_images_than_costs_are_counted_for() -> None:
    space = get_space("autoformer-micro")  # 32 px
    scorer, small = Scorer(space, "naswot", img_size=16), Scorer(space.with_options(img_size=16), "naswot")
    arch = space.sample(seed=0)
    assert scorer.score(arch)["naswot"].values == small.score(arch)["naswot"].values
    assert scorer.space.costs(arch) == space.costs(arch)
    assert scorer.settings["probe_img_size"] == 16
    with pytest.raises(UserError, match="macs go by the size of the images"):
        Scorer(space, "macs", img_size=16)


@pytest.fixture
def threads_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills up with the number of threads at each score by `params`."""
    seen: list[int] = []

    def score(model: nn.Module, probe: Probe) -> float:
        seen.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(registry, "_PROXIES", PROXIES | {"params": replace(PROXIES["params"], score=score)})
    return seen


def test_scores_are_computed_on_one_thread_unless_more_are_asked_for(threads_seen: list[int]) -> None:
    with cpu_threads(3):
        scorer("params").score(ARCHS[0])
        scorer("params", threads=2).score(ARCHS[0])
        assert torch.get_num_threads() == 3
    assert threads_seen == [1, 2]


def test_threads_are_a_setting_only_where_they_change_the_last_digits() -> None:
    assert scorer().settings == scorer(threads=1).settings
    assert scorer(threads=2).settings == {**scorer().settings, "threads": 2}
    one, two = (scorer("dss", threads=threads)(ARCHS[1]) for threads in (1, 2))
    assert one == pytest.approx(two, rel=1e-5)


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), cpu_threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
