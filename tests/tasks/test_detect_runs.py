"""Detection by the command line: retrained, killed, fine-tuned, evaluated, predicted, exported and searched for."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import kill
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models.storage import load_model
from nasformer.utils.files import read_json
from small_run import json_output, refused
from tasks.objects import write_objects

pytest.importorskip("pycocotools")
pytestmark = pytest.mark.slow  # half a minute for each training

SETTINGS: dict[str, Any] = {
    "task": "detect",
    "space": "s3-micro",
    "img_size": 32,
    "patch_size": 2,
    "workers": 0,
    "model": {"drop_path_rate": 0.0},
    "detect": {"decoder_dim": 16, "scale_min": 1.0, "scale_max": 1.0},
    "train": {"epochs": 30, "batch_size": 6, "lr": 0.005, "checkpoint_seconds": 0.0},
    "export": False,
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_objects(tmp_path_factory.mktemp("objects") / "set")


def words(command: str, folder: Path, data: Path, *more: str | Path, **changes: Any) -> list[str]:
    path = folder.parent / f"{folder.name}.json.yaml"
    path.write_text(json.dumps(SETTINGS | changes))
    return [command, *map(str, more), "--config", str(path), "--data", str(data), "--out", str(folder)]


@pytest.fixture(scope="module")
def retrained(objects: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net that has learned the objects; tests read it only."""
    folder = tmp_path_factory.mktemp("retrained") / "run"
    assert main(words("retrain", folder, objects, "--arch", "smallest")) == 0
    return folder


def test_a_net_learns_objects(retrained: Path, objects: Path, tmp_path: Path, capsys: Any) -> None:
    config, model = read_json(retrained / "model" / "config.json"), load_model(retrained / "model")
    winner = read_json(retrained / "result.json")["winner"]
    assert winner["params"] == sum(weight.numel() for weight in model.parameters())
    assert (config["family"], config["classes"]) == ("detect:s3", ["square", "disc"])
    report = (retrained / "report.html").read_text()
    assert "test box AP" in report
    assert "Each class, on the held-out images" in report
    assert ">disc</td>" in report
    assert {path.name for path in (retrained / "pictures").glob("*.png")} == {"best.png", "median.png", "worst.png"}
    scores = json_output(capsys, "evaluate", retrained, "--data", objects, "--out", tmp_path / "evaluation")
    assert scores["box_ap"] == pytest.approx(winner["test_box_ap"])
    assert scores["box_ap50"] > 0.4
    assert scores["mask_ap50"] > 0.4
    table = (tmp_path / "evaluation" / "per_class.csv").read_text()
    assert table.startswith("name,objects,box_ap,mask_ap\nsquare,2,")


def test_what_is_found_is_written_and_the_exported_file_finds_the_same(
    retrained: Path, objects: Path, tmp_path: Path, capsys: Any
) -> None:
    image = objects / "test2017" / "016.png"
    (found,) = json_output(capsys, "predict", retrained, image, "--out", tmp_path / "found")
    lines = read_json(Path(found["json"]))["objects"]
    assert Image.open(found["overlay"]).size == (32, 24)
    assert {"name", "score", "box", "segmentation"} == lines[0].keys()
    assert "say where its boxes and masks shall go" in refused(capsys, ["predict", str(retrained), str(image)])

    exported = json_output(capsys, "export", retrained, "--to", tmp_path / "export")
    assert set(exported["differences"]) == {"model.safetensors", "model.py"}
    assert "exported as Python alone" in exported["notes"][0]
    module = runpy.run_path(str(tmp_path / "export" / "model.py"))
    for (name, score, box), line in zip(module["predict"](image), lines, strict=False):
        assert name == line["name"]
        assert score == pytest.approx(line["score"], abs=0.02)
        assert box == pytest.approx(line["box"], abs=0.5)


