"""The report of a space's evolution, on invented records: nothing is trained."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.models.space import Space
from nasformer.report.page import write_report
from nasformer.report.space_search import (
    CAPTIONS,
    FIGURES,
    choices,
    dimension_grid,
    error_distribution,
    error_range,
    letter,
    mark_kind,
    page,
    space_colours,
    space_errors,
    state,
    tendencies,
    tendency_tooltips,
)
from nasformer.runs.options import EvolveCommand
from nasformer.runs.run import SpaceEvaluator, evolve_run
from nasformer.search.problem import Candidate
from nasformer.space_search import Evolution, read_evolution
from nasformer.utils.files import read_json, write_json
from small_run import contents

from .fake_evolution import write_evolution
from .reading import PNG, Page

FILES = {f"plots/{name}.{kind}" for name in CAPTIONS for kind in ("png", "svg")}
FILES |= {"report.html", "spaces.csv", "dimensions.csv"}
HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three spaces of AutoFormer with their report; tests read it only."""
    folder = tmp_path_factory.mktemp("evolution") / "run"
    write_evolution(folder, "autoformer-micro")
    write_report(folder)
    return folder


def made(folder: Path, *arguments: Any) -> Evolution:
    write_evolution(folder, *arguments)
    return read_evolution(folder / "evolution.json")


def test_all_files_are_there_and_equal_each_time(evolved: Path) -> None:
    before = contents(evolved)
    assert FILES | {"config.json", "evolution.json"} == before.keys()
    for name in FILES:
        if name.endswith(".png"):
            with Image.open(evolved / name) as picture:
                assert len(picture.convert("L").getcolors() or []) > 20
        elif name.endswith(".svg"):
            ElementTree.fromstring(before[name])
    write_report(evolved)
    assert contents(evolved) == before


def test_the_page_holds_everything_and_needs_nothing(evolved: Path) -> None:
    found, record = Page(evolved / "report.html"), read_json(evolved / "evolution.json")
    assert "nasformer: evolution of autoformer-micro on digits" in found.text
    for title, _ in CAPTIONS.values():
        assert title in found.words
    for step in record["steps"]:
        assert step["space"] in found.text.replace("; ", ";")
        assert f"{step['error']['et']:.2f} %" in found.words
    assert "weights of A: 134 tensors came whole, 26 in part, 13 are fresh" in found.words
    assert "0.1.0" in found.words  # the versions
    sources = [value for name, value in found.attributes if name in ("src", "href")]
    assert sources
    assert all(value.startswith((PNG, "#")) for value in sources)
    assert "Not finished" not in found.text


def test_the_points_of_the_lines_tell_what_they_are(evolved: Path) -> None:
    depth = read_json(evolved / "evolution.json")["steps"][1]["dimensions"]["blocks.depth"]
    found = Page(evolved / "report.html")
    value, count, et = (depth[name][0] for name in ("values", "counts", "et"))
    assert f"space B · blocks.depth = {value}\nE-T error {et:.2f} % · {count:.4g} of 200 samples" in found.text
    links = [value for name, value in found.attributes if name == "id"]
    assert set(tendency_tooltips(read_evolution(evolved / "evolution.json"))) <= set(links)


def test_the_tables(evolved: Path) -> None:
    steps = read_json(evolved / "evolution.json")["steps"]
    rows = list(csv.DictReader(io.StringIO((evolved / "spaces.csv").read_text())))
    assert [row["name"] for row in rows] == ["A", "B", "C"]
    assert [row["space"] for row in rows] == [step["space"] for step in steps]
    assert [float(row["et"]) for row in rows] == pytest.approx([step["error"]["et"] for step in steps], abs=1e-5)
    assert [row["whole"] for row in rows] == ["", "134", "134"]
    rows = list(csv.DictReader(io.StringIO((evolved / "dimensions.csv").read_text())))
    assert len(rows) == 3 * len(steps[0]["dimensions"])
    first, known = rows[0], steps[0]["dimensions"]["embed_dim"]
    assert (first["name"], first["dimension"], first["values"]) == ("A", "embed_dim", "32 48 64")
    assert float(first["slope"]) == pytest.approx(known["slope"])


def test_errors_of_the_spaces(tmp_path: Path) -> None:
    evolution = made(tmp_path)
    (axes,) = space_errors(evolution).axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    judged = [step.error for step in evolution.steps]
    assert drawn == [[getattr(one, name) for one in judged] for name in ("expected", "et", "top")]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["A", "B", "C"]


def test_the_share_of_subnets_below_an_error(tmp_path: Path) -> None:
    evolution = made(tmp_path)
    figure = error_distribution(evolution)
    assert figure is not None
    (axes,) = figure.axes
    for line, step in zip(axes.lines, evolution.steps, strict=True):
        x, y = (np.asarray(each, dtype=float) for each in line.get_data())
        for limit in (step.errors[0] - 0.01, np.median(step.errors), step.errors[150], step.errors[-1]):
            share = 100 * np.mean(np.array(step.errors) <= limit)
            assert y[np.searchsorted(x, limit, side="right") - 1] == pytest.approx(share)


