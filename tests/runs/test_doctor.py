"""The doctor of a run: what it looks at, what it says, and its exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sklearn.neighbors import NearestCentroid

import kill
import tiny
from nasformer.cli.commands.results import print_diagnosis
from nasformer.cli.main import main
from nasformer.data.images import ImageSet
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder
from nasformer.results.result import Diagnosis
from nasformer.runs.doctor import NEAREST_MEAN, SupernetRun
from nasformer.search.problem import ModelResult
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.storage import load_supernet
from nasformer.train.evaluate import evaluate
from nasformer.train.log import TrainLog
from nasformer.utils.files import read_json, write_json, write_text
from small_run import pictures, refused, words


def doctor(capsys: Any, run: Path, *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["doctor", str(run), "--device", "cpu", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def alarms(found: dict[str, Any]) -> set[str]:
    return {alarm["name"] for alarm in found["alarms"]}


def rewrite(run: Path, lines: list[dict[str, Any]]) -> None:
    write_text(run / "train" / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def looks(run: Path, accuracies: list[dict[str, float]]) -> None:
    """Puts looks at the subnets into the log of a run, as if it had been watched."""
    lines = [line for line in TrainLog.read(run / "train" / "log.jsonl") if "subnets" not in line]
    made = [{"step": 1, "epoch": 0.5 + place / 10, "watch": {}, "subnets": x} for place, x in enumerate(accuracies)]
    rewrite(run, [*made, *lines])


def graded(run: Path, sign: float) -> dict[str, float]:
    """Accuracies that rise or fall with the size of a subnet."""
    space = load_supernet(run / "supernet").space
    return {name: 0.5 + sign * space.cost(arch).params / 1e6 for name, arch in fixed_subnets(space).items()}


def pixels(images: ImageSet) -> tuple[Any, Any]:
    return images.images.flatten(1).numpy(), images.labels.numpy()


@pytest.mark.parametrize(("pixels_alone", "said"), [(0.5, "but no better than " + NEAREST_MEAN), (0.4, "healthy: ")])
def test_subnets_that_plain_pixels_match_are_not_simply_healthy(pixels_alone: float, said: str, capsys: Any) -> None:
    subnet = ModelResult("largest", {}, {"params": 1, "depth": 1, "width": 1, "accuracy": 0.5})
    found = Diagnosis(1, "held-out images", [subnet], {}, [], [], [], {NEAREST_MEAN: pixels_alone})
    print_diagnosis(found, Path("run"))
    assert said in capsys.readouterr().out


def test_a_run_that_was_not_watched_is_evaluated_now(run: Path, capsys: Any) -> None:
    with pictures():
        _, found = doctor(capsys, run)
    supernet, batches = load_supernet(run / "supernet"), tiny.Watched(tiny.recipe())
    for row, (name, arch) in zip(found["subnets"], fixed_subnets(supernet.space).items(), strict=True):
        assert (row["name"], row["arch"], row["params"]) == (name, arch.to_dict(), supernet.space.cost(arch).params)
        assert row["accuracy"] == evaluate(supernet, batches, "holdout", arch=arch)["accuracy"]
    assert found["images"] == "held-out images"
    assert found["correlations"].keys() == {"depth", "width"}
    centroids = NearestCentroid().fit(*pixels(batches.data.train)).score(*pixels(batches.data.holdout))
    assert found["baselines"] == {NEAREST_MEAN: pytest.approx(centroids)}
    assert "baseline" in alarms(found)  # two epochs are less than what pixels tell
    assert read_json(run / "health.json") == found
    assert (run / "plots" / "health.png").exists()
    page = (run / "report.html").read_text()
    assert "Health of the supernet" in page
    assert all(f"Alarm: {alarm['finding']}" in page for alarm in found["alarms"])


@pytest.mark.parametrize(("sign", "code"), [(1, 0), (-1, 1)])
def test_healthy_and_not_by_its_exit_code(run: Path, capsys: Any, sign: int, code: int) -> None:
    looks(run, [graded(run, sign)] * 3)
    found_code, found = doctor(capsys, run)
    assert found_code == code
    assert alarms(found) == ({"extremes", "depth", "width"} if code else set())
    assert found["taus"] == [1, 1]
    capsys.readouterr()
    assert main(["doctor", str(run)]) == code
    said = capsys.readouterr().out
    assert ("healthy: " in said) == (not code)
    assert said.count("alarm: ") == len(found["alarms"])
    assert "Kendall's tau): +1.00 +1.00" in said


def test_what_the_log_says(run: Path, capsys: Any) -> None:
    lines = TrainLog.read(run / "train" / "log.jsonl")
    back = {"back_to": 1, "failed": 2, "what": "loss", "shift": 8}
    losses = [{"step": 1, "epoch": 0.1, "loss": loss, "lr": 0.1} for loss in (2.3, 2.0, 1.7, 1.4, 1.2, 2.2, 1.9)]
    rewrite(run, [{"step": 1, "epoch": 0.1, "rollback": back}, *losses, *lines])
    looks(run, [graded(run, 1), graded(run, -1), graded(run, 1), graded(run, -1), graded(run, 1)])
    code, found = doctor(capsys, run)
    assert code == 1
    assert alarms(found) == {"rollback", "reset", "flips"}
    assert all(alarm["advice"] for alarm in found["alarms"])
    told = next(alarm["finding"] for alarm in found["alarms"] if alarm["name"] == "rollback")
    assert told == "the loss was not finite at step 2; training went back to step 1, at half the rate"


def test_nothing_was_learned(run: Path, capsys: Any) -> None:
    looks(run, [dict.fromkeys(graded(run, 1), 0.1)] * 3)
    assert alarms(doctor(capsys, run)[1]) == {"chance"}


def test_a_training_that_stopped_is_judged_by_its_checkpoint(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    run, real = tmp_path / "run", tiny.Batches.train
    often = {"epochs": 2, "batch_size": 128, "log_epochs": 0.5, "checkpoint_seconds": 0, "augment": {"crop": "none"}}

    def failing(self: Any, step: int) -> Any:
        if step == 9:
            raise KeyboardInterrupt
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(tiny.Batches, "train", failing)
        assert main(words("train", run, train=often)) == 130
    code, found = doctor(capsys, run)
    assert code == 1
    assert "unfinished" in alarms(found)
    assert "chance" not in alarms(found)  # too early to say
    assert found["step"] == 8
    assert len(found["subnets"]) == 13
    with kill.holding(run / ".lock"):  # it still goes on
        assert not SupernetRun(RunFolder(run)).finished()
        assert SupernetRun(RunFolder(run)).running()
    assert main(words("train", run, train=often)) == 0
    assert read_run(run).alarms == []  # what was found before is outdated
    assert read_run(run).snapshots == []
    shutil.rmtree(run / "supernet")
    assert "unfinished" not in alarms(doctor(capsys, run)[1])


def test_who_is_no_patient(run: Path, tmp_path: Path, capsys: Any) -> None:
    write_json(tmp_path / "empty" / "config.json", {})
    assert "has no training of a supernet" in refused(capsys, ["doctor", str(tmp_path / "empty")])
    shutil.rmtree(run / "supernet")
    (settings,) = run.glob("train/checkpoints/*/settings.json")
    kept = {name: value for name, value in read_json(settings).items() if name != "checksums"}
    write_json(settings, kept | {"arch": "{}"})
    assert "is the training of a single model; the doctor looks at supernets" in refused(capsys, ["doctor", str(run)])
    shutil.rmtree(run / "train" / "checkpoints")
    assert "has no weights to look at yet" in refused(capsys, ["doctor", str(run)])
