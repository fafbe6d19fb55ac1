from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from families.small import golden, golden_path
from nasformer.errors import UserError
from nasformer.proxies.ranking import (
    Ranking,
    kendall_by_band,
    partial_kendall,
    rank,
    read_table,
    size_bands,
    trivial_counts,
)
from nasformer.report.ranking import PANELS, plot_ranking, print_ranking, ranking_figure, sentence
from nasformer.utils.statistics import kendall

from .tables import interval, made_up, noise, within

ROWS = 200
TABLE, SIZE, SIGNAL = made_up(ROWS)
HOLES = np.where(np.arange(ROWS) % 10 == 3, np.nan, SIGNAL)
SCORES: dict[str, np.ndarray] = {
    "copy": SIZE + 0.3 * noise(ROWS),
    "signal": SIGNAL + 0.5 * noise(ROWS),
    "both": 2 * SIZE + SIGNAL + 0.2 * noise(ROWS),
    "flat": np.ones(ROWS),
    "holes": HOLES,
    "two": np.where(np.arange(ROWS) < 2, SIGNAL, np.inf),
}
FIELDS = {
    *("kendall", "kendall_interval", "spearman", "spearman_interval", "kendall_within_bands"),
    *("kendall_within_bands_interval", "kendall_by_band", "partial_kendall", "partial_spearman"),
    *("seconds_per_net", "missing", "beats"),
}


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return rank(TABLE, "top1", SCORES, {"copy": 0.25}, resamples=400)


@pytest.fixture(scope="module")
def content(ranking: Ranking) -> dict[str, Any]:
    return json.loads(json.dumps(ranking.to_dict(), allow_nan=False))


def test_what_is_written(content: dict[str, Any]) -> None:
    assert {name: content[name] for name in ("n", "target", "space", "bands")} == {
        "n": ROWS,
        "target": "top1",
        "space": "autoformer-small",
        "bands": 5,
    }
    assert list(content["proxies"]) == list(SCORES)
    assert list(content["counts"]) == ["params", "macs", "depth", "embed_dim", "num_heads", "mlp_ratio"]
    for score in [*content["proxies"].values(), *content["counts"].values()]:
        assert set(score) - {"reason"} == FIELDS
        assert len(score["kendall_by_band"]) == 5
        assert set(score["beats"]) == {"params", "best_count"}
    assert content["proxies"]["copy"]["seconds_per_net"] == 0.25
    assert content["proxies"]["both"]["seconds_per_net"] is None


def test_numbers_are_those_of_the_statistics(ranking: Ranking) -> None:
    x, y, score = SCORES["both"], TABLE.accuracy["top1"], ranking.proxies["both"]
    assert score.kendall.value == pytest.approx(kendall(x, y))
    assert score.spearman.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert score.kendall.interval == pytest.approx(interval(x, y, "kendall", seed=0, resamples=400))
    assert score.spearman.interval == pytest.approx(interval(x, y, "spearman", seed=0, resamples=400))
    assert score.partial_kendall == pytest.approx(partial_kendall(x, y, SIZE))
    band = size_bands(SIZE)
    assert (score.within, score.by_band) == (within(x, y, band, resamples=400), kendall_by_band(x, y, band, bands=5))


def test_a_noisy_copy_of_the_size_knows_nothing_more(content: dict[str, Any]) -> None:
    score = content["proxies"]["copy"]
    assert score["kendall"] > 0.5
    assert abs(score["partial_spearman"]) < 0.1
    for versus in (score["beats"]["params"], score["beats"]["params"]["within_bands"]):
        assert versus["difference"] < 0
        assert not versus["better"]


def test_a_signal_beside_the_size_is_seen_within_bands(content: dict[str, Any]) -> None:
    """Over all rows size ranks far better; among archs of one size the signal does."""
    score, size = content["proxies"]["signal"], content["counts"]["params"]
    assert score["kendall"] < size["kendall"]
    assert score["kendall_within_bands"] > 0.4 > size["kendall_within_bands"]
    assert score["partial_spearman"] > 0.6
    versus = score["beats"]["params"]
    assert not versus["better"]
    assert versus["within_bands"]["better"]
    assert versus["within_bands"]["interval"][0] > 0


