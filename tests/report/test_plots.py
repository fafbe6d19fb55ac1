from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nasformer.report.page import captions
from nasformer.report.plots import FIGURES
from nasformer.results.contents import BEST, MOST, RunContents, front, read_run
from nasformer.search.problem import ModelResult
from nasformer.space.arch import Arch

from .fake import PLOTS, SPACE, edit, model, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    folder = tmp_path_factory.mktemp("plain")
    write_run(folder)
    return read_run(folder)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    """Two limits, many references, some of them far from all candidates, and long names."""
    folder = tmp_path_factory.mktemp("crowded")
    write_run(folder)
    edit(folder / "config.json", budget={"min_params": 30_000, "max_params": 150_000, "max_macs": 12_000_000})
    rivals = [model(f"random {k}", SPACE.root.sample(Random(k))) for k in range(4)]
    ends = [model("smallest", SPACE.root.smallest()), model("largest", SPACE.root.largest())]
    named = {**ends[1], "name": "a_published_model_with_a_very_long_name_indeed"}
    edit(folder / "result.json", references=[*rivals, *ends, named])
    return read_run(folder)


def drawn(name: str, run: RunContents) -> Figure:
    figure = FIGURES[name](run)
    assert figure is not None
    return figure


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.get_lines()}


def test_every_plot_has_its_words_on_the_page(run: RunContents) -> None:
    assert set(FIGURES) == set(captions(run))
    assert {name for name, draw in FIGURES.items() if draw(run)} == PLOTS


