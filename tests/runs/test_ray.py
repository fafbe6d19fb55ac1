"""Commands with --executor ray: the same journals and winners as in one process, for any number of workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import small_run
from nasformer.cli.main import main
from nasformer.search.journal import read_journal
from processes import kill_command
from tasks.examples import EXAMPLES

UNTRAINED = [
    *("search", "--space", "autoformer-micro", "--img-size", "8", "--patch-size", "4", "--proxy", "dss"),
    *("--probe-size", "4", "--max-params", "200K", "--seed", "3", "--search.strategy", "evolution"),
    *("--search.population", "20", "--search.generations", "3"),
]
PLUGIN = """
import nasformer

@nasformer.register_proxy("moody", formula="params", sees="nothing", higher="larger", paper="none")
def moody(model, probe):
    params = sum(parameter.numel() for parameter in model.parameters())
    if params % 3 == 0:
        raise ArithmeticError(f"{params} is a multiple of three")
    return float(params)
"""


def test_without_ray_the_command_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasformer.runs.pools.find_spec", lambda name: None)
    said = small_run.refused(capsys, [*UNTRAINED, "--executor", "ray", "--out", str(tmp_path / "run")])
    assert "pip install 'nasformer[ray]'" in said
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster with room for four workers, which commands of this process use."""
    ray = pytest.importorskip("ray", reason="needs nasformer[ray]")
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def on_ray(workers: int) -> list[str]:
    return ["--executor", "ray", "--max-concurrent-trials", str(workers)]


def journal(folder: Path) -> bytes:
    return (folder / "search" / "journal.jsonl").read_bytes()


@pytest.mark.slow
def test_proxy_search_is_the_same_for_any_number_of_workers(ray: Any, tmp_path: Path) -> None:
    assert main([*UNTRAINED, "--out", str(tmp_path / "local")]) == 0
    for workers in (1, 2, 4):
        assert main([*UNTRAINED, "--out", str(tmp_path / str(workers)), *on_ray(workers)]) == 0
        assert journal(tmp_path / str(workers)) == journal(tmp_path / "local")
        results = [json.loads((tmp_path / name / "result.json").read_text()) for name in (str(workers), "local")]
        assert results[0] == results[1]


@pytest.mark.slow
def test_supernet_search_is_the_same_for_any_number_of_workers(ray: Any, run: Path) -> None:
    """The run's own search was in one process."""
    expected, result = journal(run), (run / "result.json").read_bytes()
    for workers in (1, 2, 4):
        (run / "search" / "journal.jsonl").unlink()
        assert main([*small_run.words("search", run), *on_ray(workers)]) == 0
        assert journal(run) == expected
        assert (run / "result.json").read_bytes() == result


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        "segment",
        pytest.param("detect", marks=pytest.mark.slow),
        pytest.param("vqa", marks=pytest.mark.slow),
        pytest.param("panoptic", marks=pytest.mark.slow),
    ],
)
def test_search_for_another_task_is_the_same(ray: Any, tmp_path: Path, task: str) -> None:
    example = EXAMPLES[task]
    assert example.write is not None
    example.write(tmp_path / "set")
    settings: dict[str, Any] = {"space": "s3-micro", "patch_size": 2, "img_size": 32, "holdout": 0.25}
    settings |= {"max_params": None, "task": task, task: example.options, "data": str(tmp_path / "set"), "workers": 0}
    settings |= {"train": {"iterations": 4, "batch_size": 6, "lr": 5e-3}, "calibration_images": 12}
    assert main(small_run.words("run", tmp_path / "run", **settings)) == 0
    expected, result = journal(tmp_path / "run"), (tmp_path / "run" / "result.json").read_bytes()
    (tmp_path / "run" / "search" / "journal.jsonl").unlink()
    assert main([*small_run.words("search", tmp_path / "run", **settings), *on_ray(2)]) == 0
    assert journal(tmp_path / "run") == expected
    assert (tmp_path / "run" / "result.json").read_bytes() == result


