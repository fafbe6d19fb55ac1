"""A folder that is made for another task than the one asked for: the message names the task it is made for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from nasformer.data import sources
from nasformer.data.sources import annotated_for, load_data
from nasformer.errors import UserError
from nasformer.runs.base import load_batches
from nasformer.tasks import registry
from nasformer.tasks.boxes import CocoFile
from nasformer.tasks.masks import list_masks
from nasformer.tasks.options import TaskFacts
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.files import write_json
from tasks.examples import EXAMPLES

ANNOTATED = {"segment": ["segment"], "detect": ["detect"], "panoptic": ["panoptic"], "vqa": ["vqa"]}


def open_for(task: str, root: Path) -> None:
    command = EXAMPLES[task].command(task)
    command.data = str(root)
    load_batches(command, Recipe(batch_size=4), World(), torch.device("cpu"), 32)


@pytest.mark.parametrize(("made_for", "asked"), [(a, b) for a in ANNOTATED for b in ANNOTATED if a != b])
def test_the_task_is_named_for_which_a_folder_is_made(tmp_path: Path, made_for: str, asked: str) -> None:
    if (made_for, asked) == ("segment", "detect"):
        return  # masks of PNG files may number objects as well
    EXAMPLES[made_for].command(made_for, tmp_path)
    with pytest.raises(UserError, match=rf"expected .*; what is there looks like --task {made_for}$"):
        open_for(asked, tmp_path)


@pytest.mark.parametrize("made_for", ANNOTATED)
def test_masks_boxes_and_questions_are_not_taken_for_classes(tmp_path: Path, made_for: str) -> None:
    EXAMPLES[made_for].command(made_for, tmp_path)
    assert annotated_for(tmp_path) == ANNOTATED[made_for]
    with pytest.raises(UserError, match=rf"has no folder for each class, but what --task {made_for} learns from"):
        load_data(str(tmp_path))


def test_a_plugin_says_what_its_folders_look_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_tasks", "TASKS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registry, "SIGNS", signs := dict(sources.SIGNS))
    monkeypatch.setattr(sources, "SIGNS", signs)

    @registry.register_task
    class Poses(type(registry.get_task("classify"))):  # type: ignore[misc]
        facts = TaskFacts("poses", "joints of people", {"pck": "PCK"}, signs=("*/poses.json",))

    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "poses.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no folder for each class, but what --task poses learns from"):
        load_data(str(tmp_path))
    with pytest.raises(UserError, match=r"what is there looks like --task poses$"):
        open_for("segment", tmp_path)


def test_masks_in_another_layout_are_no_classes(tmp_path: Path) -> None:
    EXAMPLES["segment"].command("segment", tmp_path)
    with pytest.raises(UserError, match=r"in a known layout \(voc\); expected .*Cityscapes$"):
        list_masks(tmp_path, "voc")


def test_panoptic_segments_are_told_from_instances(tmp_path: Path) -> None:
    EXAMPLES["panoptic"].command("panoptic", tmp_path)
    (file,) = tmp_path.glob("annotations/panoptic_train*.json")
    with pytest.raises(UserError, match=r"has panoptic segments; give COCO's instances, or .* --task panoptic"):
        CocoFile.load(file)


def test_refused_questions_are_a_share_of_all(tmp_path: Path) -> None:
    EXAMPLES["vqa"].command("vqa", tmp_path)
    file = tmp_path / "train" / "questions.json"
    content = json.loads(file.read_text())
    for question in content["questions"]:
        question["question"] = "?"
    write_json(file, content)
    count = len(content["questions"])
    with pytest.raises(UserError, match=rf": {count} of \d+ questions") as refusal:
        open_for("vqa", tmp_path)
    assert int(re.findall(r"of (\d+) questions", str(refusal.value))[0]) >= count


@pytest.mark.parametrize("asked", ["segment", "detect", "panoptic", "vqa"])
def test_folders_of_classes_are_told_from_annotated_images(tmp_path: Path, asked: str) -> None:
    for name in ("masks", "none"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "photo.png")
    assert annotated_for(tmp_path) == []
    with pytest.raises(UserError, match=r"what is there looks like --task classify$"):
        open_for(asked, tmp_path)


@pytest.mark.parametrize("asked", ["segment", "detect", "panoptic", "vqa"])
def test_without_a_folder_the_option_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"--task {asked} learns from annotated images .* with --data$"):
        open_for(asked, Path("digits"))
