"""Runs side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.report.compare import (
    COST,
    FIGURES,
    compare_runs,
    front_tooltips,
    fronts,
    judged,
    progress,
    write_comparison,
)
from nasformer.results.contents import RunContents, front
from nasformer.search.problem import Candidate

from .fake import edit, log_lines, write_log, write_run, write_untrained_run
from .reading import HOSTILE, PNG, Page


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs with other seeds, recipes and searches."""
    root = tmp_path_factory.mktemp("pair")
    write_run(root / "one")
    write_run(root / "two", population=8, generations=3)
    config = json.loads((root / "two" / "config.json").read_text())
    edit(root / "two" / "config.json", seed=1, train={**config["train"], "lr": 0.002})
    write_log(root / "two", log_lines(20))
    return root / "one", root / "two"


def test_winners_efforts_and_differences(pair: tuple[Path, Path]) -> None:
    found = compare_runs(pair).to_dict()
    for row, folder in zip(found["runs"], pair, strict=True):
        result = json.loads((folder / "result.json").read_text())["winner"]
        assert row["name"] == folder.name
        assert row["winner"] == {name: value for name, value in result.items() if name != "name"}
    assert [row["candidates"] for row in found["runs"]] == [60, 24]
    assert [row["seed"] for row in found["runs"]] == [0, 1]
    assert [row["steps"] for row in found["runs"]] == [300, 200]
    assert found["differences"] == {
        "seed": [0, 1],
        "train.lr": [0.001, 0.002],
        "search.population": [12, 8],
        "search.generations": [5, 3],
    }


def test_options_that_a_command_does_not_have_are_no_difference(pair: tuple[Path, Path], tmp_path: Path) -> None:
    searched = copytree(pair[1], tmp_path / "two")
    config = json.loads((searched / "config.json").read_text())
    del config["train"]
    (searched / "config.json").write_text(json.dumps(config | {"supernet": "one/supernet"}))
    assert set(compare_runs([pair[0], searched]).differences()) == {"seed", "search.population", "search.generations"}


def test_what_a_run_ships_is_compared_and_inherited_weights_are_marked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    health = {"subnets": [], "smallest": 0.5, "largest": 0.6, "random_mean": 0.5, "random_range": [0.5, 0.6]}
    health |= {"rank_correlation": 0.4, "healthy": True}
    for folder in pair:
        edit(copytree(folder, tmp_path / folder.name) / "result.json", health=health)
    trained = json.loads((pair[1] / "result.json").read_text())["winner"] | {"name": "winner, finetuned"}
    edit(tmp_path / "two" / "result.json", finished=trained | {"test_accuracy": 0.987})
    inherited, finished = compare_runs([tmp_path / "one", tmp_path / "two"]).winners()
    assert inherited.name == "one (inherited)"
    assert (finished.name, finished["test_accuracy"]) == ("two", 0.987)


def test_the_folder_holds_page_table_and_pictures(pair: tuple[Path, Path], tmp_path: Path) -> None:
    page = Page(write_comparison(compare_runs(pair), tmp_path))
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{n}.{k}" for n in FIGURES for k in ("png", "svg")
    }
    assert json.loads((tmp_path / "compare.json").read_text()) == compare_runs(pair).to_dict()
    assert (page.tags.count("img"), page.tags.count("svg"), page.tags.count("script")) == (2, 1, 1)
    sources = [value for name, value in page.attributes if name == "src" or name.endswith("href")]
    assert [source for source in sources if not source.startswith((PNG, "#"))] == []
    for words in ("one", "two", "train.lr", "0.002", "evolution"):
        assert words in page.text


def front_of(run: RunContents) -> list[Candidate]:
    return front(judged(run), COST, run.score)


