"""Reports of runs that are not a training and a search: a search without training, and a retraining."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from nasformer.report.page import captions, write_report
from nasformer.report.plots import FIGURES
from nasformer.report.style import MARKERS, format_score, marker_of
from nasformer.results.contents import RunContents, read_run
from nasformer.search.run import SearchResult

from .fake import edit, model, write_run, write_untrained_run
from .reading import Page, plots, words_of


@dataclass(frozen=True)
class Searched:
    """A search without training: its folder with the report, what it found, and by which scores."""

    folder: Path
    result: SearchResult
    proxies: tuple[str, ...]


@pytest.fixture(scope="module", params=[("zen",), ("dss", "zen")], ids="+".join)
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Tests read it only."""
    folder = tmp_path_factory.mktemp("untrained")
    result = write_untrained_run(folder, *request.param)
    write_report(folder)
    return Searched(folder, result, request.param)


def drawn(name: str, run: RunContents) -> Figure:
    figure = FIGURES[name](run)
    assert figure is not None
    return figure


def test_nothing_is_said_of_what_was_not_measured(searched: Searched) -> None:
    page = Page(searched.folder / "report.html")
    assert plots(searched.folder) == {"score_vs_cost", "search_progress", "architecture"}
    assert page.tags.count("img") + page.tags.count("svg") == 3
    texts = [page.text, *(value for name, value in page.attributes if name == "alt")]
    assert not [text for text in texts if "accuracy" in text.lower()]


def test_the_page_names_the_scores(searched: Searched) -> None:
    page, proxies = Page(searched.folder / "report.html"), searched.proxies
    assert f"A search without training: models were judged by {' and '.join(proxies)} with" in page.text
    assert f"Score ({proxies[0]}) against cost" in page.words
    result = json.loads((searched.folder / "result.json").read_text())
    for row in [result["winner"], *result["references"]]:
        at = page.words.index(row["name"])
        assert page.words[at + 1 : at + 1 + len(proxies)] == [format_score(name, row[name]) for name in proxies]
    for name in proxies:  # the tiles
        assert page.words[page.words.index(name) - 1] == format_score(name, searched.result.best.scores[name])


def test_that_ranks_decided_together_is_told(searched: Searched) -> None:
    run, several = read_run(searched.folder), len(searched.proxies) > 1
    page = Page(searched.folder / "report.html")
    for name in ("score_vs_cost", "search_progress"):
        words = "The search went by the ranks of dss and zen together; the figure shows dss alone."
        assert (words in captions(run)[name][1]) == several
    assert f"The Pareto front{' by all ranks together' * several} ({len(searched.result.front)})" in page.words
    legend = [text.get_text() for text in drawn("score_vs_cost", run).legends[0].get_texts()]
    assert f"Pareto front{' by dss alone' * several}" in legend


def test_the_plots_show_the_first_score(searched: Searched) -> None:
    run, score = read_run(searched.folder), searched.proxies[0]
    axes = drawn("score_vs_cost", run).axes[0]
    heights = np.asarray(axes.collections[0].get_offsets())[:, 1].tolist()
    assert heights == pytest.approx([candidate.scores[score] for candidate in searched.result.candidates])
    assert axes.get_ylabel() == drawn("search_progress", run).axes[0].get_ylabel() == score


def test_references_stand_where_their_own_score_is(searched: Searched) -> None:
    """They need not be among the candidates."""
    run = read_run(searched.folder)
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
    assert words_of(tmp_path).words.count("–") >= len(rows)


def test_captions_of_a_search_by_accuracy_say_so(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = captions(read_run(tmp_path))
    assert found["score_vs_cost"][0] == "Accuracy against cost"
    assert "results table, at their held-out accuracy;" in found["score_vs_cost"][1]
    assert found["search_progress"][1] == "Scores (held-out accuracy) of the candidates as the search went on."
    assert "search without training" not in words_of(tmp_path).text


def test_what_was_retrained_looks_like_a_winner(tmp_path: Path) -> None:
    write_run(tmp_path)
    rows = json.loads((tmp_path / "result.json").read_text())
    edit(tmp_path / "result.json", winner=rows["winner"] | {"name": "retrained"})
    page = words_of(tmp_path)
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
    assert captions(read_run(tmp_path))["bars"][0] == "Accuracy and size"
    assert "reference" not in words_of(tmp_path).text
