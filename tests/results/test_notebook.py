"""What notebooks show: short texts and tables, never pixels."""

from __future__ import annotations

import tiny
from nasformer.families.registry import get_space
from nasformer.results.result import RunResult
from nasformer.search.model_result import ModelResult
from nasformer.search.run import search


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


def test_a_run_result_shows_its_models_with_text_escaped() -> None:
    model = ModelResult("winner", {"a": 1}, {"params": 1000, "position_params": 1, "test_accuracy": 0.987654})
    result = RunResult("<s>", "digits", model, [ModelResult("random", {}, {"params": 900})])
    assert repr(result) == "RunResult(<s> on digits, winner: params 1000, test_accuracy 0.98765; 1 references)"
    html = result._repr_html_()
    assert "&lt;s&gt; on digits" in html
    assert "<td>random</td><td>900</td><td>nan</td>" in html
