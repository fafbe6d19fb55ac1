"""Segmentation by the command line: retrained, killed, fine-tuned, evaluated, predicted, exported and searched for."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import kill
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models.dense import dense_space
from nasformer.models.registry import get_space
from nasformer.models.storage import load_model
from nasformer.proxies.scoring import Scorer
from nasformer.runs.doctor import examine
from nasformer.train.loop import Trainer
from nasformer.utils.files import read_json, write_json
from small_run import json_output, output, pictures, refused
from tasks.shapes import CLASSES, draw, write_set

SETTINGS: dict[str, Any] = {
    "task": "segment",
    "space": "s3-micro",
    "img_size": 32,
    "patch_size": 2,
    "workers": 0,
    "model": {"drop_path_rate": 0.0},
    "segment": {"decoder_dim": 16, "scale_min": 1.0, "scale_max": 1.0},
    "train": {"epochs": 30, "batch_size": 6, "lr": 0.01},
    "export": False,
}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("shapes") / "set")


def words(command: str, folder: Path, data: Path, *more: str | Path, **changes: Any) -> list[str]:
    path = folder.parent / f"{folder.name}.json.yaml"
    path.write_text(json.dumps(SETTINGS | changes))
    return [command, *map(str, more), "--config", str(path), "--data", str(data), "--out", str(folder)]


@pytest.fixture(scope="module")
def retrained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net that has learned the shapes; tests read it only."""
    folder = tmp_path_factory.mktemp("retrained") / "run"
    with pictures():
        assert main(words("retrain", folder, shapes, "--arch", "smallest")) == 0
    return folder


def test_a_net_learns_masks(retrained: Path) -> None:
    result, config = read_json(retrained / "result.json"), read_json(retrained / "model" / "config.json")
    winner, model = result["winner"], load_model(retrained / "model")
    assert winner["test_miou"] > 0.6
    assert winner["holdout_miou"] > 0.6
    assert winner["params"] == sum(weight.numel() for weight in model.parameters())
    assert (config["family"], config["classes"], config["options"]["decoder_dim"]) == ("segment:s3", CLASSES, 16)
    page = (retrained / "report.html").read_text()
    assert "test mIoU" in page
    assert "mIoU and size" in page
    assert "accuracy" not in page.lower().partition("<h2>settings</h2>")[0]
    assert "The median image" in page
    assert {path.name for path in (retrained / "pictures").glob("*.png")} == {"best.png", "median.png", "worst.png"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", 7),
        ("family", "segment:"),
        ("arch", []),
        ("options", {"decoder_dim": "x"}),
        ("classes", 3),
        ("mean", {}),
    ],
)
def test_a_config_of_a_wrong_shape_is_refused(
    retrained: Path, shapes: Path, tmp_path: Path, capsys: Any, field: str, value: Any
) -> None:
    model = shutil.copytree(retrained / "model", tmp_path / "model")
    config = read_json(model / "config.json")
    both = config[field] | value if isinstance(value, dict) and isinstance(config[field], dict) else value
    write_json(model / "config.json", config | {field: both})
    refused(capsys, ["evaluate", str(model), "--data", str(shapes), "--device", "cpu"])
    refused(capsys, ["predict", str(model), str(shapes / "test/images/016.png"), "--out", str(tmp_path / "out")])


