"""Panoptic segmentation by the command line: trained, killed, evaluated, predicted, exported and searched for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kill
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models.storage import load_model
from nasformer.runs.options import EvaluateCommand
from nasformer.runs.single import load_for_evaluation
from nasformer.tasks.options import PanopticOptions
from nasformer.utils.files import read_json, write_json
from small_run import json_output, output, refused
from tasks.shapes import write_panoptic

CLASSES = ["square", "disc", "wall", "floor"]
SETTINGS: dict[str, Any] = {
    "task": "panoptic",
    "space": "autoformer-micro",
    "img_size": 32,
    "patch_size": 4,
    "workers": 0,
    "panoptic": {"decoder_dim": 32, "scale_min": 1.0, "scale_max": 1.0, "sigma": 2.0},
    "train": {"epochs": 1, "batch_size": 6, "lr": 0.005, "checkpoint_seconds": 0.0},
    "export": False,
}

ONCE = ("--train.epochs", "1", "--train.batch-size", "6")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_panoptic(tmp_path_factory.mktemp("shapes") / "set")


def words(command: str, folder: Path, data: Path, *more: str, **changes: Any) -> list[str]:
    path = folder.parent / f"{folder.name}.json.yaml"
    merged = {key: SETTINGS[key] | value if key in ("train", "panoptic") else value for key, value in changes.items()}
    path.write_text(json.dumps(SETTINGS | merged))
    return [command, *more, "--config", str(path), "--data", str(data), "--out", str(folder)]


def test_from_training_to_answers(shapes: Path, tmp_path: Path, capsys: Any) -> None:
    run, out = tmp_path / "run", tmp_path / "evaluation"
    assert main(words("retrain", run, shapes, "--arch", "smallest")) == 0
    assert "test PQ" in capsys.readouterr().out
    config = read_json(run / "model" / "config.json")
    assert (config["family"], config["classes"], config["options"]["num_things"]) == ("panoptic:autoformer", CLASSES, 2)
    assert {path.name for path in (run / "pictures").glob("*.png")} <= {"best.png", "median.png", "worst.png"}

    scores = json_output(capsys, "evaluate", run, "--data", shapes, "--out", out)
    assert scores["pq"] == pytest.approx(read_json(run / "result.json")["winner"]["test_pq"])
    assert [(score["name"], score["kind"]) for score in scores["by_class"]][1:3] == [
        ("disc", "thing"),
        ("wall", "stuff"),
    ]
    assert (out / "per_class.csv").read_text().startswith("name,kind,matched,wrong,missed,pq,sq,rq\nsquare,thing,")
    assert output(capsys, "evaluate", run, "--data", shapes).startswith("test: PQ ")

    image = str(shapes / "test" / "016.png")
    (found,) = json_output(capsys, "predict", run, image, "--out", tmp_path / "answers")
    ids = np.array(Image.open(found["png"])).astype(int) @ [1, 256, 65536]
    assert {segment["id"]: segment["area"] for segment in found["segments"]} == {
        number: int((ids == number).sum()) for number in np.unique(ids[ids > 0]).tolist()
    }
    assert config["stuff_area"] == 0.01
    write_json(run / "model" / "config.json", {**config, "stuff_area": 2.0})  # above every area
    (found,) = json_output(capsys, "predict", run, image, "--out", tmp_path / "things")
    assert all(segment["isthing"] for segment in found["segments"])
    assert "say where its segments shall go" in refused(capsys, ["predict", str(run), image])
    assert "num_things" not in refused(capsys, ["finetune", str(run), "--data", str(shapes), "--out", str(run)])
    assert main(["export", str(run), "--to", str(tmp_path / "export"), "--formats", "python"]) == 0
    assert "def predict" not in (tmp_path / "export" / "model.py").read_text()


@pytest.mark.slow
def test_a_model_is_judged_and_trained_on_by_its_own_options(shapes: Path, tmp_path: Path) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    assert main(words("retrain", run, shapes, "--arch", "smallest", panoptic={"stuff_area": 0.25})) == 0
    command = EvaluateCommand(model=str(run), data=str(shapes), workers=0)
    assert load_for_evaluation(command)[2].options.stuff_area == 0.25
    asked = replace(command, task="panoptic", task_options={"panoptic": PanopticOptions(stuff_area=0.01)})
    assert load_for_evaluation(asked)[2].options.stuff_area == 0.01
    assert main(["finetune", str(run), "--task", "panoptic", "--data", str(shapes), "--out", str(more), *ONCE]) == 0
    facts = read_json(more / "model" / "config.json")
    assert (facts["sigma"], facts["stuff_area"]) == (2.0, 0.25)


@pytest.mark.slow
def test_a_net_learns_to_tell_things_apart_and_a_killed_training_ends_the_same(shapes: Path, tmp_path: Path) -> None:
    whole, killed, train = tmp_path / "whole", tmp_path / "killed", {"epochs": 100}
    assert main(words("retrain", whole, shapes, "--arch", "smallest", train=train)) == 0
    winner = read_json(whole / "result.json")["winner"]
    assert winner["test_pq"] > 0.6
    assert winner["params"] == sum(weight.numel() for weight in load_model(whole / "model").parameters())
    command = kill.nasformer(*words("retrain", killed, shapes, "--arch", "smallest", train=train))
    assert kill.kill(command, lambda: any(killed.glob("train/checkpoints/*")), 0.3)
    assert not (killed / "result.json").exists()
    assert main(command[3:]) == 0
    state, undisturbed = (load_model(path / "model").state_dict() for path in (killed, whole))
    assert all(torch.equal(state[name], weight) for name, weight in undisturbed.items())


@pytest.mark.slow
def test_archs_are_searched_by_pq_within_a_budget_that_counts_the_head(
    shapes: Path, tmp_path: Path, capsys: Any
) -> None:
    changes = {"max_params": "120K", "finish": "none", "calibration_images": 12, "train": {"epochs": 20}}
    changes |= {"search": {"population": 3, "generations": 1}}
    result = json_output(capsys, *words("run", tmp_path / "run", shapes, **changes))
    journal = (tmp_path / "run" / "search" / "journal.jsonl").read_text().splitlines()
    scores = [line["pq"] for line in map(json.loads, journal) if "pq" in line]
    assert result["winner"]["holdout_pq"] == pytest.approx(max(scores))
    assert result["winner"]["params"] <= 120_000
    assert main(["extract", str(tmp_path / "run"), "--to", str(tmp_path / "extracted")]) == 0
    assert read_json(tmp_path / "extracted" / "config.json")["stuff_area"] == 0.01
    evaluated = json_output(capsys, "evaluate", tmp_path / "run" / "model", "--data", shapes)
    assert evaluated["pq"] == pytest.approx(result["winner"]["test_pq"])
