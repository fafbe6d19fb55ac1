"""The commands that train nothing: proxies, score, rank, and search with --proxy."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kill
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models.registry import get_space
from nasformer.models.storage import load_model
from nasformer.proxies.registry import list_proxies
from nasformer.proxies.scoring import Scorer
from nasformer.search.journal import read_journal
from nasformer.search.pareto import aggregate_ranks, pareto_front
from nasformer.utils.files import read_json
from small_run import contents, json_output, output, pictures, refused

MICRO = ["--space", "autoformer-micro", "--img-size", "16", "--patch-size", "8", "--num-classes", "10"]
MICRO += ["--device", "cpu", "--probe-size", "8"]
ARCH = '{"embed_dim": 32, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}'
SPACE = get_space("autoformer-micro", img_size=16, patch_size=8, num_classes=10)
RANDOM = ["--search.strategy", "random", "--search.evaluations", "12", "--max-params", "120K"]


# proxies


def test_the_list_of_proxies(capsys: Any) -> None:
    lines = output(capsys, "proxies").splitlines()
    assert [line.split()[0] for line in lines] == list(list_proxies())
    assert all(proxy.formula in line for line, proxy in zip(lines, list_proxies().values(), strict=True))


def test_one_proxy_in_full(capsys: Any) -> None:
    text, proxy = output(capsys, "proxies", "dss"), list_proxies()["dss"]
    for fact in (proxy.formula, proxy.sees, proxy.loss, proxy.init, proxy.higher, proxy.paper):
        assert fact in text
    assert "snip" not in text


def test_proxies_as_json(capsys: Any) -> None:
    found = json_output(capsys, "proxies")
    assert list(found) == list(list_proxies())
    assert all(set(facts) == {"formula", "sees", "loss", "init", "higher", "paper"} for facts in found.values())
    assert list(json_output(capsys, "proxies", "snip")) == ["snip"]


# score


def test_a_score_in_words(capsys: Any) -> None:
    expected = Scorer(SPACE, "dss,naswot", batch_size=8, repeats=2).score(SPACE.arch(ARCH))
    lines = output(capsys, "score", *MICRO, "--arch", ARCH, "--proxy", "dss,naswot", "--repeats", "2").splitlines()
    assert [line.split()[0] for line in lines] == ["dss", "naswot"]
    for line, score in zip(lines, expected.values(), strict=True):
        assert f"{score.mean:.6g} ± {score.std:.3g} over 2 repeats" in line
    assert "±" not in output(capsys, "score", *MICRO, "--arch", ARCH, "--proxy", "dss")


def test_scores_as_json(capsys: Any) -> None:
    expected = Scorer(SPACE, "dss,params", batch_size=8, repeats=3, seed=4).score(SPACE.arch(ARCH))
    more = ["--proxy", "dss, params", "--repeats", "3", "--seed", "4"]
    found = json_output(capsys, "score", *MICRO, "--arch", ARCH, *more)
    assert found["space"] == "autoformer-micro"
    assert found["arch"] == SPACE.arch(ARCH).to_dict()
    assert (found["params"], found["macs"]) == (SPACE.cost(SPACE.arch(ARCH)).params, SPACE.cost(SPACE.arch(ARCH)).macs)
    assert list(found["proxies"]) == ["dss", "params"]
    for name, score in expected.items():
        assert found["proxies"][name]["mean"] == score.mean
        assert found["proxies"][name]["std"] == score.std
        assert found["proxies"][name]["seconds"] > 0


def test_a_score_on_data(capsys: Any) -> None:
    argv = ["score", "--space", "autoformer-micro", "--patch-size", "4", "--arch", ARCH, "--proxy", "snip,params"]
    shown = json_output(capsys, *argv, "--device", "cpu", "--data", "digits")
    fitted = get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=10)
    assert shown["params"] == shown["proxies"]["params"]["mean"] == fitted.cost(fitted.arch(ARCH)).params
    again = json_output(capsys, *argv, "--device", "cpu", "--data", "digits")
    assert again["proxies"]["snip"]["mean"] == shown["proxies"]["snip"]["mean"]
    larger = json_output(capsys, *argv, "--device", "cpu", "--data", "digits", "--img-size", "16")
    assert larger["params"] == fitted.with_options(img_size=16).cost(fitted.arch(ARCH)).params


def test_a_proxy_that_does_not_apply_is_no_error(capsys: Any) -> None:
    argv = ["score", *MICRO, "--probe-size", "1", "--arch", ARCH, "--proxy", "ntk,dss"]
    first, second = output(capsys, *argv).splitlines()
    assert first.startswith("ntk")
    assert "not applicable: " in first
    assert "at least 2" in first
    assert "not applicable" not in second
    found = json_output(capsys, *argv)["proxies"]
    assert found["ntk"]["mean"] is None
    assert "at least 2" in found["ntk"]["not_applicable"]
    assert found["dss"]["mean"] > 0


def test_a_preset_larger_than_the_space_is_scored(capsys: Any) -> None:
    preset = SPACE.presets["autoformer-t"]
    found = json_output(capsys, "score", *MICRO, "--arch", "autoformer-t", "--proxy", "dss,params")
    assert found["arch"] == preset.to_dict()
    assert found["params"] == found["proxies"]["params"]["mean"] == SPACE.cost(preset).params
    largest = SPACE.root.largest()
    assert found["params"] > SPACE.cost(largest).params
    scores = Scorer(SPACE, "dss", batch_size=8).many([preset, largest])
    assert found["proxies"]["dss"]["mean"] == scores[0]["dss"] > scores[1]["dss"]


MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown proxy": (["score", *MICRO, "--arch", ARCH, "--proxy", "dsss"], "unknown proxy 'dsss'; did you mean dss?"),
    "unknown proxy to describe": (["proxies", "snipp"], "unknown proxy 'snipp'; did you mean snip?"),
    "nothing like it": (["proxies", "xyzzy"], "unknown proxy 'xyzzy'; there are: autoprox,"),
    "no proxy": (["score", *MICRO, "--arch", ARCH], "name at least one proxy; there are: autoprox,"),
    "no arch": (["score", *MICRO, "--proxy", "dss"], "name an architecture with --arch"),
    "no space": (["score", "--arch", ARCH, "--proxy", "dss"], "name a space with --space"),
    "no repeats": (["score", *MICRO, "--arch", ARCH, "--proxy", "dss", "--repeats", "0"], "repeats is 0; give 1"),
    "no images": (["score", *MICRO, "--arch", ARCH, "--proxy", "dss", "--probe-size=-1"], "probe_size is -1; give "),
    "other classes": (
        ["score", *MICRO[:-4], "--arch", ARCH, "--proxy", "dss", "--data", "digits", "--num-classes", "3"],
        "digits has num_classes 10, not 3",
    ),
    "nothing fits": (
        ["search", *MICRO, "--proxy", "dss", "--max-params", "1K", "--out", "OUT"],
        "no architecture fits params <= 1K",
    ),
    "unknown strategy": (["search", *MICRO, "--proxy", "dss", "--search.strategy", "luck"], "luck"),
    "unknown objective": (
        ["search", *MICRO, "--proxy", "dss", *RANDOM, "--search.objectives", "[dss,-weight]"],
        "objective 'weight' is not among the scores: params, macs,",
    ),
    "unknown proxy to search by": (["search", *MICRO, "--proxy", "dss,snup"], "unknown proxy 'snup'; did you mean"),
    "a search in no space": (["search", "--proxy", "dss"], "name a space with --space"),
    "no table": (["rank", "--proxy", "dss"], "say which table and column: nasformer rank --table FILE"),
    "a table that is not there": (["rank", "--table", "no.json", "--target", "top1"], "no.json"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_said_in_one_line(case: str, capsys: Any, tmp_path: Path) -> None:
    argv, message = MISTAKES[case]
    out = tmp_path / "out"
    assert message in refused(capsys, [str(out) if word == "OUT" else word for word in argv])
    assert not [path for path in out.rglob("*") if path.name not in ("config.json", ".lock")]


# search


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a search by two proxies; tests read it only."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    with pictures():
        assert main(["search", *MICRO, *RANDOM, "--proxy", "dss,naswot", "--out", str(folder)]) == 0
    return folder


def test_a_search_needs_no_folder(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json_output(capsys, "search", *MICRO, *RANDOM, "--proxy", "dss")
    assert not list(tmp_path.iterdir())
    assert (found["space"], found["data"], found["budget"]) == ("autoformer-micro", None, "params <= 120K")
    assert (found["proxies"], found["candidates"], found["note"]) == (["dss"], 12, "")
    scorer = Scorer(SPACE, "dss", batch_size=8)
    assert [row["name"] for row in found["references"]] == ["random", "smallest", "largest"]
    for row in [found["winner"], *found["references"]]:
        assert row["dss"] == scorer.score(SPACE.arch(row["arch"]))["dss"].mean
        assert row["params"] == SPACE.cost(SPACE.arch(row["arch"])).params <= 120_000
    assert found["winner"]["dss"] == max(one["dss"] for one in found["front"])


def test_a_search_in_words(capsys: Any) -> None:
    text = output(capsys, "search", *MICRO, *RANDOM, "--proxy", "dss,naswot")
    for word in ("12 candidates", "winner", "random", "smallest", "largest", "dss", "naswot", 'winner: {"embed_dim":'):
        assert word in text
    assert "report" not in text


def test_what_a_search_leaves_behind(searched: Path) -> None:
    files = set(contents(searched)) - {".lock"}
    assert {"config.json", "search/journal.jsonl", "result.json", "report.html"} <= files
    assert not [name for name in files if name.startswith(("train", "supernet", "model"))]
    assert all(name.startswith("plots/") for name in files if name.endswith(".png"))
    config, result = read_json(searched / "config.json"), read_json(searched / "result.json")
    assert (config["proxy"], config["space"], config["budget"]) == (
        "dss,naswot",
        "autoformer-micro",
        {"max_params": "120K"},
    )
    settings, records = read_journal(searched / "search" / "journal.jsonl")
    assert (settings["proxies"], settings["order"]) == (["dss", "naswot"], "ranks")
    together = aggregate_ranks([[record[name] for record in records] for name in ("dss", "naswot")])
    best = records[together.index(max(together))]
    assert result["winner"]["arch"] == best["arch"]
    assert {name: result["winner"][name] for name in ("dss", "naswot")} == {
        name: best[name] for name in ("dss", "naswot")
    }


def test_the_report_shows_the_scores(searched: Path) -> None:
    page, result = (searched / "report.html").read_text(), read_json(searched / "result.json")
    for row in [result["winner"], *result["references"]]:
        for name in ("dss", "naswot"):
            assert f'<td data-label="{name}">{row[name]:.5g}</td>' in page
    assert "<th>dss</th><th>naswot</th>" in page


def test_the_same_search_again_changes_nothing(searched: Path, tmp_path: Path) -> None:
    run = shutil.copytree(searched, tmp_path / "run")
    with pictures():
        assert main(["search", *MICRO, *RANDOM, "--proxy", "dss,naswot", "--out", str(run)]) == 0
    assert contents(run) == contents(searched)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--proxy", "dss"], "proxies was ['dss', 'naswot'], now ['dss']"),
        (["--proxy", "dss,naswot", "--repeats", "2"], "repeats was 1, now 2"),
        (["--proxy", "dss,naswot", "--max-params", "110K"], "budget.max_params was 120000, now 110000"),
        (["--proxy", "dss,naswot", "--search.objectives", "[dss,naswot]"], "order was ranks, now not set"),
        (["--proxy", "dss,naswot", "--data", "digits", "--patch-size", "4"], "data was , now digits"),
    ],
)
def test_another_search_in_its_folder_is_refused(
    changes: list[str], said: str, searched: Path, tmp_path: Path, capsys: Any
) -> None:
    run = shutil.copytree(searched, tmp_path / "run")
    message = refused(capsys, ["search", *MICRO, *RANDOM, *changes, "--out", str(run)])
    assert said in message
    assert "use another --out folder" in message
    assert contents(run) == contents(searched)


def test_a_run_with_a_supernet_is_left_alone(finished: Path, capsys: Any) -> None:
    before = contents(finished)
    message = refused(capsys, ["search", *MICRO, *RANDOM, "--proxy", "dss", "--out", str(finished)])
    assert "holds the run of a supernet; give another --out folder" in message
    assert contents(finished) == before


def test_a_folder_in_use(searched: Path, tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree(searched, tmp_path / "run")
    with kill.holding(run / ".lock"):
        message = refused(capsys, ["search", *MICRO, *RANDOM, "--proxy", "dss,naswot", "--out", str(run)])
    assert "is in use by another process" in message


def test_objectives_give_a_front(capsys: Any) -> None:
    found = json_output(capsys, "search", *MICRO, *RANDOM, "--proxy", "dss", "--search.objectives", "[dss,-params]")
    points = [(one["dss"], -one["params"]) for one in found["front"]]
    assert len(points) > 1
    assert pareto_front(points) == list(range(len(points)))
    assert points == sorted(points)  # the cheapest first, and each that costs more is better
    assert found["winner"]["dss"] == points[-1][0]


def test_repeats_and_evolution(capsys: Any, tmp_path: Path) -> None:
    evolution = ["--search.population", "4", "--search.generations", "3", "--max-params", "120K"]
    argv = ["search", *MICRO, *evolution, "--proxy", "dss", "--repeats", "2", "--out", str(tmp_path / "run")]
    found = json_output(capsys, *argv)
    _, records = read_journal(tmp_path / "run" / "search" / "journal.jsonl")
    assert found["candidates"] == len(records) == 12
    assert {record["generation"] for record in records} == {0, 1, 2}
    assert all(record["dss_std"] > 0 for record in records)
    assert found["winner"]["dss"] == max(record["dss"] for record in records)


def test_a_search_on_data(capsys: Any) -> None:
    argv = ["search", "--space", "autoformer-micro", "--patch-size", "4", "--device", "cpu", "--probe-size", "8"]
    found = json_output(capsys, *argv, "--data", "digits", "--proxy", "snip", *RANDOM)
    assert found["data"] == "digits"
    assert found["winner"]["snip"] == max(one["snip"] for one in found["front"])


# Killed by itself and not from outside: who watches a file and then kills may come too late on a busy machine.
KILLED_AT_LINE = """
import os, signal, sys
from nasformer.cli.main import main
from nasformer.search.journal import Journal
append = Journal.append
def last(self, *records):
    append(self, *records)
    if self.path.read_bytes().count(b"\\n") >= int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