def test_evaluation_has_scores_a_table_and_pictures(retrained: Path, shapes: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "evaluation"
    scores = json_output(capsys, "evaluate", retrained, "--data", shapes, "--out", out)
    assert scores["miou"] == pytest.approx(read_json(retrained / "result.json")["winner"]["test_miou"])
    assert [score["name"] for score in scores["by_class"]] == CLASSES
    assert (out / "per_class.csv").read_text().startswith("name,pixels,iou,accuracy\nground,")
    assert {path.name for path in out.glob("*.png")} == {"best.png", "median.png", "worst.png"}
    by_image = read_json(out / "evaluation.json")["by_image"]
    assert len(by_image) == 4
    assert scores["images"] == 4
    several = ("--segment.test-scales", "0.75,1", "--segment.test-flip", "true")
    assert json_output(capsys, "evaluate", retrained, "--data", shapes, *several)["miou"] > 0.6
    text = output(capsys, "evaluate", retrained, "--data", shapes, "--split", "holdout")
    assert text.startswith("holdout: mIoU ")
    others = refused(capsys, ["evaluate", str(retrained), "--data", str(shapes), "--segment.ignore", "255,1"])
    assert f"(without {CLASSES[1]}); give the same set and the same options of the task as in training" in others
    assert "worst: " in text


def test_masks_are_predicted_and_the_exported_file_gives_the_same(
    retrained: Path, shapes: Path, tmp_path: Path, capsys: Any
) -> None:
    image = shapes / "test/images/016.png"
    (found,) = json_output(capsys, "predict", retrained, image, "--out", tmp_path / "masks")
    mask = np.array(Image.open(found["mask"]))
    truth = draw(16)[1]
    assert (mask == truth)[truth != 255].mean() > 0.9
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert Image.open(found["overlay"]).size == (32, 24)
    assert "say where its masks shall go" in refused(capsys, ["predict", str(retrained), str(image)])

    assert main(["export", str(retrained), "--to", str(tmp_path / "export"), "--formats", "python"]) == 0
    module = runpy.run_path(str(tmp_path / "export" / "model.py"))
    assert (module["predict"](image).numpy() == mask).mean() > 0.999
    assert "timm" not in (tmp_path / "export" / "README.md").read_text().split("## Images")[0]


@pytest.mark.slow
def test_every_format_gives_the_logits_of_the_model(retrained: Path, tmp_path: Path, capsys: Any) -> None:
    exported = json_output(capsys, "export", retrained, "--to", tmp_path / "export")
    assert set(exported["differences"]) >= {"model.py", "model.pt2", "model.onnx"}  # each is checked, or refused


@pytest.mark.slow
def test_a_training_that_was_killed_ends_as_if_undisturbed(retrained: Path, shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    often = SETTINGS["train"] | {"checkpoint_seconds": 0.0}
    command = kill.nasformer(*words("retrain", folder, shapes, "--arch", "smallest", train=often))
    assert kill.kill(command, lambda: any(folder.glob("train/checkpoints/*")), 0.3)
    assert not (folder / "result.json").exists()
    assert main(command[3:]) == 0
    state, undisturbed = (load_model(path / "model").state_dict() for path in (folder, retrained))
    assert all(torch.equal(state[name], weight) for name, weight in undisturbed.items())
    assert (folder / "train/log.jsonl").read_text() == (retrained / "train/log.jsonl").read_text()


def test_other_masks_are_another_training(
    retrained: Path, shapes: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train", None)
    changed = SETTINGS["segment"] | {"scale_max": 2.0}
    message = refused(capsys, words("retrain", retrained, shapes, "--arch", "smallest", segment=changed))
    assert "segment" in message


def test_a_segmentation_model_is_trained_on_and_no_classifier(
    retrained: Path, shapes: Path, tmp_path: Path, capsys: Any
) -> None:
    changes = {"train": {"epochs": 1, "batch_size": 6, "lr": 1e-4}, "segment": {}}
    assert main(words("finetune", tmp_path / "more", shapes, retrained, space=None, **changes)) == 0
    finetuned = load_model(tmp_path / "more" / "model")
    assert finetuned.options == load_model(retrained / "model").options
    assert read_json(tmp_path / "more" / "result.json")["winner"]["test_miou"] > 0.6
    message = refused(capsys, words("finetune", tmp_path / "no", shapes, retrained, space=None, task="classify"))
    assert "add --task segment" in message


def test_pixels_that_a_model_was_not_trained_on_stay_left_out(shapes: Path, tmp_path: Path, capsys: Any) -> None:
    run, once = tmp_path / "run", {"epochs": 1, "batch_size": 6}
    assert main(words("retrain", run, shapes, "--arch", "smallest", segment={"ignore": "255,1"}, train=once)) == 0
    (tmp_path / "run").rename(run := tmp_path / "moved")
    evaluated = json_output(capsys, "evaluate", run, "--data", shapes)
    assert [score["name"] for score in evaluated["by_class"]] == [CLASSES[0], CLASSES[2]]
    assert main(words("finetune", tmp_path / "more", shapes, run, space=None, segment={}, train=once)) == 0
    facts = read_json(tmp_path / "more" / "model" / "config.json")
    assert (facts["ignore"], facts["classes"]) == ("255,1", [CLASSES[0], CLASSES[2]])


def test_the_backbone_of_a_classifier_learns_masks(finished: Path, shapes: Path, tmp_path: Path) -> None:
    """`finished` is a run on digits: grey images of 8 pixels."""
    changes = {"space": None, "patch_size": None, "train": {"epochs": 1, "batch_size": 6}}
    assert main(words("finetune", tmp_path / "run", shapes, finished, **changes)) == 0
    model, before = load_model(tmp_path / "run" / "model"), load_model(finished / "model")
    assert model.family == "segment:autoformer"
    assert model.arch == before.arch
    assert model.options["in_chans"] == 3
    assert model.num_classes == 3


def test_archs_are_searched_by_miou_within_a_budget_that_counts_the_head(
    shapes: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, space = tmp_path / "run", "autoformer-micro[embed_dim=32,48;blocks.depth=2,3]"
    changes = {"space": space, "patch_size": 4, "max_params": "60K", "finish": "none", "calibration_images": 12}
    changes |= {"search": {"population": 3, "generations": 1}, "train": {"epochs": 12, "batch_size": 6, "lr": 0.005}}
    command = words("run", folder, shapes, **changes)
    with pictures():
        result = json_output(capsys, *command)
    journal = [json.loads(line) for line in (folder / "search" / "journal.jsonl").read_text().splitlines()]
    scores = [line["miou"] for line in journal if "miou" in line]
    assert scores
    assert result["winner"]["holdout_miou"] == pytest.approx(max(scores))
    assert result["winner"]["params"] <= 60_000
    assert result.get("timm") is None
    page = (folder / "report.html").read_text()
    assert "points of test mIoU over the random reference" in page
    assert "Winner and references" in page
    assert "accuracy" not in page.lower().partition("<h2>settings</h2>")[0]
    model = load_model(folder / "model")
    assert sum(weight.numel() for weight in model.parameters()) == result["winner"]["params"]
    evaluated = json_output(capsys, "evaluate", folder / "model", "--data", shapes)
    assert evaluated["miou"] == pytest.approx(result["winner"]["test_miou"])
    assert json_output(capsys, "evaluate", folder, "--data", shapes, "--arch", "smallest")["miou"] > 0
    message = refused(capsys, ["search", "--data", str(shapes), "--out", str(folder)])
    assert "are for another task; add --task segment" in message
    diagnosis = examine(folder, str(shapes))
    assert diagnosis.score == "miou"
    assert all(0 <= subnet["miou"] <= 1 for subnet in diagnosis.subnets)
    assert diagnosis.subnets[0]["params"] > 0
    assert diagnosis.baselines == {}
    monkeypatch.setattr("nasformer.supernet.health.NOTHING", 1.0)  # as if none had learned anything
    assert [alarm.finding for alarm in examine(folder, str(shapes)).alarms if alarm.name == "nothing"] == [
        f"no subnet scores anything: mIoU {max(subnet['miou'] for subnet in diagnosis.subnets):.2%} at best"
    ]
    main(["doctor", str(folder)])
    assert "rank correlation of mIoU" in capsys.readouterr().out


def test_proxies_score_backbones_and_budgets_count_the_head(tmp_path: Path, capsys: Any) -> None:
    task = ["--task", "segment", "--segment.decoder-dim", "16", "--num-classes", "3", "--img-size", "32"]
    common = ["search", "--space", "autoformer-micro", "--proxy", "dss", "--seed", "3", "--search.evaluations", "30"]
    common += ["--search.strategy", "random"]
    with pictures():
        result = json_output(capsys, *common, *task, "--max-params", "150K", "--out", tmp_path / "run")
    space = dense_space(get_space("autoformer-micro", img_size=32, num_classes=3), "segment", decoder_dim=16)
    arch = space.arch(result["winner"]["arch"])
    assert result["winner"]["params"] == space.costs(arch)["params"] <= 150_000
    bare = Scorer(get_space("autoformer-micro", img_size=32, num_classes=3), "dss", seed=3)
    assert result["winner"]["dss"] == pytest.approx(bare(arch)["dss"])
    message = refused(capsys, [*common, *task, "--data", "camvid"])
    assert "give --img-size and --num-classes in place of --data" in message
    assert "proxies see backbones" in refused(
        capsys, ["search", "--space", "autoformer-micro", "--proxy", "params", *task]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "timm:resnet"}, "timm has no model 'resnet'"),
        ({"train": {"batch_size": 1}}, "needs two images at a time"),
        ({"train": {"augment": {"cutmix": 1.0}}}, "cutmix is for classification"),
        ({"train": {"balance": True}}, "balance is for classification"),
    ],
)
def test_what_there_is_not_for_masks_is_refused(
    shapes: Path, tmp_path: Path, capsys: Any, changes: dict[str, Any], message: str
) -> None:
    assert message in refused(capsys, words("retrain", tmp_path / "run", shapes, "--arch", "smallest", **changes))


def test_a_net_of_timm_is_trained_beside_with_the_same_head(shapes: Path, tmp_path: Path, capsys: Any) -> None:
    changes = {"baseline": "timm:test_vit", "train": {"epochs": 1, "batch_size": 6}}
    result = json_output(capsys, *words("retrain", tmp_path / "run", shapes, "--arch", "smallest", **changes))
    (baseline,) = result["references"]
    assert baseline["name"] == "timm:test_vit"
    assert 0 <= baseline["test_miou"] <= 1
    weights = load_file(next((tmp_path / "run/baselines").rglob("weights.safetensors")))
    assert sum(weight.numel() for name, weight in weights.items() if name.startswith("head.")) > 0