def test_what_beats_every_count(content: dict[str, Any]) -> None:
    score = content["proxies"]["both"]
    best = max(content["counts"], key=lambda name: content["counts"][name]["kendall"])
    versus = score["beats"]["best_count"]
    assert versus["name"] == best
    assert versus["difference"] == pytest.approx(score["kendall"] - content["counts"][best]["kendall"])
    assert versus["better"]
    assert versus["within_bands"]["better"]


def test_chance_is_no_better_than_a_size_that_ranks_the_wrong_way_round() -> None:
    table = replace(TABLE, accuracy={"top1": [-value for value in TABLE.accuracy["top1"]]})
    score = rank(table, "top1", {"chance": noise(ROWS)}, resamples=400).proxies["chance"]
    assert score.beats["params"].overall.difference.above_zero
    assert not score.beats["params"].overall.better
    assert "; above params but no better than chance (difference 0." in sentence("chance", score)


def test_differences_are_paired(content: dict[str, Any]) -> None:
    """Resampled together, a copy and its source differ less than if each had its own resamples."""
    copy, source = content["proxies"]["copy"], content["counts"]["params"]
    paired, *apart = (
        high - low
        for low, high in (copy["beats"]["params"]["interval"], copy["kendall_interval"], source["kendall_interval"])
    )
    assert paired < 0.75 * math.hypot(*apart)
    assert content["counts"]["params"]["beats"]["params"]["interval"] == [0, 0]


def test_rows_without_a_score_are_left_out_for_it_alone(content: dict[str, Any]) -> None:
    kept = np.isfinite(HOLES)
    accuracy = np.array(TABLE.accuracy["top1"])[kept]
    score = content["proxies"]["holes"]
    assert score["missing"] == 20
    assert score["kendall"] == pytest.approx(kendall(HOLES[kept], accuracy))
    rival = kendall(SIZE[kept], accuracy)
    assert score["beats"]["params"]["difference"] == pytest.approx(score["kendall"] - rival)  # type: ignore[operator]
    assert content["proxies"]["copy"]["missing"] == 0


@pytest.mark.parametrize(
    ("name", "reason", "missing"),
    [("flat", "all 200 scores are equal", 0), ("two", "2 finite scores are too few to rank", 198)],
)
def test_what_cannot_be_ranked_says_why(content: dict[str, Any], name: str, reason: str, missing: int) -> None:
    score = content["proxies"][name]
    assert score["reason"] == reason
    assert score["missing"] == missing
    assert score["kendall"] is score["kendall_interval"] is score["partial_kendall"] is None
    assert score["kendall_by_band"] == [None] * 5
    assert score["beats"]["params"]["difference"] is None
    assert score["beats"]["params"]["better"] is False


def test_rows_without_the_target_go_with_their_scores() -> None:
    kept = np.arange(ROWS) % 4 != 0
    accuracy = {"top1": [v if k else math.nan for v, k in zip(TABLE.accuracy["top1"], kept, strict=True)]}
    table = replace(TABLE, accuracy=accuracy)
    found = rank(table, "top1", {"copy": SCORES["copy"]}, resamples=20)
    assert found == rank(table.select("top1"), "top1", {"copy": SCORES["copy"][kept]}, resamples=20)
    assert found.n == 150
    assert found.proxies["copy"].missing == 0


def test_same_seed_same_ranking(ranking: Ranking) -> None:
    scores = {"both": SCORES["both"]}
    again = rank(TABLE, "top1", scores, resamples=400)
    assert again.proxies["both"] == ranking.proxies["both"]
    assert rank(TABLE, "top1", scores, resamples=400, seed=1).proxies["both"] != ranking.proxies["both"]


def test_equal_accuracies_and_wrong_arguments() -> None:
    flat = replace(TABLE, accuracy={"top1": [1.0] * ROWS})
    assert rank(flat, "top1", SCORES, resamples=5).counts["params"].reason == "all 200 accuracies are equal"
    with pytest.raises(UserError, match="no column 'top5'"):
        rank(TABLE, "top5", {})
    with pytest.raises(UserError, match="bands is 0"):
        rank(TABLE, "top1", {}, bands=0)
    with pytest.raises(ValueError, match="short has 3 scores for 200 rows"):
        rank(TABLE, "top1", {"short": [1, 2, 3]})