def test_the_line_is_the_one_that_was_fitted(tmp_path: Path) -> None:
    evolution = made(tmp_path, "autoformer-micro", 1)
    figure = tendencies(evolution)
    assert figure is not None
    (step,) = evolution.steps
    for axes, (name, one) in zip(figure.axes, step.dimensions.items(), strict=True):
        assert axes.get_title(loc="left") == name.removeprefix("blocks.")
        line = axes.lines[0]
        slope, step_length, intercept = (getattr(one, name) for name in ("slope", "step", "intercept"))
        ends = np.array([one.values[0], one.values[-1]], dtype=float)
        assert line.get_xdata() == pytest.approx(ends)
        assert line.get_ydata() + step.error.et == pytest.approx(slope * ends / step_length + intercept)
        (dots,) = [each for each in axes.collections if len(each.get_offsets()) == len(one.values)]
        low, high = error_range(evolution)
        shown = np.clip(np.array(one.et, dtype=float) - step.error.et, low, high)
        assert np.asarray(dots.get_offsets())[:, 1] == pytest.approx(shown)
        assert np.argsort(dots.get_sizes()).tolist() == np.argsort(one.counts).tolist()


def test_values_that_move_are_marked(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 2)
    for step, values, following in zip(content["steps"], ([1, 2], [2, 3]), ([2, 3], [2, 3]), strict=True):
        shown = {**step["dimensions"]["blocks.num_heads"], "values": values, "next": following}
        step["dimensions"] = {"heads": {**shown, "counts": [9, 9], "et": [30.0, 29.0]}}
    write_json(tmp_path / "evolution.json", content)
    one, other = (step.dimensions["heads"] for step in read_evolution(tmp_path / "evolution.json").steps)
    kinds = {value: mark_kind(value, one.values, one) for value in one.values}
    assert kinds == {1: "dropped by the next", 2: "value"}
    kinds = {value: mark_kind(value, one.values, other) for value in other.values}
    assert kinds == {2: "value", 3: "new in this space"}
    figure = choices(read_evolution(tmp_path / "evolution.json"))
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "value",
        "new in this space",
        "dropped by the next",
    ]


def test_stages_stand_side_by_side() -> None:
    names = [f"stage{n}.{what}" for n in (2, 10, 1) for what in ("embed_dim", "blocks.depth")]
    assert dimension_grid(names) == [
        ["stage1.embed_dim", "stage2.embed_dim", "stage10.embed_dim"],
        ["stage1.blocks.depth", "stage2.blocks.depth", "stage10.blocks.depth"],
    ]
    assert dimension_grid(list("abcdef")) == [["a", "b", "c", "d"], ["e", "f", None, None]]
    every = [f"{name}.x" for name in "abcdef"] + names
    assert sorted(name for row in dimension_grid(every) for name in row if name) == sorted(every)


@pytest.mark.parametrize(
    ("name", "count", "asked"),
    [
        ("pit-tiny", 2, 3),
        ("autoformer-micro", 1, 0),
        ("autoformer-micro", 1, 2),
        pytest.param("autoformer-tiny", 8, 7, marks=pytest.mark.slow),
    ],
)
def test_any_family_and_any_number_of_steps(name: str, count: int, asked: int, tmp_path: Path) -> None:
    evolution = made(tmp_path, name, count, asked)
    text = page(evolution, {}, "run", {})
    assert ("Not finished" in text) == (count <= asked) == evolution.unfinished
    assert f"E-T error of space {letter(count - 1)}" in text
    assert len(set(space_colours(count))) == count
    for draw in FIGURES.values():
        figure = draw(evolution)
        assert figure is not None
        figure.set_layout_engine("none")  # which would take most of the time
        figure.set_dpi(30)
        figure.canvas.draw()


def test_a_run_that_came_to_rest_is_finished(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 2, 4)
    for one in content["steps"][-1]["dimensions"].values():
        one |= {"shift": 0, "next": one["values"]}
    write_json(tmp_path / "evolution.json", content)
    told = state(read_evolution(tmp_path / "evolution.json"))
    assert told == "Nothing shifted after space B, so the evolution ended 3 short."


