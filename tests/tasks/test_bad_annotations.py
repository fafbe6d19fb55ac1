"""Each bad image and annotation for each task: left out and listed, refused in words, or harmless."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.tasks.registry import get_task
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from tasks.examples import EXAMPLES
from tasks.shapes import SIZE

IMAGES = {
    "segment": "train/images/001.png",
    "detect": "train2017/001.png",
    "panoptic": "train/001.png",
    "vqa": "train/images/shape_000001.png",
}
"""An image of the training part of each tiny set."""
ANNOTATIONS = {
    "detect": "annotations/instances_train2017.json",
    "panoptic": "annotations/panoptic_train.json",
    "vqa": "train/questions.json",
}
MASK, SEGMENTS = "train/masks/001.png", "annotations/panoptic_train/001.png"
Damage = Callable[[Path], Any]


@dataclass(frozen=True)
class Case:
    """Something wrong with a set.

    Args:
        damage: Does it to the set in a folder.
        listed: What the list of bad images says, a part of each line; none where nothing is wrong after all.
        refused: What the error says instead.
        used: Items of the training part that are left; None where none is left out.
    """

    task: str
    damage: Damage
    listed: tuple[str, ...] = ()
    refused: str = ""
    used: int | None = None


def edit(task: str, change: Callable[[Any], Any]) -> Damage:
    """A change of the JSON file of the training part."""

    def damage(root: Path) -> None:
        path = root / ANNOTATIONS[task]
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return damage


def annotation(task: str, **changes: Any) -> Damage:
    return edit(task, lambda content: content["annotations"][0].update(changes))


def append_to(task: str, entries: str, /, **changes: Any) -> Damage:
    """The second entry of a list once more, with changes."""
    return edit(task, lambda content: content[entries].append({**content[entries][1], **changes}))


def write(file: str, content: bytes) -> Damage:
    return lambda root: (root / file).write_bytes(content)


def draw(file: str, mode: str, size: tuple[int, int] = (32, 24), value: Any = 0) -> Damage:
    return lambda root: Image.new(mode, size, value).save(root / file)


def truncate(file: str, form: str = "PNG") -> Damage:
    """An image whose file lacks its end."""

    def damage(root: Path) -> None:
        path = root / file
        Image.open(path).save(path, form)
        path.write_bytes(path.read_bytes()[:-40])

    return damage


def remove(file: str) -> Damage:
    return lambda root: (root / file).unlink()


def replace_by_folder(file: str) -> Damage:
    def damage(root: Path) -> None:
        (root / file).unlink()
        (root / file).mkdir()

    return damage


def image_cases() -> dict[str, Case]:
    """What can be wrong with an image of any task."""
    cases = dict[str, Case]()
    for task, file in IMAGES.items():
        used = 22 if task == "vqa" else 11
        cases |= {
            f"{task}: no content": Case(task, write(file, b""), ("cannot identify image file",), used=used),
            f"{task}: no image": Case(task, write(file, b"no image"), ("cannot identify image file",), used=used),
            f"{task}: half a PNG": Case(task, truncate(file), ("truncated",), used=used),
            f"{task}: half a JPEG": Case(task, truncate(file, "JPEG"), ("truncated",), used=used),
            f"{task}: a folder": Case(task, replace_by_folder(file), ("not a regular file",), used=used),
            f"{task}: RGBA": Case(task, draw(file, "RGBA")),
            f"{task}: 16 bits": Case(task, draw(file, "I;16")),
        }
        if task != "vqa":
            cases[f"{task}: another size"] = Case(task, draw(file, "RGB", (50, 20)), ("pixels",), used=11)
    for task in ("detect", "panoptic"):
        cases[f"{task}: missing"] = Case(task, remove(IMAGES[task]), ("there is no such file",), used=11)
    return cases


MASKS = {
    "missing": Case("segment", remove(MASK), ("it has no mask",), used=11),
    "its image is missing": Case("segment", remove(IMAGES["segment"]), used=11),
    "another size": Case("segment", draw(MASK, "L", (9, 7)), ("9 x 7 pixels, the image 32 x 24",), used=11),
    "unknown ids": Case("segment", draw(MASK, "L", value=77), ("ids without a class: 77",), used=11),
    "RGB": Case("segment", draw(MASK, "RGB"), ("the mask is RGB; give one channel",), used=11),
    "grey with alpha": Case("segment", draw(MASK, "LA"), ("the mask is LA; give one channel",), used=11),
    "no image": Case("segment", write(MASK, b"x"), ("the mask cannot be read",), used=11),
    "half a file": Case("segment", truncate(MASK), ("the mask cannot be read",), used=11),
    "all ignored": Case("segment", draw(MASK, "L", value=255)),
    "all masks ignored": Case(
        "segment",
        lambda root: [Image.new("L", (32, 24), 255).save(path) for path in root.glob("train/masks/*")],
        refused="no pixel of the training masks has a class; check masks and ignored ids",
    ),
    "a mask for two images": Case(
        "segment", draw("train/images/001.jpg", "RGB"), ("another image has its mask",) * 2, used=11
    ),
    "two classes of a name": Case("segment", write("classes.txt", b"a\nb\na\n"), refused="two classes named 'a'"),
    "names that are no text": Case("segment", write("classes.txt", b"\xff\xfe\x00"), refused="text file in UTF-8"),
    "one class": Case("segment", write("classes.txt", b"a"), refused="there are 1 classes of pixels; 2 to 255"),
    "an id without a name": Case(
        "segment", write("classes.txt", b"ground\nsquare\n\ndisc"), refused="without a class: 2"
    ),
}
RLE = {"size": list(SIZE)}
OBJECTS = {
    "no width": (annotation("detect", bbox=[5, 5, 0, 10]), "its box is empty or outside"),
    "a negative width": (annotation("detect", bbox=[5, 5, -3, 10]), "its box is empty or outside"),
    "a box outside": (annotation("detect", bbox=[400, 5, 10, 10]), "its box is empty or outside"),
    "a box that is not finite": (annotation("detect", bbox=[5, 5, float("nan"), 10]), "not finite"),
    "three numbers": (annotation("detect", bbox=[5, 5, 10]), "not left, top, width and height"),
    "no box": (annotation("detect", bbox=None), "not left, top, width and height"),
    "an unknown category": (annotation("detect", category_id=99), "its category 99 is not listed"),
    "a category in words": (annotation("detect", category_id="3"), "its category 3 is not listed"),
    "an unknown image": (annotation("detect", image_id=5), "it is of the image 5, which is not listed"),
    "an image in words": (annotation("detect", image_id="100"), "it is of the image 100, which is not listed"),
    "no polygon": (annotation("detect", segmentation=[]), "it has no mask"),
    "no mask": (annotation("detect", segmentation=None), "it has no mask"),
    "two corners": (annotation("detect", segmentation=[[1, 2, 3, 4]]), "no three corners"),
    "half a corner": (annotation("detect", segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "no three corners"),
    "no list of corners": (annotation("detect", segmentation=[1, 2, 3, 4, 5, 6]), "no three corners"),
    "corners on a line": (annotation("detect", segmentation=[[5, 5, 9, 9, 7, 7]]), "its mask has no pixel"),
    "a polygon outside": (annotation("detect", segmentation=[[90, 90, 99, 90, 99, 99]]), "its mask has no pixel"),
    "a corner in words": (annotation("detect", segmentation=[[1, 2, 3, 4, 5, "x"]]), "a corner that is no number"),
    "a corner far away": (annotation("detect", segmentation=[[1e300, 2, 3, 4, 5, 6]]), "a corner far outside"),
    "runs of another size": (annotation("detect", segmentation={"size": [3, 3], "counts": [9]}), "its mask is [3, 3]"),
    "too few runs": (annotation("detect", segmentation={**RLE, "counts": [9]}), "do not add up to the image"),
    "a negative run": (annotation("detect", segmentation={**RLE, "counts": [800, -32]}), "cannot be read"),
    "runs of nothing": (annotation("detect", segmentation={**RLE, "counts": [768]}), "its mask has no pixel"),
    "runs that are no text": (annotation("detect", segmentation={**RLE, "counts": 5}), "cannot be read"),
    "letters of no runs": (annotation("detect", segmentation={**RLE, "counts": "\u1234"}), "cannot be read"),
    "runs without an end": (annotation("detect", segmentation={**RLE, "counts": "ooooo" * 30}), "cannot be read"),
    "another sum of runs": (annotation("detect", segmentation={**RLE, "counts": "52203"}), "do not add up"),
    "half a crowd": (annotation("detect", iscrowd="no"), "its iscrowd is 'no', which must be 0 or 1"),
    "an object twice": (append_to("detect", "annotations"), "the same object is listed before"),
}
"""What can be wrong with an object, which is then left out of its image."""


def swap_names(content: Any) -> None:
    first, second = content["categories"]
    first["name"], second["name"] = second["name"], first["name"]


SCENES = {
    "a tiny box": Case("detect", annotation("detect", bbox=[5, 5, 0.3, 0.3])),
    "a box beyond the edge": Case("detect", annotation("detect", bbox=[-4, 20, 10, 1e300])),
    "an area that is none": Case("detect", annotation("detect", area=-5)),
    "a crowd": Case("detect", annotation("detect", iscrowd=1)),
    "an image without objects": Case("detect", edit("detect", lambda content: content["annotations"].pop(0))),
    "the id of another image": Case(
        "detect", append_to("detect", "images", file_name="other.png"), ("another image has its id 101",)
    ),
    "an image twice": Case("detect", append_to("detect", "images", id=500), ("it is listed twice",)),
    "no width of an image": Case(
        "detect", edit("detect", lambda content: content["images"][0].pop("width")), refused="width is missing"
    ),
    "no categories": Case(
        "detect", edit("detect", lambda content: content.update(categories=[])), refused="lists no categories"
    ),
    "an id of two categories": Case(
        "detect", append_to("detect", "categories", name="x"), refused="has two categories with the id 3"
    ),
    "a name of two categories": Case(
        "detect", append_to("detect", "categories", id=9), refused="has two categories named 'square'"
    ),
    "other categories in other parts": Case(
        "detect", edit("detect", swap_names), refused="has another name or kind than in the training file"
    ),
    "no objects": Case(
        "detect", edit("detect", lambda content: content.update(annotations=[])), refused="have no objects"
    ),
    "nothing but crowds": Case(
        "detect",
        edit("detect", lambda content: [entry.update(iscrowd=1) for entry in content["annotations"]]),
        refused="the training images have no objects",
    ),
    "an image in two parts": Case(
        "detect",
        lambda root: [
            edit("detect", lambda content: content.update(annotations=[], images=content["images"][:1]))(root),
            (root / ANNOTATIONS["detect"]).rename(root / "annotations/instances_val2017.json"),
        ],
        refused="instances_train",
    ),
}


def segments(change: Callable[[Any], Any]) -> Damage:
    """A change of the segments of the second image."""
    return edit("panoptic", lambda content: change(content["annotations"][1]["segments_info"]))


PANOPTIC = {
    "no PNG": Case("panoptic", remove(SEGMENTS), ("it has no PNG of segments",), used=11),
    "another size": Case("panoptic", draw(SEGMENTS, "RGB", (5, 5)), ("has 5 x 5 pixels, the image 32 x 24",), used=11),
    "a grey PNG": Case("panoptic", draw(SEGMENTS, "L"), ("the PNG of segments is L; it must be RGB",), used=11),
    "no image": Case("panoptic", write(SEGMENTS, b"x"), ("the PNG of segments cannot be read",), used=11),
    "half a PNG": Case("panoptic", truncate(SEGMENTS), ("the PNG of segments cannot be read",), used=11),
    "an image without segments": Case("panoptic", draw(SEGMENTS, "RGB")),
    "no segment at all": Case(
        "panoptic",
        lambda root: [Image.new("RGB", (32, 24)).save(path) for path in (root / SEGMENTS).parent.glob("*")],
        refused="no pixel of the training masks has a class",
    ),
    "an unknown segment": Case("panoptic", segments(lambda parts: parts.pop()), ("segment 2000 that",), used=11),
    "an unknown category": Case(
        "panoptic", segments(lambda parts: parts[0].update(category_id=99)), ("category of segment 11",), used=11
    ),
    "a segment twice": Case(
        "panoptic",
        segments(lambda parts: parts.append({**parts[0], "category_id": 9})),
        ("names segment 11 twice",),
        used=11,
    ),
    "a segment that is not there": Case("panoptic", segments(lambda parts: parts.append({**parts[0], "id": 77}))),
    "a segment without an id": Case("panoptic", segments(lambda parts: parts[0].pop("id")), refused="id is missing"),
    "a crowd": Case("panoptic", segments(lambda parts: parts[2].update(iscrowd=1))),
    "no annotation": Case(
        "panoptic", edit("panoptic", lambda content: content["annotations"].pop(1)), ("it has no PNG",), used=11
    ),
    "an annotation of no image": Case(
        "panoptic", append_to("panoptic", "annotations", image_id=999), ("its image 999 is not listed",)
    ),
    "two annotations of an image": Case("panoptic", append_to("panoptic", "annotations"), ("image 1 has one before",)),
    "the id of another image": Case("panoptic", append_to("panoptic", "images"), ("another image has its id 1",)),
    "an id of two categories": Case(
        "panoptic", append_to("panoptic", "categories", name="x"), refused="has two categories with the id 9"
    ),
    "other categories in other parts": Case(
        "panoptic",
        edit("panoptic", lambda content: content["categories"][0].update(isthing=1)),
        refused="has another name or kind than in the training file",
    ),
    "no things": Case(
        "panoptic",
        edit("panoptic", lambda content: [entry.update(isthing=0) for entry in content["categories"]]),
        refused="another name or kind",
    ),
    "no categories": Case(
        "panoptic", edit("panoptic", lambda content: content.update(categories=[])), refused="0 categories, 0 of things"
    ),
}


def question(**changes: Any) -> Damage:
    return edit("vqa", lambda content: content["questions"][0].update(changes))


EMPTY = {"answers": [{"answer": " "}], "multiple_choice_answer": "the"}
QUESTIONS = {
    "no answer": Case(
        "vqa", edit("vqa", lambda content: content["annotations"].pop(0)), ("it has no answer",), used=23
    ),
    "an empty answer": Case("vqa", annotation("vqa", **EMPTY), ("its answer is empty",), used=23),
    "an answer of no question": Case(
        "vqa", edit("vqa", lambda content: content["questions"].pop(0)), ("there is no such question",), used=23
    ),
    "two answers": Case("vqa", append_to("vqa", "annotations"), ("question 1 has answers before",)),
    "no human answers": Case("vqa", annotation("vqa", answers=[])),
    "an answer that is null": Case("vqa", annotation("vqa", answers=None), refused="answers is null, expected a list"),
    "an unknown image": Case("vqa", question(image_id=77), ("there is no image 77 in",), used=23),
    "its image is missing": Case("vqa", remove(IMAGES["vqa"]), ("there is no image 1 in",) * 2, used=22),
    "an image in words": Case("vqa", question(image_id="1"), refused='image_id is "1", expected an integer'),
    "no words": Case("vqa", question(question="?!"), ("it has no words",), used=23),
    "words of another script": Case("vqa", question(question="что это?")),
    "a question twice": Case("vqa", append_to("vqa", "questions"), ("another question has its question_id",)),
    "the id of another question": Case(
        "vqa", append_to("vqa", "questions", question="Why?"), ("another question has its question_id",)
    ),
    "two images of a number": Case(
        "vqa", draw("train/images/zebra_1.png", "RGB"), ("shape_000001.png has the number 1 as well",)
    ),
    "one answer alone": Case(
        "vqa",
        edit("vqa", lambda content: [entry.update(multiple_choice_answer="yes") for entry in content["annotations"]]),
        refused="the training questions have 1 answers",
    ),
    "no questions": Case(
        "vqa", edit("vqa", lambda content: content.update(questions=[])), refused="there is no such question"
    ),
    "no folder of images": Case(
        "vqa", lambda root: (root / "train/images").rename(root / "elsewhere"), refused="there is no image 0 in"
    ),
}
FILES = {
    f"{task}: {name}": Case(task, write(file, content), refused=reason)
    for task, file in ANNOTATIONS.items()
    for name, content, reason in (
        ("half a JSON file", b'{"images": [', "is damaged (Expecting value"),
        ("JSON that is no object", b"[]", "holds no JSON object"),
        ("JSON in another encoding", '{"images": "é"}'.encode("latin-1"), "is damaged ('utf-8'"),
    )
}
CASES = {
    **image_cases(),
    **{f"segment, a mask: {name}": case for name, case in MASKS.items()},
    **{f"detect, an object: {name}": Case("detect", damage, (reason,)) for name, (damage, reason) in OBJECTS.items()},
    **{f"detect: {name}": case for name, case in SCENES.items()},
    **{f"panoptic, segments: {name}": case for name, case in PANOPTIC.items()},
    **{f"vqa, a question: {name}": case for name, case in QUESTIONS.items()},
    **FILES,
}


def open_all(task: str, root: Path, log: Path, damage: Damage) -> Any:
    """The batches of a damaged set, of which some were seen."""
    example = EXAMPLES[task]
    command = example.command(task, root)
    command.max_bad = 0.2
    damage(root)
    recipe = Recipe(batch_size=4, augment=AugmentOptions(hflip=example.hflip))
    batches = get_task(task).load_batches(command, recipe, World(), torch.device("cpu"), 32, bad_list=log)
    seen = [*islice(batches.train_batches(), 4), *batches.evaluation("holdout", 4), *batches.evaluation("test", 4)]
    assert len(seen) > 4
    return batches


@pytest.mark.parametrize("name", CASES)
def test_what_is_bad_is_left_out_and_listed_or_refused(name: str, tmp_path: Path) -> None:
    case, root, log = CASES[name], tmp_path / "set", tmp_path / "bad.txt"
    pytest.importorskip(EXAMPLES[case.task].needs)
    root.mkdir()
    if case.refused:
        with pytest.raises(UserError) as refusal:
            open_all(case.task, root, log, case.damage)
        assert case.refused in str(refusal.value)
        assert "\n" not in str(refusal.value)
        return
    batches = open_all(case.task, root, log, case.damage)
    lines = log.read_text().splitlines() if log.exists() else []
    assert len(lines) == len(case.listed)
    assert [part for part, line in zip(case.listed, lines, strict=True) if part not in line.split("\t")[1]] == []
    assert len(batches.files["train"]) == (case.used or (24 if case.task == "vqa" else 12))


def test_every_task_of_files_has_such_cases() -> None:
    assert {case.task for case in CASES.values()} == {*EXAMPLES} - {"classify"}


def test_an_object_without_a_mask_can_be_learned_as_a_box(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    command = EXAMPLES["detect"].command("detect", tmp_path)
    annotation("detect", segmentation=None)(tmp_path)
    recipe = Recipe(batch_size=4)
    command = command.with_task_options(masks=False)
    batches = get_task("detect").load_batches(command, recipe, World(), torch.device("cpu"), 32)
    assert sum(len(scene.instances) for scene in batches.files["train"].scenes) == 12


@pytest.mark.parametrize("seed", range(4))
def test_compressed_runs_are_read_as_pycocotools_reads_them(seed: int) -> None:
    tools = pytest.importorskip("pycocotools.mask")
    from nasformer.tasks.boxes import read_run_lengths, uncompressed

    rng = np.random.default_rng(seed)
    mask = (rng.random((40 + seed, 300)) < (0.5, 0.02, 0.98, 0.0)[seed]).astype(np.uint8)
    counts = tools.encode(np.asfortranarray(mask))["counts"].decode()
    lengths = uncompressed(counts)
    assert lengths is not None
    values = np.concatenate([np.full(length, place % 2) for place, length in enumerate(lengths)])
    assert (mask == values.reshape(mask.T.shape).T).all()
    assert read_run_lengths({"size": list(mask.shape), "counts": counts}, mask.shape)["counts"] == counts.encode()