def test_the_fronts_are_those_of_the_searches(pair: tuple[Path, Path]) -> None:
    comparison = compare_runs(pair)
    for run in comparison.runs.values():
        best = front_of(run)
        for one in run.candidates:
            rivals = [other for other in best if other.scores["params"] <= one.scores["params"]]
            assert max(other.scores["accuracy"] for other in rivals) >= one.scores["accuracy"]
    tooltips = front_tooltips(comparison)
    assert set(tooltips) >= {"winner-0", "winner-1", f"run-1-{front_of(comparison.runs['two'])[0].id}"}
    assert tooltips["winner-1"].startswith("two\nwinner\n")
    assert fronts(comparison) is not None


def test_progress_is_the_best_so_far(pair: tuple[Path, Path]) -> None:
    comparison = compare_runs(pair)
    figure = progress(comparison)
    assert figure is not None
    for line, run in zip(figure.axes[0].get_lines(), comparison.runs.values(), strict=True):
        heights = list(line.get_ydata())
        assert heights == sorted(heights)
        assert len(heights) == len(run.candidates)
        assert heights[-1] == pytest.approx(100 * max(one.scores["accuracy"] for one in run.candidates))


def test_runs_without_a_search_or_by_another_score(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A retraining, a search without training, and a run that has just begun."""
    retrained, untrained, begun = tmp_path / "retrained", tmp_path / "untrained", tmp_path / "begun"
    copytree(pair[0], retrained, ignore=lambda *_: ["search"])
    write_untrained_run(untrained, "dss", "zen")
    begun.mkdir()
    (begun / "config.json").write_text('{"kind": "supernet"}')
    comparison = compare_runs([pair[0], retrained, untrained, begun])
    page = Page(write_comparison(comparison, tmp_path / "out"))
    assert page.tags.count("img") + page.tags.count("svg") == 3
    assert [name for name in front_tooltips(comparison) if name.startswith("winner")] == ["winner-0"]
    assert comparison.to_dict()["runs"][3]["winner"] == {"arch": {}}
    assert Page(write_comparison(compare_runs([begun, retrained]), tmp_path / "less")).tags.count("img") == 1


def test_a_folder_of_another_program_is_no_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"name": "another program"}')
    with pytest.raises(UserError, match="holds no run; give folders that run, search or retrain has written"):
        compare_runs([pair[0], tmp_path])


def test_runs_of_one_name_are_told_apart(pair: tuple[Path, Path], tmp_path: Path) -> None:
    copytree(pair[1], tmp_path / "other" / "one")
    comparison = compare_runs([pair[0], tmp_path / "other" / "one"])
    assert list(comparison.runs) == [f"{pair[0].parent.name}/one", "other/one"]


def test_one_run_is_none_to_compare(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="two runs or more"):
        compare_runs([pair[0], pair[0]])
    with pytest.raises(UserError, match=r"config\.json is missing"):
        compare_runs([pair[0], pair[0] / "nowhere"])


def test_hostile_text_stays_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    evil = tmp_path / "<b onclick=alert(1)>"
    copytree(pair[1], evil)
    edit(evil / "config.json", data=HOSTILE, train={HOSTILE: HOSTILE})
    page = Page(write_comparison(compare_runs([pair[0], evil]), tmp_path / "out"))
    assert page.tags.count("script") == 1
    assert "b" not in page.tags
    assert page.text.count(HOSTILE) >= 3


def test_on_the_command_line(pair: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", *map(str, pair), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "train.lr: 0.001 | 0.002" in text
    assert "compare.html" in text
    assert main(["compare", *map(str, pair), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == compare_runs(pair).to_dict()


def test_scores_that_are_not_numbers_are_null(pair: tuple[Path, Path], tmp_path: Path) -> None:
    run = copytree(pair[0], tmp_path / "run")
    winner = {**json.loads((run / "result.json").read_text())["winner"], "test_accuracy": None}
    edit(run / "result.json", winner=winner)
    found = compare_runs([run, pair[1]])
    assert math.isnan(found.winners()[0].scores["test_accuracy"])
    assert found.to_dict()["runs"][0]["winner"]["test_accuracy"] is None
