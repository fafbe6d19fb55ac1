from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.report.architectures import (
    operator_curves,
    operator_panels,
    operator_shares,
    operators_by_stage,
    read_curves,
    split_arch,
)
from nasformer.report.page import captions
from nasformer.report.style import BLUE, GREEN, ORANGE, lighten
from nasformer.results.contents import RunContents, read_run
from nasformer.search.run import search
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.utils.files import write_json, write_text

from .reading import drawable

SPACE = get_space("trionet-micro", img_size=8, stem_stride=1)
LIMIT = 800_000
COLOURS = {"conv": BLUE, "local": ORANGE, "axial": GREEN}
SNAPSHOTS = [{"conv": 0.2, "local": 0.3, "axial": 0.1}, {"conv": 0.4, "local": 0.5, "axial": 0.25}]


def score(arch: Arch) -> dict[str, float]:
    """The more convolution, the better."""
    blocks = [block for stage in arch.values() for block in stage.blocks]
    return {"accuracy": sum("conv" in block for block in blocks) / len(blocks)}


def write_log(path: Path, snapshots: list[Any]) -> Path:
    lines = [{"step": 10 * k, "epoch": float(k), "watch": snapshot} for k, snapshot in enumerate(snapshots, 1)]
    lines += [{"step": 10 * k, "epoch": float(k), "loss": 1.0, "lr": 0.1} for k in range(1, len(snapshots) + 1)]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that finds convolutions, and a supernet that was watched."""
    run = tmp_path_factory.mktemp("trionet")
    options = {"population": 12, "generations": 4, "parents": 3}
    settings = {"model_options": dict(SPACE.options)}
    found = search(
        SPACE,
        score,
        SPACE.costs,
        options=options,
        budget=Budget(max_macs=LIMIT),
        journal=run / "search" / "journal.jsonl",
        settings=settings,
    )
    write_json(run / "config.json", {"space": SPACE.name, "budget": {"max_macs": LIMIT}})
    winner = {"name": "winner", "arch": found.best.arch.to_dict(), **found.best.scores}
    write_json(run / "result.json", {"space": SPACE.name, "data": None, "winner": winner})
    write_log(run / "train" / "log.jsonl", SNAPSHOTS)
    return run


@pytest.fixture
def run(folder: Path) -> RunContents:
    return read_run(folder)


def shares(figure: Figure, panel: int) -> list[dict[str, float]]:
    """The shares of each column of a panel from left to right, by colour."""
    columns: dict[float, dict[str, float]] = {}
    patches: list[Any] = list(figure.axes[panel].patches)
    for patch in patches:
        if patch.get_height():  # not those for the legend
            colour = to_hex(patch.get_facecolor())
            columns.setdefault(patch.get_x() + patch.get_width() / 2, {})[colour] = patch.get_height()
    return [column for _, column in sorted(columns.items())]


def operators_of(archs: list[Arch], stage: str) -> dict[str, float]:
    found = [kind for arch in archs for block in arch[stage].blocks for kind in block]
    return {kind: found.count(kind) / len(found) for kind in set(found)}


def shown(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(figure: Figure) -> list[Any]:
    """Those with points; the others are for the legend."""
    every: list[Any] = list(figure.axes[0].get_lines())
    return [line for line in every if len(line.get_xdata())]


def test_the_shares_are_those_of_the_candidates(run: RunContents) -> None:
    figure, random_archs = shown(operator_shares(run)), run.random_members()
    assert [axes.get_title() for axes in figure.axes] == ["stage 1", "stage 2", "stage 3", "stage 4"]
    assert labels(figure) == ["conv", "local", "axial"]
    for panel, stage in enumerate(("stage1", "stage2", "stage3", "stage4")):
        random, *course, winner = shares(figure, panel)
        assert len(course) == 4
        for generation, column in enumerate(course):
            archs = [c.arch for c in run.candidates if c.generation == generation]
            expected = {COLOURS[kind]: share for kind, share in operators_of(archs, stage).items()}
            assert column == pytest.approx(expected)
        softer = {lighten(COLOURS[kind]): share for kind, share in operators_of(random_archs, stage).items()}
        assert random == pytest.approx(softer)
        assert run.winner is not None
        best = operators_of([Arch.from_dict(run.winner.arch)], stage)
        assert winner == pytest.approx({COLOURS[kind]: share for kind, share in best.items()})


def test_a_search_without_generations_is_shown_in_batches(run: RunContents) -> None:
    single = replace(run, candidates=[replace(c, generation=0) for c in run.candidates])
    figure = shown(operator_shares(single))
    assert {axes.get_xlabel() for axes in figure.axes} == {"candidates judged"}
    assert len(shares(figure, 0)) == 2 + len(run.candidates) // 3  # at most 20 batches, so of three


def test_random_archs_keep_to_the_budget_as_far_as_it_can_be_counted(run: RunContents) -> None:
    found = run.random_members()
    assert len(found) > 20
    assert all(SPACE.costs(arch)["macs"] <= LIMIT for arch in found)
    assert found == replace(run, limits={**run.limits, "latency": (None, 1.0)}).random_members()
    assert len(replace(run, limits={}).random_members()) == 200
    assert replace(run, limits={"macs": (None, 1.0)}).random_members() == []


def test_an_unknown_space_leaves_out_what_random_archs_have(run: RunContents) -> None:
    evolved = replace(run, config={"space": "evolved"})
    assert evolved.extremes() == evolved.random_members() == []
    ticks = [text.get_text() for text in shown(operator_shares(evolved)).axes[0].get_xticklabels()]
    assert "random" not in ticks
    assert "winner" in ticks


def test_without_operators_there_are_no_shares(run: RunContents) -> None:
    plain = Arch.from_dict({"blocks": [{"num_heads": 3}]})
    candidates = [replace(candidate, arch=plain) for candidate in run.candidates]
    assert operator_shares(replace(run, config={"space": "autoformer-micro"}, candidates=candidates)) is None
    assert operator_shares(replace(run, candidates=[])) is None


def test_operators_of_one_stack_are_sorted_by_depth() -> None:
    blocks = [{"conv": {"kernel": 3}}] * 2 + [{"local": {"window": 7}}] * 4
    assert operators_by_stage(split_arch({"dim": 8, "blocks": blocks})) == {
        "first third": ["conv"] * 2,
        "middle third": ["local"] * 2,
        "last third": ["local"] * 2,
    }


def test_the_report_has_all_three_pictures(folder: Path) -> None:
    assert {"architecture", "operator_shares", "operator_curves"} <= drawable(folder)
    assert "in the colour of its operator" in captions(read_run(folder))["architecture"][1]


def test_a_curve_an_operator(run: RunContents) -> None:
    figure = shown(operator_curves(run))
    found = {to_hex(line.get_color()): line for line in lines(figure)}
    assert {colour: list(line.get_ydata()) for colour, line in found.items()} == {
        BLUE: [20, 40],
        ORANGE: [30, 50],
        GREEN: [10, 25],
    }
    assert list(found[BLUE].get_xdata()) == [1, 2]
    assert labels(figure) == ["conv", "local", "axial"]


def test_seeds_are_thin_and_their_mean_is_thick(tmp_path: Path) -> None:
    full = [write_log(tmp_path / f"{k}.jsonl", [{"conv": k / 10}, {"conv": 0.5}][: 2 - k]) for k in (0, 1)]
    single = write_log(tmp_path / "single.jsonl", [{"conv": 0.75}] * 2)
    figure = shown(operator_panels({"": {"full": full, "without": single}}))
    found = lines(figure)
    assert [list(line.get_ydata()) for line in found] == [[0, 50], [10], [5], [75, 75]]
    assert [line.get_linewidth() for line in found] == [0.8, 0.8, 2, 2]
    assert [line.get_linestyle() for line in found] == ["-", "-", "-", "--"]
    assert labels(figure) == ["full", "without", "conv"]


def test_comparisons_stand_side_by_side(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{k}.jsonl", SNAPSHOTS) for k in (0, 1)]
    panels = {"sampling": {"with": logs[0], "without": logs[1]}, "sharing": {"with": logs[0]}}
    figure = shown(operator_panels(panels))
    assert [axes.get_title() for axes in figure.axes] == ["sampling", "sharing"]
    assert labels(figure) == ["with", "without", "conv", "local", "axial"]


def test_without_snapshots_there_are_no_curves(tmp_path: Path) -> None:
    assert operator_panels({"": {"": tmp_path / "none.jsonl"}}) is None
    assert operator_panels({"": {}}) is None
    assert operator_panels({}) is None


@pytest.mark.parametrize("snapshot", [3, {"conv": "good"}, None])
def test_a_damaged_snapshot_is_named(tmp_path: Path, snapshot: Any) -> None:
    path = write_log(tmp_path / "log.jsonl", [snapshot])
    with pytest.raises(UserError, match=r"log\.jsonl.*: watch.* expected"):
        read_curves(path)
