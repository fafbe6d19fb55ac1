"""--track: what a run writes, passed on to MLflow and Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import small_run
from nasformer.cli.main import main
from nasformer.results.folder import RunFolder
from nasformer.runs.tracking import CLIENTS, Tracker


class Recorder:
    """A client that keeps what it is given."""

    def __init__(self, name: str = "run", id: str | None = None) -> None:
        self.id, self.lines, self.ended = id or "first", list[tuple[dict[str, float], int]](), dict[str, Any]()

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.lines.append((dict(values), step))

    def finish(self, settings: Mapping[str, Any], summary: Mapping[str, float]) -> None:
        self.ended = {"settings": dict(settings), "summary": dict(summary)}


def test_each_line_is_passed_on_once(run: Path) -> None:
    client = Recorder()
    tracker = Tracker(RunFolder(run), client)
    tracker.update()
    losses = [values["train/loss"] for values, _ in client.lines if "train/loss" in values]
    accuracies = [values["search/accuracy"] for values, _ in client.lines if "search/accuracy" in values]
    assert len(losses) == len((run / "train" / "log.jsonl").read_text().splitlines())
    assert len(accuracies) == 8
    tracker.update()
    assert len(client.lines) == len(losses) + 8
    with open(run / "search" / "journal.jsonl", "ab") as journal:
        journal.write(b'{"id": 8, "arch": {}, "accur')  # not whole yet
    tracker.finish()
    assert len(client.lines) == len(losses) + 8
    assert client.ended["settings"]["space"] == "autoformer-micro"
    assert client.ended["summary"]["winner/test_accuracy"] > 0


def test_a_command_that_goes_on_goes_on_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Recorder] = []

    def connect(name: str, id: str | None) -> Recorder:
        clients.append(Recorder(name, id))
        return clients[-1]

    monkeypatch.setitem(CLIENTS, "mlflow", connect)
    monkeypatch.setattr("nasformer.runs.tracking.find_spec", lambda name: object())
    for _ in range(2):
        assert main([*small_run.words("search", run), "--track", "mlflow"]) == 0
    first, second = clients
    assert (len(first.lines) > 8, second.lines, second.id) == (True, [], "first")
    assert second.ended == first.ended


def test_without_the_client_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasformer.runs.tracking.find_spec", lambda name: None)
    said = small_run.refused(capsys, [*small_run.words("run", tmp_path / "run"), "--track", "wandb"])
    assert "pip install wandb" in said


def test_mlflow_in_a_local_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for it
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    assert main([*small_run.words("search", run), "--track", "mlflow"]) == 0
    client = mlflow.MlflowClient()
    (experiment,) = [one for one in client.search_experiments() if one.name == "nasformer"]
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["space"] == "autoformer-micro"
    assert "winner/test_accuracy" in tracked.data.metrics
    assert len(client.get_metric_history(tracked.info.run_id, "search/accuracy")) == 8


def test_wandb_offline(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert main([*small_run.words("search", run), "--track", "wandb"]) == 0
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
