"""Finalists in the report: what was predicted, what was measured, the budget, and where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from nasformer.errors import UserError
from nasformer.latency.search import Finalist, LatencyResult, MachineSetup, PredictionError
from nasformer.report.plots import finalist_rows, finalists
from nasformer.results.contents import read_run
from nasformer.utils.files import read_json
from nasformer.utils.schema import to_json

from .fake import edit, write_run
from .reading import HOSTILE, drawable, words_of

PREDICTED, MEASURED = [4.8, 4.9, 4.7, 4.6], [5.3, 5.1, 4.75, 4.5]
SETUP = MachineSetup("cpu", "eager", 1, 1, "fp32", "processor time", 7, (1.0, 1.1, 1.2), "an abacus")
HOLDOUT = PredictionError(30, 0.02, 0.05)
MEMORY: dict[str, int] = {"memory_bytes": 2_000_000, "measured_memory_bytes": 2_100_000}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "timed"
    write_run(run, population=6, generations=2, parents=2)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run whose third candidate by score won, since the first two are slower than was predicted."""
    folder = copytree(made, tmp_path / "timed")
    ranked = sorted(read_run(folder).candidates, key=lambda one: -one.scores["accuracy"])
    rows = [Finalist(one.arch.to_dict(), p, m) for one, p, m in zip(ranked, PREDICTED, MEASURED, strict=False)]
    write_latency(folder, rows, winner=2, note="as measured, the best 2 by score exceed latency_ms <= 5; number 3 wins")
    return folder


def write_latency(
    run: Path, rows: list[Finalist], winner: int = 0, note: str = "", holdout: PredictionError = HOLDOUT
) -> None:
    """Writes what a search by a profile would have written."""
    latency, result = LatencyResult(SETUP, holdout, rows, note), read_json(run / "result.json")
    edit(run / "result.json", latency=to_json(latency), winner={**result["winner"], "arch": rows[winner].arch})
    edit(run / "config.json", budget={"max_latency_ms": 5.0})


def drawn(run: Path) -> Figure:
    figure = finalists(read_run(run))
    assert figure is not None
    figure.canvas.draw()
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_the_page_shows_predictions_beside_measurements(run: Path) -> None:
    text = words_of(run).text
    assert "finalists" in drawable(run)
    for words in ("predicted latency in ms", "measured latency in ms", "number 1", "number 4", "number 3 wins"):
        assert words in text
    for value in (*PREDICTED, *MEASURED):
        assert f"{value:.5g}" in text
    assert "batch 1, threads 1; hold-out error of the prediction 2.0%" in text
    assert "memory in bytes" not in text  # which nobody measured here


def test_what_the_winner_takes_is_among_the_first_numbers(run: Path) -> None:
    edit(run / "result.json", winner={**read_json(run / "result.json")["winner"], "measured_latency_ms": 4.7531})
    page = words_of(run)
    tile = page.words.index("4.7531")
    assert page.words[tile + 1] == "measured latency in ms"
    assert page.words.count("4.7531") == 1  # no column of its own: it is known of no other model


def test_the_rows_are_by_score_and_the_winner_is_named(run: Path) -> None:
    rows = finalist_rows(read_run(run))
    assert [one.name for one in rows] == ["number 1", "number 2", "winner", "number 4"]
    scores = [one.scores["accuracy"] for one in rows]
    assert scores == sorted(scores, reverse=True)


def test_the_picture_has_both_and_the_line_of_the_budget(run: Path) -> None:
    figure = drawn(run)
    (axes,) = figure.axes
    dots: Any = {one.get_label(): np.asarray(one.get_offsets()).tolist() for one in axes.collections}
    assert dots["predicted"] == [[ms, place] for place, ms in enumerate(PREDICTED)]
    assert dots["winner, measured"] == [[MEASURED[2], 2]]
    (line,) = axes.get_lines()
    assert (np.asarray(line.get_xdata()).tolist(), line.get_label()) == ([5.0, 5.0], "budget: latency in ms ≤ 5")
    assert legend(figure) == ["predicted", "measured", "winner, measured", "budget: latency in ms ≤ 5"]
    low, high = axes.get_xlim()
    assert low < min(PREDICTED + MEASURED) < 5 < max(MEASURED) < high
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the best at the top
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < height + 0.02


def test_a_limit_that_is_far_away_does_not_squeeze_the_dots(run: Path) -> None:
    edit(run / "config.json", budget={"max_latency_ms": 500.0})
    figure = drawn(run)
    assert figure.axes[0].get_xlim()[1] < 10
    assert "budget: latency in ms ≤ 500, off the plot" in legend(figure)


def test_memory_has_a_panel_where_it_has_a_limit(run: Path) -> None:
    archs = [one.arch for one in finalist_rows(read_run(run))]
    write_latency(run, [Finalist(dict(arch), 4.0, 4.1, **MEMORY) for arch in archs])
    assert len(drawn(run).axes) == 1
    assert "2,100,000" not in words_of(run).text
    edit(run / "config.json", budget={"max_memory_bytes": 3_000_000})
    assert "2,100,000" in words_of(run).text
    time, memory = drawn(run).axes
    assert not time.get_lines()
    assert [line.get_label() for line in memory.get_lines()] == ["budget: memory in bytes ≤ 3M"]


def test_where_nothing_could_be_measured_it_is_said(run: Path) -> None:
    why = "latency is predicted, not measured: the profile is of another machine (processor an abacus, cores 2)"
    edit(run / "result.json", latency=to_json(LatencyResult(SETUP, HOLDOUT, [], why)))
    text = words_of(run).text
    assert why in text
    assert "No candidate could be measured" in text
    assert "predictions for eager on an abacus" in text
    assert finalists(read_run(run)) is None


def test_a_profile_that_was_not_tested_has_no_error_to_tell(run: Path) -> None:
    rows = [Finalist(dict(one.arch), 4.0, 4.1) for one in finalist_rows(read_run(run))]
    write_latency(run, rows, holdout=PredictionError())
    text = words_of(run).text
    assert "threads 1." in text
    assert "hold-out error" not in text


def test_a_run_without_a_profile_says_nothing_of_finalists(made: Path) -> None:
    assert "Finalists" not in words_of(made).text
    assert finalists(read_run(made)) is None


def test_hostile_notes_stay_text(run: Path) -> None:
    edit(run / "result.json", latency={**read_json(run / "result.json")["latency"], "note": HOSTILE})
    found = words_of(run)
    assert HOSTILE in found.text
    assert found.tags.count("script") == 1


@pytest.mark.parametrize("damage", [[1], "fast", {"finalists": []}, {"finalists": 3}, {"finalists": [4]}])
def test_damage_is_told_in_one_line(run: Path, damage: Any) -> None:
    edit(run / "result.json", latency=damage)
    with pytest.raises(UserError, match=r"result\.json: latency") as caught:
        read_run(run)
    assert "\n" not in str(caught.value)
