"""The last stage of a run: the winner is trained on its own, and the best on held-out images is shipped."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.data.sources import load_data
from nasformer.models.storage import load_model
from nasformer.results.result import RunResult
from nasformer.runs.finish import choose_weights
from nasformer.runs.options import FinetuneCommand
from nasformer.runs.single import find_source
from nasformer.train.evaluate import evaluate
from small_run import contents, json_output, words


@pytest.fixture(scope="module", params=["finetune", pytest.param("retrain", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    assert main(words("run", folder, finish=request.param)) == 0
    return folder


def test_the_best_on_held_out_images_is_shipped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult.load(run / "result.json")
    assert result.finish is not None
    tried = result.finish.holdout_accuracy
    assert len(tried) == 2
    assert tried["inherited"] == result.winner["holdout_accuracy"]
    assert result.finish.chosen == choose_weights(tried, 287)
    assert (result.finished is None) == (result.finish.chosen == "inherited")
    assert result.shipped["holdout_accuracy"] == tried[result.finish.chosen]


def test_the_model_is_the_one_that_was_shipped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult.load(run / "result.json")
    accuracy = evaluate(load_model(run / "model"), load_data("digits", holdout=0.2), "test")["accuracy"]
    assert accuracy == pytest.approx(result.shipped["test_accuracy"])
    scores = json_output(capsys, "evaluate", run, "--data", "digits")
    assert scores["accuracy"] == pytest.approx(result.shipped["test_accuracy"])


def test_finetuning_a_run_goes_on_from_what_it_ships(run: Path) -> None:
    result, shipped = RunResult.load(run / "result.json"), load_model(run / "model").state_dict()
    source = find_source(FinetuneCommand(run=str(run)))
    assert source.shared == (result.finished is None)
    assert source.space == "autoformer-micro"
    assert all(torch.equal(weight, shipped[name]) for name, weight in source.model.state_dict().items())
    assert find_source(FinetuneCommand(run=str(run), arch=result.arch.to_json())).shared


def test_a_finished_run_is_left_as_it_is(run: Path) -> None:
    before, method = contents(run), run.parent.name.rstrip("0123456789")
    assert main(words("run", run, finish=method)) == 0
    assert contents(run) == before


def test_inherited_accuracies_are_marked_beside_those_of_own_training(run: Path) -> None:
    result, page = RunResult.load(run / "result.json"), (run / "report.html").read_text()
    marked = "random (inherited)" in page
    assert marked == (result.finished is not None)


def test_a_run_ends_with_a_verdict_and_commands_that_work(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = run.parent.name.rstrip("0123456789")
    capsys.readouterr()
    assert main(words("run", run, finish=method)) == 0
    said, progress = capsys.readouterr()
    for stage in ("winner and references: ", "check-up of the supernet: ", "drawing the report: "):
        assert stage in progress
    page = (run / "report.html").read_text()
    first = next(line for line in said.splitlines() if line.startswith("The search "))
    assert page.index(first) < page.index("test accuracy")
    commands = [shlex.split(line)[2:] for line in said.splitlines() if line.startswith("next: ")]
    predict, export, finetune = commands
    assert predict == ["predict", str(run), "PHOTO.jpg"]
    assert export == ["export", str(run), "--to", f"{run}-export"]
    assert main([*finetune, "--train.iterations", "1", "--export", "false"]) == 0
    assert main([*export, "--formats", "python"]) == 0