def test_names_and_notices_cannot_break_out(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 1)
    (step,) = content["steps"]
    one = next(iter(step["dimensions"].values()))
    words = {"values": ["<b>", HOSTILE, "$x^"], "next": ["<b>", HOSTILE, "$x^"], "notice": f"{HOSTILE} $\\frac$"}
    nothing = dict.fromkeys(("slope", "stderr", "intercept", "step"))
    step["dimensions"][HOSTILE] = {**one, **words, **nothing}
    step["space"] = content["budget"] = HOSTILE
    write_json(tmp_path / "evolution.json", content)
    write_json(tmp_path / "config.json", {"space": HOSTILE, "data": HOSTILE, "evolve": {HOSTILE: HOSTILE}})
    found = Page(write_report(tmp_path))
    assert found.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert HOSTILE in found.text.replace("; ", ";")
    ElementTree.fromstring((tmp_path / "plots" / "tendencies.svg").read_bytes())


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 2)
    first, second = content["steps"]
    for name in ("options", "budget", "data"):
        del content[name]
    del second["carried"]
    first["errors"] = second["errors"] = [math.nan]
    second["dimensions"]["embed_dim"] |= {"et": [None, None, 20.0], "counts": [0, 0, 3]}
    for name in ("slope", "stderr", "intercept", "notice", "next"):
        del second["dimensions"]["embed_dim"][name]
    del second["dimensions"]["blocks.depth"]
    write_json(tmp_path / "evolution.json", content)
    write_json(tmp_path / "config.json", {})
    found = Page(write_report(tmp_path))
    assert "nasformer: evolution of a space" in found.text
    assert CAPTIONS["error_distribution"][0] not in found.words
    assert not (tmp_path / "plots" / "error_distribution.png").exists()
    for step in content["steps"]:
        step["dimensions"] = {}
    write_json(tmp_path / "evolution.json", content)
    evolution = read_evolution(tmp_path / "evolution.json")
    assert choices(evolution) is tendencies(evolution) is None


@pytest.mark.parametrize(
    "harm",
    [
        {"steps": []},
        {"steps": None},
        {"steps": [{"space": "s3"}]},
        {"steps": "A"},
        {"options": {"steps": "many"}},
    ],
)
def test_a_damaged_file_is_one_line(harm: dict[str, Any], tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 1)
    write_json(tmp_path / "evolution.json", content | harm)
    with pytest.raises(UserError, match=r"evolution\.json:? .*; restore the file"):
        write_report(tmp_path)


def test_counts_must_go_with_values(tmp_path: Path) -> None:
    content = write_evolution(tmp_path, "autoformer-micro", 1)
    content["steps"][0]["dimensions"]["embed_dim"]["counts"].pop()
    write_json(tmp_path / "evolution.json", content)
    with pytest.raises(UserError, match="as many counts and E-T errors as values"):
        write_report(tmp_path)


@pytest.mark.parametrize("words", [["doctor"], ["compare", "."]])
def test_commands_for_other_runs_point_to_the_steps(words: list[str], evolved: Path, capsys: Any) -> None:
    before = contents(evolved)
    command, *others = words
    assert main([command, str(evolved), *others]) == 2
    told = capsys.readouterr().err
    assert f"{evolved} is the evolution of a space" in told
    assert f"{evolved}/steps/0" in told
    assert contents(evolved) == before


def test_evolve_writes_it_after_each_space(tmp_path: Path, monkeypatch: Any) -> None:
    """With judges that need no training; one run is refused when it has caught up."""
    judged: list[int] = []

    def judge(self: Any, space: Space, number: int) -> list[Candidate]:
        judged.append(len(list(csv.DictReader(table.open()))) if table.exists() else 0)
        if number == refused:
            raise UserError("no")
        archs = [space.sample(random.Random(place)) for place in range(30)]
        scores = [{"accuracy": 1e-3 * arch["embed_dim"]} for arch in archs]
        return [Candidate(i, 0, "random", (), *one) for i, one in enumerate(zip(archs, scores, strict=True))]

    table, refused = tmp_path / "run" / "spaces.csv", 2
    monkeypatch.setattr(SpaceEvaluator, "judge", judge)
    monkeypatch.setattr("nasformer.report.space_search.save_pictures", lambda *_: {})
    command = EvolveCommand(space="autoformer-micro", patch_size=4, out=str(tmp_path / "run"))
    command.evolve.samples, command.evolve.top = 30, 2
    with pytest.raises(UserError, match="no"):
        evolve_run(command, ignore)
    assert judged == [0, 1, 2]
    assert "Not finished: space C follows" in (tmp_path / "run" / "report.html").read_text()
    refused, before = 1, contents(tmp_path / "run")
    with pytest.raises(UserError, match="no"):
        evolve_run(copy.deepcopy(command), ignore)
    assert contents(tmp_path / "run") == before
    refused = 9
    evolve_run(command, ignore)
    assert len(json.loads((tmp_path / "run" / "evolution.json").read_text())["steps"]) == 3
    assert len(list(csv.DictReader(table.open()))) == 3


def ignore(number: int, record: dict[str, Any]) -> None:
    """What `evolve_run` calls after each space."""
