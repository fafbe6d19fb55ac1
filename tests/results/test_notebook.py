"""What notebooks show: short texts and tables, never pixels."""

from __future__ import annotations

import pytest

import tiny
from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.report.plots import plot
from nasformer.results.contents import RunContents
from nasformer.results.result import RunResult
from nasformer.search.problem import ModelResult
from nasformer.search.run import search
from nasformer.space.budget import Budget


def test_data_shows_counts_and_no_pixels() -> None:
    assert repr(tiny.DATA.test) == "ImageSet(360 images of 1 x 8 x 8)"
    assert repr(tiny.DATA).startswith("Data('digits', ")
    assert "360 test images of 1 x 8 x 8, 10 classes" in repr(tiny.DATA)
    html = tiny.DATA._repr_html_()
    assert "360" in html
    assert len(html) < 1500


def test_archs_and_search_results_show_as_tables() -> None:
    space = get_space("autoformer-micro")
    found = search(space, lambda arch: {"accuracy": 0.5}, space.costs, strategy="random", options={"evaluations": 30})
    assert repr(found).startswith("SearchResult(30 candidates, ")
    assert "accuracy 0.5" in repr(found)
    assert "<td>best</td>" in found._repr_html_()
    assert "<td>embed_dim</td>" in found.best.arch._repr_html_()
    assert len(repr(found)) < 200


def test_figures_of_a_search_are_shown_inline() -> None:
    space = get_space("autoformer-micro")
    found = search(
        space,
        lambda arch: {"score": arch.embed_dim / 64},
        space.costs,
        options={"population": 4, "generations": 2, "parents": 2},
        budget=Budget(max_params=150_000),
        objectives=("score", "-params"),
    )
    for picture in (plot(found), plot(found, "search_progress"), plot(found, "architecture")):
        pixels, metadata = picture._repr_png_()
        assert pixels.startswith(b"\x89PNG")
        assert 200 < metadata["width"] < 1000
    drawn = plot(found).svg.decode()
    assert "budget: parameters ≤ 150K" in drawn
    assert plot(found) == plot(RunContents.of_search(found), "score_vs_cost")
    with pytest.raises(UserError, match="no figure 'font'; there are: trade_off, "):
        plot(found, "font")
    with pytest.raises(UserError, match=r"nothing to draw as training_curve in RunContents\('.', 8 candidates"):
        plot(found, "training_curve")


def test_figures_of_a_result_are_shown_inline() -> None:
    model = ModelResult("winner", {}, {"params": 1000, "test_accuracy": 0.9})
    assert plot(RunResult("space", "digits", model)) == plot(RunResult("space", "digits", model), "bars")


def test_a_run_result_shows_its_models_with_text_escaped() -> None:
    model = ModelResult("winner", {"a": 1}, {"params": 1000, "position_params": 1, "test_accuracy": 0.987654})
    result = RunResult("<s>", "digits", model, [ModelResult("random", {}, {"params": 900})])
    assert repr(result) == "RunResult(<s> on digits, winner: params 1000, test_accuracy 0.98765; 1 references)"
    html = result._repr_html_()
    assert "&lt;s&gt; on digits" in html
    assert "<td>random</td><td>900</td><td>nan</td>" in html
