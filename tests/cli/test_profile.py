"""Latency and memory as budgets, from the command line; profiles are made up, so that nothing depends on the clock."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny  # noqa: F401 - one thread
from latency.fake import MICRO, fake_profile, in_profiles
from nasformer.cli.main import main
from nasformer.latency.profile import HoldOut, Profile
from nasformer.search.journal import read_journal
from nasformer.utils.files import read_json, write_json
from small_run import contents, refused, words

OPTIONS = ["--space", "autoformer-micro", "--img-size", "8", "--patch-size", "4", "--in-chans", "1"]
PROXY = ["search", *OPTIONS, "--num-classes", "10", "--proxy", "params", "--device", "cpu", "--probe-size", "8"]
PROXY += ["--search.strategy", "random", "--search.evaluations", "12"]
PROFILE = fake_profile()
TIMES = sorted(PROFILE.latency_ms(MICRO.plan(MICRO.sample(seed))) for seed in range(50))
MIDDLE = TIMES[25]


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _fast(request: pytest.FixtureRequest) -> Iterator[None]:
    """Few runs of each net, since exact times do not matter here, and no pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasformer.latency.measure.VISIT_SECONDS", 0.001)
        patch.setattr("nasformer.latency.search.ROUNDS", 1)
        patch.setattr("nasformer.runs.base.write_report", lambda folder: None)
        yield


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile and a run that was searched by it within its middle latency."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        in_profiles(folder, PROFILE)
        assert main([*PROXY, "--max-latency", f"{MIDDLE}ms", "--max-memory", "1GB", "--out", "run"]) == 0
    return folder


