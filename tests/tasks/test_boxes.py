"""Images with objects as users have them: COCO's JSON, Roboflow's, PNG masks, and what is wrong in them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nasformer.data.files import BadImages
from nasformer.errors import UserError
from nasformer.tasks.boxes import find_coco, open_scenes
from nasformer.tasks.masks import FileData
from nasformer.tasks.options import DetectOptions
from tasks.objects import run_lengths, write_objects
from tasks.shapes import SIZE, draw, write_pair, write_set

pytest.importorskip("pycocotools")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_objects(tmp_path / "set", 6, 2, 2)


def opened(root: Path, bad: BadImages | None = None, **options: Any) -> FileData:
    bad = bad or BadImages(1.0, quiet=True)
    return open_scenes(root, DetectOptions(**options), bad, holdout=0.25, seed=0)


def change(root: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """The training part with something edited in its JSON."""
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return root


def test_polygons_and_run_lengths_are_the_same_masks(root: Path) -> None:
    data = opened(root)
    assert data.splits.classes == ["square", "disc"]  # in the order of their ids
    assert [len(part) for part in data.splits.parts()] == [6, 2, 2]
    for number, scene in enumerate(data.splits.train.scenes):
        ids, target = draw(number)[1], scene.target()
        wanted = torch.from_numpy((ids == 1) | (ids == 2))
        assert target["labels"].tolist() == [1 if number % 2 else 2]
        assert torch.equal(target["masks"][0].bool(), wanted)
        rows, columns = wanted.nonzero().T
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert target["boxes"].tolist() == [[int(value) for value in box]]


def test_without_a_test_part_val_is_the_test_part(root: Path) -> None:
    (root / "annotations" / "instances_test2017.json").unlink()
    data = opened(root)
    assert [len(part) for part in data.splits.parts()] == [4, 2, 2]  # a quarter of train is held out
    assert {Path(scene.image).parent.name for scene in data.splits.test.scenes} == {"val2017"}


def test_other_places_of_the_json(root: Path, tmp_path: Path) -> None:
    for split, name in {"train": "train", "val": "valid", "test": "test"}.items():
        (root / f"{split}2017").rename(root / name)
        (root / "annotations" / f"instances_{split}2017.json").rename(root / name / "_annotations.coco.json")
    assert set(find_coco(root)) == {"train", "val", "test"}
    assert len(opened(root).splits) == 10


def test_png_masks_have_a_number_for_each_object(tmp_path: Path) -> None:
    write_set(tmp_path, 3, 2, 2)
    (tmp_path / "classes.txt").unlink()
    ids = np.zeros(SIZE, np.uint8)
    ids[2:6, 3:9], ids[10:20, 10:30] = 4, 9
    Image.fromarray(ids).save(tmp_path / "train" / "masks" / "000.png")
    data = opened(tmp_path)
    scene = data.splits.train.scenes[0]
    assert data.splits.classes == ["object"]
    assert [instance.box for instance in scene.instances] == [(3, 2, 9, 6), (10, 10, 30, 20)]
    assert [instance.area for instance in scene.instances] == [24, 200]
    assert scene.target()["masks"].sum((1, 2)).tolist() == [24, 200]


def test_png_masks_with_names_of_several_ids_are_not_taken_for_objects(tmp_path: Path) -> None:
    write_set(tmp_path, 3, 2, 2)
    with pytest.raises(UserError, match="names 3 classes, so the masks number classes: use --task segment"):
        opened(tmp_path)
    (tmp_path / "classes.txt").write_text("square\n")
    assert opened(tmp_path).splits.classes == ["square"]


def write_numbered(root: Path, places: list[tuple[int, int, int]]) -> None:
    """Pairs without a test part, whose masks have a square of five pixels at each place: value, row, column."""
    for number in range(6):
        write_pair(root / "images", root / "masks", number)
        ids = np.zeros(SIZE, np.uint8)
        for value, row, column in places:
            ids[row : row + 5, column : column + 5] = value
        Image.fromarray(ids).save(root / "masks" / f"{number:03d}.png")


def test_masks_whose_values_lie_in_several_pieces_are_not_taken_for_objects(tmp_path: Path) -> None:
    write_numbered(tmp_path, [(1, 1, 1), (1, 1, 20), (4, 12, 1), (4, 12, 20), (7, 12, 12)])
    with pytest.raises(UserError, match=r"12 of 18 values of masks lie in several pieces: .* use --task segment"):
        opened(tmp_path)
    (tmp_path / "classes.txt").write_text("tree\n")
    assert opened(tmp_path).splits.classes == ["tree"]


def test_what_was_understood_of_masks_is_told_even_of_hidden_objects(tmp_path: Path, capsys: Any) -> None:
    """One object of three is seen on both sides of something, another has a speck far away."""
    write_numbered(tmp_path, [(1, 1, 1), (1, 1, 20), (5, 12, 1), (5, 18, 20), (9, 12, 12)])
    for path in (tmp_path / "masks").glob("*.png"):
        ids = np.array(Image.open(path))
        ids[18:, 20:], ids[20, 20] = 0, 5
        Image.fromarray(ids).save(path)
    assert opened(tmp_path, BadImages(1.0)).splits.classes == ["object"]
    assert "each value of a mask but 0 is taken for one object: 18 in 6 images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bbox": [5, 5, 0, 10]}, "empty or outside"),
        ({"bbox": [400, 5, 10, 10]}, "empty or outside"),
        ({"bbox": [5, 5, float("nan"), 10]}, "not finite"),
        ({"bbox": [5, 5, 10]}, "not left, top, width and height"),
        ({"bbox": None}, "not left, top, width and height"),
        ({"category_id": 99}, "category 99 is not listed"),
        ({"image_id": 5}, "of the image 5, which is not listed"),
        ({"segmentation": []}, "has no mask"),
        ({"segmentation": [[1, 2, 3, 4]]}, "no three corners"),
        ({"segmentation": [[1, 2, 3, 4, 5, "x"]]}, "no number"),
        ({"segmentation": {"size": [3, 3], "counts": [9]}}, r"its mask is \[3, 3\]"),
        ({"segmentation": {"size": list(SIZE), "counts": [9]}}, "do not add up"),
    ],
)
def test_an_object_that_cannot_be_used_is_listed(root: Path, changes: Any, reason: str, tmp_path: Path) -> None:
    change(root, lambda content: content["annotations"][0].update(changes))
    log = tmp_path / "bad.txt"
    data = opened(root, BadImages(1.0, log, quiet=True))
    assert len(data.splits.train) == 6
    assert data.splits.train.scenes[0].instances == ()
    (line,) = log.read_text().splitlines()
    assert "annotation 1\t" in line
    assert re.search(reason, line)


def test_boxes_alone_need_no_masks(root: Path) -> None:
    change(root, lambda content: [one.pop("segmentation") for one in content["annotations"]])
    scene = opened(root, masks=False).splits.train.scenes[0]
    assert scene.target().keys() == {"boxes", "labels"}
    with pytest.raises(UserError, match=r"6 of 6 objects cannot be used.*--detect.masks false"):
        opened(root, BadImages(0.1, quiet=True))


def test_boxes_are_cut_at_the_edge_of_the_image(root: Path) -> None:
    change(root, lambda content: content["annotations"][0].update(bbox=[-4, 20, 10, 100]))
    assert opened(root).splits.train.scenes[0].instances[0].box == (0, 20, 6, 24)


def test_crowds_are_not_learned(root: Path) -> None:
    everything = run_lengths(np.ones(SIZE, np.uint8))
    change(root, lambda content: content["annotations"][0].update(iscrowd=1, segmentation=everything))
    scene = opened(root).splits.train.scenes[0]
    assert [instance.crowd for instance in scene.instances] == [True]
    assert len(scene.target()["boxes"]) == 0
    assert scene.target()["masks"].shape == (0, *SIZE)


def test_images_that_cannot_be_used_are_left_out(root: Path, tmp_path: Path) -> None:
    (root / "train2017" / "000.png").unlink()
    (root / "train2017" / "001.png").write_bytes(b"no image")
    change(root, lambda content: content["images"][2].update(width=40))
    log = tmp_path / "bad.txt"
    assert len(opened(root, BadImages(1.0, log, quiet=True)).splits.train) == 3
    assert "its annotation is for 40 x 24 pixels, it has 32 x 24" in log.read_text()
    with pytest.raises(UserError, match="3 of 10 images cannot be read"):
        opened(root, BadImages(0.1, quiet=True))


def test_what_is_no_set_is_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        opened(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no images with objects; expected annotations/instances_train2017.json"):
        opened(tmp_path)
    with pytest.raises(UserError, match="lists no categories"):
        opened(change(root, lambda content: content.update(categories=[])))
    with pytest.raises(UserError, match="images is missing"):
        opened(change(root, lambda content: content.pop("images")))


def test_without_pycocotools_it_is_said_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(UserError, match=r"pip install 'nasformer\[dense\]'"):
        opened(root)


def test_a_set_without_objects_is_refused(root: Path) -> None:
    with pytest.raises(UserError, match="the training images have no objects"):
        opened(change(root, lambda content: content.update(annotations=[])))