def test_a_training_that_was_killed_ends_as_if_undisturbed(retrained: Path, objects: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = kill.nasformer(*words("retrain", folder, objects, "--arch", "smallest"))
    assert kill.kill(command, lambda: any(folder.glob("train/checkpoints/*")), 0.3)
    assert not (folder / "result.json").exists()
    assert main(command[3:]) == 0
    state, undisturbed = (load_model(path / "model").state_dict() for path in (folder, retrained))
    assert all(torch.equal(state[name], weight) for name, weight in undisturbed.items())
    assert (folder / "train/log.jsonl").read_text() == (retrained / "train/log.jsonl").read_text()


def test_a_detector_is_trained_on_also_in_parts_of_a_batch(retrained: Path, objects: Path, tmp_path: Path) -> None:
    changes = {"train": {"epochs": 1, "batch_size": 6, "accumulate": 2, "lr": 1e-4}, "detect": {}}
    assert main(words("finetune", tmp_path / "more", objects, retrained, space=None, **changes)) == 0
    assert load_model(tmp_path / "more" / "model").options == load_model(retrained / "model").options


def test_boxes_alone_are_learned_and_judged_without_masks(objects: Path, tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "boxes"
    shutil.copytree(objects, data)
    for file in (data / "annotations").iterdir():
        content = json.loads(file.read_text())
        content["annotations"] = [{**one, "segmentation": None} for one in content["annotations"]]
        file.write_text(json.dumps(content))
    changes = {"train": {"iterations": 1, "batch_size": 6}, "detect": {"decoder_dim": 16, "masks": False}}
    assert main(words("retrain", tmp_path / "run", data, "--arch", "smallest", **changes)) == 0
    assert "mask_ap" not in json_output(capsys, "evaluate", tmp_path / "run", "--data", data)


def test_a_pretrained_net_of_timm_learns_objects(objects: Path, tmp_path: Path) -> None:
    vit = timm.create_model("vit_tiny_patch16_224")
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    changes = {
        "space": None,
        "patch_size": None,
        "img_size": 48,
        "train": {"iterations": 1, "batch_size": 2, "lr": 1e-9},
    }
    source = f"timm:vit_tiny_patch16_224:{tmp_path / 'vit.safetensors'}"
    assert main(words("finetune", tmp_path / "run", objects, source, **changes)) == 0
    model, config = load_model(tmp_path / "run" / "model"), read_json(tmp_path / "run" / "model" / "config.json")
    assert model.family == "detect:vit"
    assert config["mean"] == [0.5, 0.5, 0.5]  # as the net saw images, not as ImageNet's usual
    own, theirs = model.state_dict(), vit.state_dict()
    torch.testing.assert_close(own["blocks.3.mlp.fc1.weight"], theirs["blocks.3.mlp.fc1.weight"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", ["mask-rcnn", "cascade"])
def test_archs_are_searched_by_ap_within_a_budget_that_counts_the_head(
    objects: Path, tmp_path: Path, capsys: Any, head: str
) -> None:
    folder, space = tmp_path / "run", "autoformer-micro[embed_dim=32,48;blocks.depth=2,3]"
    changes = {"space": space, "patch_size": 4, "max_params": "240K", "finish": "none", "calibration_images": 12}
    changes |= {"search": {"population": 3, "generations": 1}, "train": {"epochs": 4, "batch_size": 6, "lr": 0.005}}
    changes |= {"detect": SETTINGS["detect"] | {"head": head, "judged_by": "mask_ap"}}
    result = json_output(capsys, *words("run", folder, objects, **changes))
    journal = [json.loads(line) for line in (folder / "search" / "journal.jsonl").read_text().splitlines()]
    scores = [line["mask_ap"] for line in journal if "mask_ap" in line]
    assert scores
    assert result["winner"]["holdout_mask_ap"] == pytest.approx(max(scores))
    model = load_model(folder / "model")
    assert model.options["head"] == head
    assert sum(weight.numel() for weight in model.parameters()) == result["winner"]["params"] <= 240_000
    evaluated = json_output(capsys, "evaluate", folder, "--data", objects, "--arch", "smallest")
    assert 0 <= evaluated["box_ap"] <= 1