def said(capsys: Any, *argv: str | Path) -> str:
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def test_samples_keep_the_latency(capsys: Any, tmp_path: Path) -> None:
    in_profiles(tmp_path, PROFILE)
    lines = said(capsys, "sample", *OPTIONS, "--max-latency", f"{MIDDLE}ms", "-n", "20").splitlines()
    times = [PROFILE.latency_ms(MICRO.plan(MICRO.arch(line))) for line in lines]
    assert len(times) == 20
    assert max(times) <= MIDDLE


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["--max-latency", "1us"], "no architecture fits latency_ms <= 0.001.*; raise --max-latency or choose"),
        (["--max-memory", "1KB"], "no architecture fits memory_bytes <= 1K.*; raise --max-memory or choose"),
        (["--max-latency", "5"], "'5' is not a time; write it with its unit"),
        (["--max-memory", "much"], "'much' is not a size of memory"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(asked: list[str], expected: str, capsys: Any, tmp_path: Path) -> None:
    in_profiles(tmp_path, PROFILE)
    message = refused(capsys, ["sample", *OPTIONS, *asked])
    assert re.search(expected, message)


def test_nothing_is_planned_where_nothing_was_profiled(capsys: Any, tmp_path: Path) -> None:
    message = refused(capsys, words("plan", tmp_path / "run", max_latency="5ms", device="cpu"))
    command = "nasformer profile --space autoformer-micro --img-size SIZE --device cpu"  # no image was read yet
    assert message.rstrip().endswith(f"measure it first, for images of your size: {command}")


def test_a_run_refuses_what_it_measured_badly(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = fake_profile(holdout=HoldOut(nets=2, median_error=0.234))
    monkeypatch.setattr("nasformer.latency.search.make_profile", lambda space, **_: wrong)
    assert main(words("run", tmp_path / "run", max_latency="5ms", device="cpu")) == 2
    message = capsys.readouterr().err
    assert "predicts nets with a median error of 23%, more than 10%" in message
    assert "or use it anyway: --latency-profile profiles" in message
    assert not (tmp_path / "run" / "train").exists()


def test_a_search_measures_its_finalists(searched: Path, capsys: Any, tmp_path: Path) -> None:
    shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "run"
    text = said(capsys, *PROXY, "--max-latency", f"{MIDDLE}ms", "--max-memory", "1GB", "--out", "run")
    result, (settings, candidates) = read_json(run / "result.json"), read_journal(run / "search" / "journal.jsonl")
    assert max(one["latency_ms"] for one in candidates) <= MIDDLE
    assert settings["profile"] == PROFILE.fingerprint
    assert Profile.load(run / "search" / "profile.json").fingerprint == PROFILE.fingerprint
    finalists = result["latency"]["finalists"]
    scores = [next(one["params"] for one in candidates if one["arch"] == found["arch"]) for found in finalists]
    assert scores == sorted((one["params"] for one in candidates), reverse=True)[: len(scores)]
    assert result["winner"]["measured_latency_ms"] > 0
    assert result["winner"]["measured_memory_bytes"] > 4 * result["winner"]["params"]
    assert "measured" in text
    assert "hold-out error of the prediction 2.0%" in text


def measured_as(run: Path, place: int, ms: float) -> None:
    """Pretends that a finalist had taken that long."""
    record = read_json(run / "search" / "finalists.json")
    key = list(record["measured"])[place]
    record["measured"][key]["measured_latency_ms"] = ms
    write_json(run / "search" / "finalists.json", record)


def test_a_winner_that_is_too_slow_gives_way(capsys: Any, tmp_path: Path) -> None:
    in_profiles(tmp_path, PROFILE)
    run, command = tmp_path / "run", [*PROXY, "--max-latency", "100s"]
    said(capsys, *command, "--out", run)
    first = read_json(run / "result.json")
    measured_as(run, 0, 1e6)
    text = said(capsys, *command, "--out", run)
    second = read_json(run / "result.json")
    assert second["winner"]["arch"] == first["latency"]["finalists"][1]["arch"] != first["winner"]["arch"]
    assert "the best 1 by score exceed latency_ms <= 100K; number 2 wins" in " ".join(text.split())


@pytest.mark.slow
def test_a_killed_search_goes_on_and_ends_the_same(capsys: Any, tmp_path: Path) -> None:
    in_profiles(tmp_path, PROFILE)
    run, command = tmp_path / "run", [*PROXY, "--max-latency", f"{MIDDLE}ms", "--out"]
    said(capsys, *command, run)
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    journal = cut / "search" / "journal.jsonl"
    journal.write_text("".join(line + "\n" for line in journal.read_text().splitlines()[:5]) + '{"torn')
    said(capsys, *command, cut)
    names = ("search/journal.jsonl", "result.json", "search/finalists.json")
    assert [contents(cut)[name] for name in names] == [contents(run)[name] for name in names]


def test_patterns_go_by_the_profile_of_the_search(searched: Path, capsys: Any) -> None:
    found = json.loads(said(capsys, "patterns", searched / "run", "--json"))
    assert found["budget"] == f"latency_ms <= {MIDDLE}, memory_bytes <= 1G"


def test_another_profile_is_another_search(searched: Path, capsys: Any, tmp_path: Path) -> None:
    shutil.copytree(searched / "run", tmp_path / "run")
    in_profiles(tmp_path, fake_profile(overhead_ms=0.001))
    command = [*PROXY, "--max-latency", f"{MIDDLE}ms", "--max-memory", "1GB", "--out", "run"]
    assert "profile was" in refused(capsys, command)


def test_a_run_with_all_stages_measures_what_was_not_profiled(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasformer.latency.search.make_profile", lambda space, **_: fake_profile(space))
    run, path = tmp_path / "run", Path("profiles", "autoformer-micro-8px-cpu-eager-b1-t1.json")
    assert main(words("run", run, max_latency=f"{MIDDLE}ms", device="cpu")) == 0
    asked = "nothing was profiled for autoformer-micro with img_size 8, patch_size 4, in_chans 1"
    told = capsys.readouterr().err
    assert f"{asked}: measuring it, for {path}" in told
    assert "profile: median error " in told
    assert "finalists: " in told  # it takes seconds, which are not silent
    assert Profile.load(path).space == "autoformer-micro"
    result, config = read_json(run / "result.json"), read_json(run / "config.json")
    assert result["budget"] == f"params <= 120K, latency_ms <= {MIDDLE}"
    assert config["budget"] == {"max_params": "120K", "max_latency_ms": MIDDLE}
    assert all(row["latency_ms"] <= MIDDLE for row in result["references"] if row["name"] in ("random", "smallest"))
    assert result["winner"]["latency_ms"] <= MIDDLE
    before = contents(run)
    said(capsys, *words("run", run, max_latency=f"{MIDDLE}ms", device="cpu"))
    assert contents(run)["result.json"] == before["result.json"]


def test_latency_as_an_objective(capsys: Any, tmp_path: Path) -> None:
    in_profiles(tmp_path, PROFILE)
    objectives = ["--search.objectives", "[params, -latency_ms]"]
    found = json.loads(said(capsys, *PROXY, *objectives, "--json"))
    assert len(found["front"]) > 1
    assert all("latency_ms" in one for one in found["front"])


def test_profile_measures_this_machine(capsys: Any, tmp_path: Path) -> None:
    few = ["--nets", "3", "--holdout", "2", "--rounds", "1", "--device", "cpu"]
    text = said(capsys, "profile", *OPTIONS, *few)
    path = tmp_path / "profiles" / "autoformer-micro-8px-cpu-eager-b1-t1.json"
    assert Profile.load(path).holdout.nets == 2
    for part in ("TransformerBlock", "hold-out of 2 other nets", "threads 1", "batch 1", "quartiles", str(path.name)):
        assert part in text
    latency = re.search(r"next: nasformer search --max-latency (\S+) ", text)
    assert latency
    words = ["sample", *OPTIONS, "--max-latency", latency[1], "--latency-profile", str(path)]
    assert MICRO.arch(said(capsys, *words).strip())  # there are nets that keep what was suggested
    two = ["--out", str(path), "--threads", "2", "--device", "cpu"]
    assert "holds another profile: it was measured with threads 1, not 2" in refused(
        capsys, ["profile", *OPTIONS, *two]
    )


def test_profile_takes_the_size_of_images(capsys: Any, tmp_path: Path) -> None:
    few = ["--nets", "3", "--holdout", "2", "--rounds", "1", "--device", "cpu", "--json"]
    asked = ["profile", "--space", "autoformer-micro", "--patch-size", "4", "--data", "digits", *few]
    assert main(asked) == 0
    said_out, said_err = capsys.readouterr()
    options = json.loads(said_out)["options"]
    assert {name: options[name] for name in ("img_size", "in_chans", "num_classes")} == {
        "img_size": 8,
        "in_chans": 1,
        "num_classes": 10,
    }
    assert re.search(r"timing them and the layers of 3 of them in 1 rounds: about \d+ s", said_err)


def test_an_inaccurate_profile_is_saved_with_a_warning(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = fake_profile(holdout=HoldOut(nets=2, median_error=0.234))
    monkeypatch.setattr("nasformer.latency.profile.make_profile", lambda space, **_: wrong)
    assert main(["profile", *OPTIONS, "--device", "cpu", "--json"]) == 0
    assert "warning: on other nets the median error is 23%, more than 10%" in capsys.readouterr().err
    message = refused(capsys, ["sample", *OPTIONS, "--max-latency", "10s"])
    assert "b1-t1.json predicts nets with a median error of 23%" in message


@pytest.mark.parametrize(
    ("option", "value", "least"), [("--rounds", 0, 1), ("--nets", 2, 3), ("--threads", 0, 1), ("--batch-size", 0, 1)]
)
def test_profile_refuses_nonsense(option: str, value: int, least: int, capsys: Any) -> None:
    assert f"is {value}; give a number from {least} to " in refused(capsys, ["profile", *OPTIONS, option, str(value)])