@pytest.mark.slow
def test_failing_candidates_are_journalled_and_the_search_goes_on(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy comes from a module beside the run, which workers import as well."""
    (tmp_path / "moody_proxy.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nasformer.utils.plugins._loaded", set())
    words = ["--import", "moody_proxy", *UNTRAINED, "--proxy", "moody", "--out", "run", *on_ray(2)]
    assert main(words) == 0
    _, records = read_journal("run/search/journal.jsonl")
    failed = [record for record in records if record["params"] % 3 == 0]
    assert len(records) == 60
    assert 5 < len(failed) < 55
    assert all(record["moody"] is None and record["failures"] == 3 for record in failed)
    assert all(record["moody"] == record["params"] for record in records if record not in failed)
    files = {path.name for path in Path("run/search/failures").iterdir()}
    assert files == {f"journal-{record['id']}.txt" for record in failed}
    assert "is a multiple of three" in Path(f"run/search/failures/journal-{failed[0]['id']}.txt").read_text()
    before = journal(Path("run"))
    assert main(words) == 0  # reads the journal, failures included
    assert journal(Path("run")) == before
    page = Path("run/report.html").read_text()
    assert f"{len(failed)} candidates could not be evaluated" in page


@pytest.mark.slow
def test_a_killed_driver_goes_on(ray: Any, tmp_path: Path) -> None:
    assert main([*UNTRAINED, "--out", str(tmp_path / "whole")]) == 0
    folder = tmp_path / "killed"
    address = ray.get_runtime_context().gcs_address
    words = [*UNTRAINED, "--out", str(folder), *on_ray(2), "--ray-address", address]
    path = folder / "search" / "journal.jsonl"
    assert kill_command(words, lambda: path.exists() and path.read_bytes().count(b"\n") > 8, 0.0)
    assert 8 < journal(folder).count(b"\n") < 61
    assert main(words) == 0
    assert journal(folder) == journal(tmp_path / "whole")


def test_rank_gives_the_same_scores(ray: Any, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rank", "--table", str(run), "--target", "accuracy", "--proxy", "naswot", "--probe-size", "4"]
    assert main([*words, "--out", str(tmp_path / "local")]) == 0
    assert main([*words, "--out", str(tmp_path / "ray"), *on_ray(2)]) == 0
    values = [
        [score["values"] for score in read_journal(tmp_path / name / "scores" / "naswot.jsonl")[1]]
        for name in ("local", "ray")
    ]
    assert values[0] == values[1]


@pytest.mark.slow
def test_run_with_baselines_is_the_same(ray: Any, finished: Path, tmp_path: Path) -> None:
    """Two models of timm, trained at the same time."""
    for name, words in (("local", []), ("ray", on_ray(2))):
        folder = shutil.copytree(finished, tmp_path / name)
        baseline = "timm:resnet10t,timm:test_resnet"
        assert main([*small_run.words("run", folder), "--baseline", baseline, *words]) == 0
    local, parallel = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("local", "ray"))
    assert [row["name"] for row in parallel["references"]][-2:] == ["timm:resnet10t", "timm:test_resnet"]
    assert local["references"] == parallel["references"]


@pytest.mark.slow
def test_evolve_is_the_same(ray: Any, tmp_path: Path) -> None:
    words = [
        "evolve",
        "--config",
        "s3-evolve-digits",
        "--evolve.steps",
        "1",
        "--evolve.samples",
        "8",
        "--evolve.top",
        "2",
    ]
    words += ["--train.iterations", "3"]
    assert main([*words, "--out", str(tmp_path / "local")]) == 0
    assert main([*words, "--out", str(tmp_path / "ray"), *on_ray(2)]) == 0
    contents = [(tmp_path / name / "evolution.json").read_bytes() for name in ("local", "ray")]
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_asynchronous_search_evaluates_as_many_and_goes_on(
    ray: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another order than generation by generation is allowed, other archs are; no arch twice, no parent unknown."""
    words = [*UNTRAINED, "--out", str(tmp_path / "run"), *on_ray(2), "--asynchronous"]
    assert main(words) == 0
    assert "cannot be repeated exactly" in capsys.readouterr().err
    path = tmp_path / "run" / "search" / "journal.jsonl"
    settings, records = read_journal(path)
    assert settings["asynchronous"]
    assert [record["id"] for record in records] == list(range(60))
    assert len({json.dumps(record["arch"]) for record in records}) == 60
    assert all(parent < record["id"] for record in records for parent in record["parents"])
    assert any(record["parents"] for record in records)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:31]))
    assert main(words) == 0
    assert path.read_bytes().startswith(b"".join(lines[:31]))
    again = read_journal(path)[1]
    assert 50 <= len(again) <= 60  # what was being evaluated when it was killed is not asked for again
    assert len({json.dumps(record["arch"]) for record in again}) == len(again)


def test_asynchronous_needs_workers_and_evolution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*UNTRAINED, "--out", str(tmp_path / "run"), "--asynchronous"]
    assert "needs workers: --executor ray" in small_run.refused(capsys, words)


@pytest.mark.slow
def test_the_best_candidates_are_retrained_at_the_same_time(
    ray: Any, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["retrain", str(finished), "--data", "digits", "--holdout", "0.2", "--top", "2", "--train.iterations", "4"]
    words += ["--train.batch_size", "64", "--export", "false"]
    assert main([*words, "--out", str(tmp_path / "local"), "--threads", "1"]) == 0
    assert main([*words, "--out", str(tmp_path / "ray"), *on_ray(2)]) == 0
    assert "retraining, %: 100/100" in capsys.readouterr().err
    records = sorted(read_journal(finished / "search" / "journal.jsonl")[1], key=lambda record: -record["accuracy"])
    for number in ("1", "2"):
        local, parallel = (
            json.loads((tmp_path / name / number / "result.json").read_text()) for name in ("local", "ray")
        )
        assert local == parallel
        assert local["winner"]["arch"] == records[int(number) - 1]["arch"]


def test_a_few_random_kills_change_nothing() -> None:
    """`make chaos`, but short."""
    pytest.importorskip("ray", reason="needs nasformer[ray]")
    script = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    command = [sys.executable, str(script), "--kills", "2", "--seconds", "5", "--commands", "search"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed a" in done.stdout
    assert "ANOTHER" not in done.stdout


def test_a_net_cut_without_training_has_no_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--from", "timm:deit_tiny_patch16_224", "--no-training", "--data", "digits", "--executor", "ray"]
    assert "leave --executor out" in small_run.refused(capsys, [*words, "--out", str(tmp_path / "run")])