Journal.append = last
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_killed_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    evolution = ["--search.population", "8", "--search.generations", "9", "--max-params", "120K"]
    whole, run = tmp_path / "whole" / "run", tmp_path / "parts" / "run"  # of one name, which the report shows
    journal = run / "search" / "journal.jsonl"

    def argv(out: Path) -> list[str]:
        return ["search", *MICRO, *evolution, "--proxy", "dss,zen", "--out", str(out)]

    assert main(argv(whole)) == 0
    died = [sys.executable, "-c", KILLED_AT_LINE, "30", *argv(run)]
    done = subprocess.run(died, env=kill.ENVIRONMENT, capture_output=True, text=True, timeout=kill.PATIENCE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert journal.read_bytes().count(b"\n") == 1 + 4 * 8  # the generation that reached the line is on the disk
    assert not (run / "result.json").exists()
    assert main(argv(run)) == 0
    expected, found = contents(whole), contents(run)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_the_winner_is_retrained(searched: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "retrain.yaml"
    settings = {"train": {"epochs": 1, "batch_size": 256, "augment": {"crop": "none"}}, "export": False}
    recipe.write_text(json.dumps(settings))
    out = tmp_path / "retrained"
    assert main(["retrain", str(searched), "--config", str(recipe), "--data", "digits", "--out", str(out)]) == 0
    winner, result = read_json(searched / "result.json")["winner"], read_json(out / "result.json")
    assert result["winner"]["arch"] == winner["arch"]
    model = load_model(out / "model")
    assert (model.options["img_size"], model.options["patch_size"], model.options["in_chans"]) == (16, 8, 1)
    assert 0 <= result["winner"]["test_accuracy"] <= 1


# rank


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve nets; the first column follows the parameters exactly, the second lacks a value."""
    archs = [SPACE.sample(seed) for seed in range(12)]
    sizes = [SPACE.cost(arch).params for arch in archs]
    rows: list[dict[str, Any]] = [
        {"arch": arch.to_dict(), "accuracy": {"size": size / 1e4, "back": -size, "gaps": size % 1000}}
        for arch, size in zip(archs, sizes, strict=True)
    ]
    rows[3]["accuracy"]["gaps"] = None
    path = tmp_path_factory.mktemp("table") / "table.json"
    model = {"img_size": 16, "patch_size": 8, "num_classes": 10}
    path.write_text(json.dumps({"space": "autoformer-micro", "model": model, "rows": rows}))
    return path


def rank(table: Path, *more: str | Path, target: str = "size", proxy: str = "params,dss") -> list[str]:
    options = ["--target", target, "--proxy", proxy, "--resamples", "50", "--bands", "2"]
    return [str(word) for word in ("rank", "--table", table, *options, "--probe-size", 4, "--device", "cpu", *more)]


@pytest.fixture(scope="module")
def ranked(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a ranking; tests read it only."""
    folder = tmp_path_factory.mktemp("ranked") / "ranking"
    assert main(rank(table, "--out", folder)) == 0
    return folder


@pytest.fixture
def ranking(ranked: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(ranked, tmp_path / "ranking")


def test_a_ranking_in_a_folder(ranked: Path) -> None:
    found = read_json(ranked / "ranking.json")
    assert set(found) == {"n", "target", "space", "bands", "proxies", "counts"}
    assert (found["n"], found["target"], list(found["proxies"])) == (12, "size", ["params", "dss"])
    for name in ("params", "dss"):
        assert found["proxies"][name]["seconds_per_net"] > 0
        assert all(-1 <= found["proxies"][name][kind] <= 1 for kind in ("kendall", "spearman"))
    assert found["proxies"]["params"]["kendall"] == found["proxies"]["params"]["spearman"] == 1
    assert (ranked / "ranking.png").read_bytes().startswith(b"\x89PNG")


def test_correlations_are_those_of_scipy(ranked: Path) -> None:
    from scipy.stats import kendalltau, spearmanr

    archs = [SPACE.sample(seed) for seed in range(12)]
    scores = [row["dss"].mean for row in Scorer(SPACE, "dss", batch_size=4).score_many(archs)]
    sizes = [SPACE.cost(arch).params for arch in archs]
    found = read_json(ranked / "ranking.json")["proxies"]["dss"]
    assert found["kendall"] == pytest.approx(kendalltau(scores, sizes).statistic)
    assert found["spearman"] == pytest.approx(spearmanr(scores, sizes).statistic)


def test_a_ranking_in_words(table: Path, capsys: Any) -> None:
    text = output(capsys, *rank(table))
    assert "dss" in text
    assert "params" in text
    assert "size" in text


def test_scores_in_a_folder_are_not_computed_again(
    table: Path, ranking: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_json(ranking / "ranking.json")

    def never(*_: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(Scorer, "score_many", never)
    assert json_output(capsys, *rank(table, "--out", ranking)) == first
    backwards = json_output(capsys, *rank(table, "--out", ranking, target="back"))
    assert backwards["proxies"]["params"]["kendall"] == -1
    assert json_output(capsys, *rank(table, "--out", ranking, target="gaps"))["n"] == 11


def test_a_ranking_that_was_killed_goes_on(table: Path, ranking: Path, capsys: Any) -> None:
    first = read_json(ranking / "ranking.json")
    path = ranking / "scores" / "dss.jsonl"
    _, scores = read_journal(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]) + b'{"mea')
    again = json_output(capsys, *rank(table, "--out", ranking))
    assert [score["values"] for score in read_journal(path)[1]] == [score["values"] for score in scores]
    assert again["proxies"]["dss"]["kendall"] == first["proxies"]["dss"]["kendall"]


def test_scores_with_other_settings_are_refused(table: Path, ranking: Path, capsys: Any) -> None:
    assert "repeats was 1, now 2" in refused(capsys, rank(table, "--out", ranking, "--repeats", "2"))
    assert "seed was 0, now 1" in refused(capsys, rank(table, "--out", ranking, "--seed", "1"))


def test_a_ranking_without_proxies_is_that_of_the_counts(table: Path, capsys: Any) -> None:
    found = json_output(capsys, *rank(table, proxy=""))
    assert found["proxies"] == {}
    assert found["counts"]["params"]["kendall"] == 1


def test_proxies_that_do_not_apply_are_named(table: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert main([*rank(table, proxy="ntk,dss"), "--probe-size", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "ntk does not apply to 12 of 12 nets" in err
    found = json.loads(out, parse_constant=pytest.fail)["proxies"]
    assert found["ntk"]["kendall"] is None
    assert found["ntk"]["missing"] == 12
    assert math.isfinite(found["dss"]["kendall"])


def test_an_unknown_column(table: Path, capsys: Any) -> None:
    message = refused(capsys, rank(table, target="accuracy"))
    assert "has no column 'accuracy'; it has: size, back, gaps" in message


def test_options_of_another_strategy_are_said_to_have_no_effect(capsys: Any) -> None:
    assert main(["search", *MICRO, "--proxy", "params", *RANDOM, "--search.population", "3"]) == 0
    assert "--search.population has no effect: the strategy random does not have it" in capsys.readouterr().err
