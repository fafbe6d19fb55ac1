"""Reports of runs that are not a training and a search: a search without training, and a retraining."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from nasformer.report.labels import MARKERS, format_score, marker_of
from nasformer.report.page import captions, write_report
from nasformer.report.plots import FIGURES
from nasformer.results.contents import RunContents, read_run
from nasformer.search.run import SearchResult

from .fake import edit, model, write_run, write_untrained_run
from .test_report import Page, plots

BOTH = ("dss", "zen")


@pytest.fixture(params=[("dss",), ("zen",), BOTH], ids="+".join)
def proxies(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def found(tmp_path: Path, proxies: tuple[str, ...]) -> SearchResult:
    return write_untrained_run(tmp_path, *proxies)


def drawn(name: str, run: RunContents) -> Figure:
    figure = FIGURES[name](run)
    assert figure is not None
    figure.canvas.draw()
    return figure


def test_nothing_is_said_of_what_was_not_measured(tmp_path: Path, found: SearchResult) -> None:
    page = Page(write_report(tmp_path))
    assert plots(tmp_path) == {"score_vs_cost", "search_progress", "architecture"}
    assert page.tags.count("img") + page.tags.count("svg") == 3
    told = [page.text, *(value for name, value in page.attributes if name == "alt")]
    assert not [text for text in told if "accuracy" in text.lower()]


def test_the_page_names_the_scores(tmp_path: Path, found: SearchResult, proxies: tuple[str, ...]) -> None:
    page = Page(write_report(tmp_path))
    assert f"A search without training: models were judged by {' and '.join(proxies)} with" in page.text
    assert f"Score ({proxies[0]}) against cost" in page.words
    result = json.loads((tmp_path / "result.json").read_text())
    for row in [result["winner"], *result["references"]]:
        at = page.words.index(row["name"])
        assert page.words[at + 1 : at + 1 + len(proxies)] == [format_score(name, row[name]) for name in proxies]
    for name in proxies:  # the tiles
        assert page.words[page.words.index(name) - 1] == format_score(name, found.best.scores[name])


def test_that_ranks_decided_together_is_told(tmp_path: Path, found: SearchResult, proxies: tuple[str, ...]) -> None:
    run, several = read_run(tmp_path), len(proxies) > 1
    page = Page(write_report(tmp_path))
    for name in ("score_vs_cost", "search_progress"):
        words = "The search went by the ranks of dss and zen together; the figure shows dss alone."
        assert (words in captions(run)[name][1]) == several
    assert f"The Pareto front{' by all ranks together' * several} ({len(found.front)})" in page.words
    legend = [text.get_text() for text in drawn("score_vs_cost", run).legends[0].get_texts()]
    assert f"Pareto front{' by dss alone' * several}" in legend


def test_the_plots_show_the_first_score(tmp_path: Path, found: SearchResult, proxies: tuple[str, ...]) -> None:
    run = read_run(tmp_path)
    axes = drawn("score_vs_cost", run).axes[0]
    heights = np.asarray(axes.collections[0].get_offsets())[:, 1].tolist()
    assert heights == pytest.approx([c.scores[proxies[0]] for c in found.candidates])
    assert axes.get_ylabel() == drawn("search_progress", run).axes[0].get_ylabel() == proxies[0]


def test_references_stand_where_their_own_score_is(tmp_path: Path, found: SearchResult) -> None:
    """They need not be among the candidates."""
    run = read_run(tmp_path)
    assert all(run.score_of(one) == one.scores[run.score] for one in run.models)
    legend = [text.get_text().split(",")[0] for text in drawn("score_vs_cost", run).legends[0].get_texts()]
    assert {"winner", "random", "smallest"} <= set(legend)
    assert "random reference" in [line.get_label() for line in drawn("search_progress", run).axes[0].get_lines()]


def test_a_score_that_failed_is_a_dash(tmp_path: Path) -> None:
    write_untrained_run(tmp_path, "dss")
    rows = [{**row, "dss": None} for row in json.loads((tmp_path / "result.json").read_text())["references"]]
    edit(tmp_path / "result.json", references=rows)
    run = read_run(tmp_path)
    assert math.isnan(run.score_of(run.models[1]))
    assert Page(write_report(tmp_path)).words.count("–") >= len(rows)


def test_captions_of_a_search_by_accuracy_say_so(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = captions(read_run(tmp_path))
    assert found["score_vs_cost"][0] == "Accuracy against cost"
    assert "results table, at their held-out accuracy;" in found["score_vs_cost"][1]
    assert found["search_progress"][1] == "Scores (held-out accuracy) of the candidates as the search went on."
    assert "search without training" not in Page(write_report(tmp_path)).text


def test_what_was_retrained_looks_like_a_winner(tmp_path: Path) -> None:
    write_run(tmp_path)
    rows = json.loads((tmp_path / "result.json").read_text())
    edit(tmp_path / "result.json", winner=rows["winner"] | {"name": "retrained"})
    page = Page(write_report(tmp_path))
    assert marker_of("retrained") == marker_of("winner") == MARKERS["winner"]
    assert [value for name, value in page.attributes if name == "class"].count("winner") == 1
    figure = drawn("architecture", read_run(tmp_path))
    edit(tmp_path / "result.json", winner=rows["winner"])
    before = drawn("architecture", read_run(tmp_path))
    edges = [[patch.get_edgecolor() for patch in one.axes[0].patches] for one in (figure, before)]
    assert edges[0] == edges[1]


def test_a_retrained_model_alone_has_no_references_in_the_title(tmp_path: Path) -> None:
    arch = write_run(tmp_path)[0].arch
    edit(tmp_path / "result.json", winner=model("retrained", arch), references=[], front=[])
    page = Page(write_report(tmp_path))
    assert "Accuracy and size" in page.words
    assert "reference" not in page.text