@pytest.mark.parametrize("name", sorted(PLOTS))
@pytest.mark.parametrize("kind", ["run", "crowded"])
def test_nothing_leaves_the_picture(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    figure = drawn(name, request.getfixturevalue(kind))
    figure.canvas.draw()
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < height + 0.02


@pytest.mark.parametrize("kind", ["run", "crowded"])
def test_no_text_of_the_drawing_hides_another(kind: str, request: pytest.FixtureRequest) -> None:
    figure = drawn("architecture", request.getfixturevalue(kind))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("name", ["score_vs_cost", "search_progress"])
def test_the_legend_names_all_that_is_drawn(name: str, run: RunContents) -> None:
    known = labels(drawn(name, run))
    expected = {
        "score_vs_cost": ["winner", "candidate", "Pareto front", "random", "budget: parameters ≤ 150K"],
        "search_progress": ["best so far", "median", "middle half", "random reference"],
    }
    assert set(expected[name]) <= set(known)
    assert len(known) == len(set(known))


def test_the_front_is_what_no_candidate_beats(run: RunContents) -> None:
    line = lines(drawn("score_vs_cost", run).axes[0])["Pareto front"]
    front = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    points = [(c.scores["params"], 100 * c.scores["accuracy"]) for c in run.candidates]
    best = [p for p in points if not any(x <= p[0] and y >= p[1] and (x, y) != p for x, y in points)]
    assert front == sorted(set(best))


def test_a_far_reference_does_not_squeeze_the_candidates(crowded: RunContents) -> None:
    figure = drawn("score_vs_cost", crowded)
    sizes = [c.scores["params"] for c in crowded.candidates]
    left, right = figure.axes[0].get_xlim()
    assert (max(sizes) - min(sizes)) / (right - left) > 0.5
    assert any(text.startswith("largest, off the plot: 315K") for text in labels(figure))
    assert "random" in labels(figure)
    assert "random 2" not in labels(figure)


def test_references_of_one_name_are_all_marked(run: RunContents) -> None:
    twins = [ModelResult("random", m.arch, {**m.scores, "params": 90_000 + k}) for k, m in enumerate(run.models)]
    assert run.result is not None
    figure = drawn("score_vs_cost", replace(run, result=replace(run.result, references=twins)))
    dots = [one for one in figure.axes[0].collections if one.get_label() == "random"]
    assert len(dots) == len(twins)


def test_a_long_search_is_thinned_to_its_front_its_best_and_a_sample(run: RunContents) -> None:
    rng, first = Random(0), run.candidates[0]
    scores = [{"params": rng.randrange(30_000, 150_000), "accuracy": rng.random()} for _ in range(20_000)]
    long = replace(run, candidates=[replace(first, id=n, scores=one) for n, one in enumerate(scores)])
    kept = long.drawn
    ids = {candidate.id for candidate in kept}
    stairs = front(long.candidates, "params", "accuracy")
    assert len(kept) <= MOST + BEST + len(stairs)
    assert ids >= {candidate.id for candidate in stairs}
    assert ids >= set(sorted(range(20_000), key=lambda n: -scores[n]["accuracy"])[:BEST])
    assert kept == replace(long).drawn
    assert f"Of 20,000 candidates, {len(kept):,} are drawn" in captions(long)["score_vs_cost"][1]
    assert "are drawn" not in captions(run)["score_vs_cost"][1]
    dots = drawn("score_vs_cost", long).axes[0].collections[0]
    assert len(np.asarray(dots.get_offsets())) == len(kept)


def test_each_limited_cost_has_its_panel(crowded: RunContents) -> None:
    names = [axes.get_xlabel() for axes in drawn("score_vs_cost", crowded).axes]
    assert names[:2] == ["parameters", "MACs (multiply-accumulates an image)"]


def test_where_all_score_0_axes_begin_there(run: RunContents) -> None:
    nothing = dict.fromkeys(run.candidates[0].scores, 0.0) | {"params": 1000.0, "macs": 1000.0}
    candidates = [replace(candidate, scores=nothing) for candidate in run.candidates]
    references = [replace(one, scores=nothing) for one in run.result.references]
    result = replace(run.result, winner=replace(run.result.winner, scores=nothing), references=references)
    for name in ("score_vs_cost", "search_progress"):
        low, high = drawn(name, replace(run, candidates=candidates, result=result)).axes[0].get_ylim()
        assert -0.1 < low < 0 < high == 1


def test_progress_never_falls_and_ends_with_the_best(run: RunContents) -> None:
    curve = lines(drawn("search_progress", run).axes[0])["best so far"].get_ydata()
    assert list(curve) == sorted(curve)
    assert curve[-1] == pytest.approx(100 * max(c.scores["accuracy"] for c in run.candidates))


def test_the_random_line_is_the_mean_of_the_references(crowded: RunContents) -> None:
    line = lines(drawn("search_progress", crowded).axes[0])["mean of 4 random references"]
    known = [m.scores["holdout_accuracy"] for m in crowded.models if m.name.startswith("random")]
    assert line.get_ydata()[0] == pytest.approx(100 * sum(known) / 4)


def test_a_search_without_generations_goes_by_candidates(run: RunContents) -> None:
    flat = [replace(candidate, generation=0) for candidate in run.candidates]
    axes = drawn("search_progress", replace(run, candidates=flat)).axes[0]
    assert axes.get_xlabel() == "candidates judged"
    assert lines(axes)["median"].get_xdata()[-1] == len(flat)


def test_bars_start_at_zero_and_end_at_the_accuracy(run: RunContents) -> None:
    axes = drawn("bars", run).axes[0]
    assert axes.get_xlim()[0] == 0
    lengths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert lengths == pytest.approx([100 * m.scores["test_accuracy"] for m in run.models])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["winner", "random", "smallest", "largest"]


def test_training_shows_every_step_and_a_smooth_line_through_them(run: RunContents) -> None:
    upper, lower = drawn("training_curve", run).axes
    assert list(lines(upper)["loss"].get_ydata()) == [line.loss for line in run.log]
    assert lower.get_xlabel() == "epoch"
    raw, smooth = (lines(upper)[name].get_ydata() for name in ("loss", "running median"))
    assert sum(abs(smooth[1:] - smooth[:-1])) < 0.5 * sum(abs(raw[1:] - raw[:-1]))


def test_a_model_found_in_the_journal_has_its_score(run: RunContents) -> None:
    winner = run.models[0]
    without = ModelResult("winner", winner.arch, {"params": 1})
    best = [c for c in run.candidates if c.arch == Arch.from_dict(winner.arch)]
    assert run.score_of(without) == best[0].scores["accuracy"]
    assert math.isnan(run.score_of(ModelResult("other", {"a": 1}, {})))
