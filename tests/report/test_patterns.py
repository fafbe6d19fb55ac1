"""What winners have in common, by stage, and whether random archs have it too."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.report import patterns as verdicts
from nasformer.report.architectures import THIRDS
from nasformer.report.patterns import (
    PATTERNS,
    WHOLE,
    Patterns,
    choices_by_stage,
    draw,
    find_patterns,
    judge_patterns,
    patterns_figure,
    pool,
    rows,
)
from nasformer.space.budget import Budget
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct

from .made_up import LIMIT, SPACE, net

BUDGET = Budget(max_params=LIMIT)
NAMES = [pattern.name for pattern in PATTERNS["esformer"]]
RATIO = "qkv_dim / embed_dim"


@pytest.fixture(scope="module")
def typical() -> Patterns:
    return find_patterns(SPACE, [net()] * 10, BUDGET)


def by_name(patterns: Patterns) -> dict[str, str]:
    return {verdict.pattern: verdict.verdict for verdict in patterns.verdicts}


def test_an_esformer_by_stage() -> None:
    choices = choices_by_stage(SPACE.root, net(early="convnext", qkv_dim=(96, 64)))
    assert list(pool([choices])) == ["stage1", "stage2", "stage3", "stage4"]
    assert choices["stage1"] == {
        "blocks": ["convnext"] * 2,
        "kernel": [3, 3],
        "embed_dim": [16],
        "depth": [2],
        "expansion": [2, 2],
    }
    assert choices["stage3"]["blocks"] == ["convnext"] * 2 + ["encoder"] * 3
    assert choices["stage3"]["ffn"] == ["ibn"] * 3
    assert choices["stage3"]["kernel"] == [7] * 5  # those of feed-forward halves as well
    assert choices["stage3"][RATIO] == [96 / 88] * 3
    assert choices["stage4"][RATIO] == [64 / 168]


def test_stages_that_are_fields_of_something_else() -> None:
    space = get_space("pit-tiny")
    assert pool([choices_by_stage(space.root, space.presets["pit-ti"])]) == {
        "stage1": {"depth": [2], "num_heads": [2]},
        "stage2": {"depth": [6], "num_heads": [4]},
        "stage3": {"depth": [4], "num_heads": [8]},
        WHOLE: {"base_dim": [32], "mlp_ratio": [4]},
    }


def test_without_stages_by_thirds_of_the_depth() -> None:
    space = get_space("autoformer-tiny")
    heads = [3] * 4 + [4] * 4 + [3, 3, 4, 4]
    arch = space.arch({"embed_dim": 192, "num_heads": heads, "mlp_ratio": [4.0] * 12})
    choices = pool([choices_by_stage(space.root, arch)])
    assert list(choices) == [*THIRDS, WHOLE]
    assert [choices[third]["num_heads"] for third in THIRDS] == [[3] * 4, [4] * 4, [3, 3, 4, 4]]
    assert choices[WHOLE] == {"embed_dim": [192], "depth": [12]}


def test_a_stage_that_is_the_stack_itself() -> None:
    blocks = Repeat(OneOf(conv=Struct(kernel=Choice(3, 5)), pool=Struct()), depth=Choice(1, 2))
    root = Struct(stage2=blocks, stage10=blocks)
    arch = root.validate({"stage2": [{"pool": {}}], "stage10": [{"conv": {"kernel": 5}}, {"pool": {}}]})
    choices = pool([choices_by_stage(root, arch)])
    assert list(choices) == ["stage2", "stage10"]
    assert choices["stage10"] == {"blocks": ["conv", "pool"], "kernel": [5], "depth": [2]}


def test_what_the_supplement_reports_is_recognised(typical: Patterns) -> None:
    assert by_name(typical) == dict.fromkeys(NAMES, "appears")
    assert all(verdict.emerged for verdict in typical.verdicts), [verdict.sentence for verdict in typical.verdicts]
    sentences = {verdict.pattern: verdict.sentence for verdict in typical.verdicts}
    assert "ibn 100 % in stage 1, ibn 100 % in stage 2; random archs: " in sentences["early_ibn"]
    assert "means 3.0, 5.0, 7.0, 9.0; +2.00 a stage" in sentences["kernels_grow"]
    assert "ratio 0.36 in stage 3, below 1 in 30 of 30 encoders" in sentences["narrow_qkv"]
    assert sentences["narrow_qkv"].endswith("of random groups of 10 show it as strongly, so it emerged from the search")


def test_the_opposite_is_recognised_as_well() -> None:
    other = net("convnext", "ibn", ("convnext", "ibn"), kernels=(9, 7, 5, 3), qkv_dim=(128, 256))
    found = find_patterns(SPACE, [other] * 3, BUDGET, draws=50)
    assert by_name(found) == dict.fromkeys(NAMES, "does not appear")
    assert not any(verdict.emerged or "emerged" in verdict.sentence for verdict in found.verdicts)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"early": "convnext"}, "early_ibn"),
        ({"late": "ibn"}, "late_convnext"),
        ({"ffn": ("convnext", "convnext")}, "ffn_stage3"),
        ({"ffn": ("ibn", "ibn")}, "ffn_stage4"),
        ({"kernels": (5, 5, 5, 5)}, "kernels_grow"),
        ({"qkv_dim": (96, 64)}, "narrow_qkv"),  # wider in stage 3 alone, as the supplement has it for S2
    ],
)
def test_each_pattern_stands_for_itself(change: dict[str, Any], missing: str) -> None:
    found = by_name(find_patterns(SPACE, [net(**change)], BUDGET, draws=20))
    assert [name for name in NAMES if found[name] != "appears"] == [missing]


def test_where_there_are_no_encoders() -> None:
    found = find_patterns(SPACE, [net(encoders=False)] * 2, BUDGET, draws=50)
    absent = [name for name, verdict in by_name(found).items() if verdict == "no encoders there"]
    assert absent == ["ffn_stage3", "ffn_stage4", "narrow_qkv"]
    assert "Feed-forward halves are IBN in stage 3: no encoders there" in [v.sentence for v in found.verdicts]


def test_random_archs_seldom_show_patterns_and_hardly_ever_as_if_found(monkeypatch: Any) -> None:
    monkeypatch.setattr(verdicts, "GROUPS", 200)
    drawn, _ = draw(SPACE, BUDGET, 300, seed=1)
    every, rng = [choices_by_stage(SPACE.root, arch) for arch in drawn], Random(2)
    judged = [one for _ in range(20) for one in judge_patterns("esformer", rng.sample(every, 4), every)]
    assert sum(one.verdict == "appears" for one in judged) < 0.5 * len(judged)
    assert sum(one.emerged for one in judged) < 0.12 * len(judged)


def test_a_pattern_that_random_archs_show_too_has_not_emerged() -> None:
    found = find_patterns(SPACE, [net()], BUDGET)  # of one net, much may be luck
    verdict = {one.pattern: one for one in found.verdicts}["ffn_stage4"]
    assert verdict.verdict == "appears"
    assert verdict.chance is not None
    assert verdict.chance > 0.3  # a single encoder has one of two halves
    assert not verdict.emerged
    assert verdict.sentence.endswith("of random archs show it as strongly, so it need not come from the search")


def test_the_baseline_lies_in_the_budget_and_says_when_it_is_no_fair_sample() -> None:
    drawn, repaired = draw(SPACE, BUDGET, 20, seed=0)
    assert all(BUDGET.fits(SPACE.costs(arch)) for arch in drawn)
    assert repaired == 0
    narrow = Budget(max_params=430_000)
    drawn, repaired = draw(SPACE, narrow, 3, seed=0)
    assert all(narrow.fits(SPACE.costs(arch)) for arch in drawn)
    assert repaired == 3


def test_the_figures_as_json(typical: Patterns) -> None:
    told = typical.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["found"]["stage3"]["blocks"] == {"n": 50, "shares": {"encoder": 0.6, "ibn": 0.4}}
    assert told["found"]["stage4"]["kernel"] == {"n": 30, "shares": {"9": 1.0}, "mean": 9.0, "std": 0.0}
    kernels = told["random"]["stage1"]["kernel"]
    assert list(kernels["shares"]) == ["3", "5", "7", "9"]
    assert sum(kernels["shares"].values()) == pytest.approx(1)
    assert 5 < kernels["mean"] < 7


def test_the_table(typical: Patterns) -> None:
    cells = dict(rows(typical))
    assert [cell.split(" (")[0] for cell in cells["blocks: ibn"]] == ["100 %", "100 %", "40 %", "0 %"]
    assert [cell.split(" (")[0] for cell in cells["ffn: ibn"]] == ["", "", "100 %", "0 %"]
    assert [cell.split(" (")[0] for cell in cells["kernel"]] == ["3", "5", "7", "9"]


def pixels(figure: Figure) -> bytes:
    figure.set_layout_engine("none")
    figure.set_dpi(30)
    figure.canvas.draw()
    return bytes(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]


def test_the_figure_shows_winners_beside_random_archs(typical: Patterns) -> None:
    figure = patterns_figure(typical)
    assert [axes.get_ylabel() for axes in figure.axes][:4] == [
        "blocks",
        "kernel",
        "feed-forward halves",
        "q-k-v width / embedding",
    ]
    bars = [bar for bar in figure.axes[0].patches if isinstance(bar, Rectangle) and bar.get_height()]
    winners = [bar.get_height() for bar in bars if bar.get_x() + bar.get_width() / 2 == pytest.approx(2 - 0.19)]
    assert winners == pytest.approx([0.6, 0.4])  # encoders and IBN of stage 3
    assert np.array_equal(figure.axes[1].get_lines()[0].get_ydata(), [3, 5, 7, 9])
    assert pixels(figure) == pixels(patterns_figure(typical))


def test_what_no_random_arch_has_is_shown_all_the_same(typical: Patterns) -> None:
    plain = replace(typical, random=pool([choices_by_stage(SPACE.root, net(encoders=False))]))
    assert dict(rows(plain))["ffn: ibn"] == ["", "", "100 % (–)", "0 % (–)"]
    labels = [axes.get_ylabel() for axes in patterns_figure(plain).axes]
    assert "feed-forward halves" in labels


@pytest.mark.parametrize("name", ["pit-tiny", "autoformer-micro"])
def test_other_families_have_tables_and_figures_but_no_verdicts(name: str) -> None:
    space = get_space(name)
    found = find_patterns(space, [space.sample(1), space.sample(2)], Budget(), draws=10)
    assert found.verdicts == []
    assert dict(rows(found))["num_heads"]
    assert len(patterns_figure(found).axes) == 2


def test_there_must_be_winners() -> None:
    with pytest.raises(UserError, match="no winners"):
        find_patterns(SPACE, [], BUDGET)