def test_three_rows_are_enough() -> None:
    table = replace(TABLE, archs=TABLE.archs[:3], accuracy={"top1": TABLE.accuracy["top1"][:3]})
    found = rank(table, "top1", {"copy": SCORES["copy"][:3]})
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.proxies["copy"].kendall.value is not None
    assert found.proxies["copy"].within.value is None


def printed(ranking: Ranking) -> str:
    console = Console(file=StringIO(), width=80)
    print_ranking(ranking, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_printed_table_holds_all_scores_in_eighty_columns(ranking: Ranking) -> None:
    table = printed(ranking).partition("copy: ")[0].splitlines()
    names = [line.split()[0] for line in table if line.strip()]
    assert [name for name in names if name in SCORES or name in ranking.counts] == [*SCORES, *ranking.counts]
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table)


def test_sentences(ranking: Ranking) -> None:
    text = printed(ranking)
    for name in SCORES:
        assert f"\n{sentence(name, ranking.proxies[name])}\n" in text
    assert "within bands better than params" in sentence("signal", ranking.proxies["signal"])
    assert "; no better than params (difference -" in sentence("copy", ranking.proxies["copy"])
    assert "; better than params (difference 0." in sentence("both", ranking.proxies["both"])
    assert sentence("holes", ranking.proxies["holes"]).endswith("; without 20 rows that have no finite score")
    assert sentence("flat", ranking.proxies["flat"]) == "flat: no ranking, all 200 scores are equal"


def test_plot(ranking: Ranking, tmp_path: Path) -> None:
    plot_ranking(ranking, TABLE, SCORES, "top1", tmp_path / "plots" / "ranking.png")
    assert (tmp_path / "plots" / "ranking.png").read_bytes().startswith(b"\x89PNG")
    figure = ranking_figure(ranking, TABLE, SCORES, "top1")
    left, right = figure.subfigs
    names = [label.get_text() for label in left.axes[0].get_yticklabels()]
    assert sorted(names) == sorted([*SCORES, *ranking.counts])
    assert names[0] == "both"  # proxies first, the best of them on top
    assert set(names[len(SCORES) :]) == set(ranking.counts)
    panels = [axes for axes in right.axes if axes.collections and axes.get_xlabel().split(" (")[0] in SCORES]
    assert len(panels) == PANELS
    holes = next(axes for axes in panels if axes.get_xlabel().startswith("holes"))
    assert np.shape(holes.collections[0].get_offsets()) == (180, 2)


def test_plot_without_proxies() -> None:
    figure = ranking_figure(rank(TABLE, "top1", {}, resamples=20), TABLE, {}, "top1")
    assert len(figure.subfigs) == 1


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("tiny", {"params": 0.480, "depth": 0.629}),
        ("small", {"params": 0.791}),
        ("base", {"params": 0.066, "embed_dim": 0.268}),
    ],
)
def test_published_tables(size: str, expected: dict[str, float]) -> None:
    """Counts and taus agree with what the files themselves hold, where they hold it."""
    name = f"inherited_autoformer_{size}.json"
    table, rows = read_table(golden_path(name)), golden(name)["rows"]
    accuracy = [row["accuracy"]["imagenet_inherited"] for row in rows]
    columns = {
        "params": [row["params"] for row in rows],
        "depth": [row["arch"]["depth"] for row in rows],
        "embed_dim": [row["arch"]["embed_dim"] for row in rows],
        "num_heads": [sum(row["arch"]["num_heads"]) for row in rows],
    }
    counts = trivial_counts(table.space, table.archs)
    ranking = rank(table, "imagenet_inherited", {}, resamples=10)
    for column, values in columns.items():
        assert counts[column] == values
        tau = stats.kendalltau(values, accuracy).statistic
        assert ranking.counts[column].kendall.value == pytest.approx(tau)
    assert {key: round(ranking.counts[key].kendall.value or 0, 3) for key in expected} == expected
