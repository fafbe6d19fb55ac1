"""Images with masks in files: layouts, labels, and annotations that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nasformer.data.decode import BadImage
from nasformer.data.files import BadImages
from nasformer.errors import UserError
from nasformer.tasks.masks import CITYSCAPES_CLASSES, FileData, Labels, list_masks, open_masks, read_ids
from nasformer.tasks.options import SegmentOptions
from tasks.shapes import CLASSES, write_pair, write_set


def open_set(root: Path, bad: BadImages | None = None, **options: Any) -> FileData:
    amounts: dict[str, Any] = {"holdout": 0.25, "seed": 0}
    return open_masks(root, SegmentOptions(**options), bad or BadImages(quiet=True), **amounts)


def counts(data: FileData) -> list[int]:
    return [len(part) for part in data.splits.parts()]


def test_splits_of_folders_are_those_of_their_author(tmp_path: Path) -> None:
    data = open_set(write_set(tmp_path, 6, 3, 2))
    assert counts(data) == [6, 3, 2]
    assert data.labels.classes == CLASSES


def test_images_and_masks_may_be_split_below_their_folders_or_not_at_all(tmp_path: Path) -> None:
    for number in range(10):
        part = "train" if number < 8 else "test"
        write_pair(tmp_path / "split" / "images" / part, tmp_path / "split" / "masks" / part, number)
        write_pair(tmp_path / "whole" / "images", tmp_path / "whole" / "masks", number)
    assert counts(open_set(tmp_path / "split")) == [6, 2, 2]
    whole = open_set(tmp_path / "whole")
    assert counts(whole) == [6, 2, 2]
    assert len({path for part in whole.splits.parts() for path in part.images}) == 10
    assert whole.labels.classes == ["0", "1", "2"]  # without names, the ids that occur


def test_pascal_voc(tmp_path: Path) -> None:
    for number in range(6):
        write_pair(tmp_path / "JPEGImages", tmp_path / "SegmentationClass", number)
    for path in (tmp_path / "JPEGImages").glob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"))
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("000\n001\n002\n003\n")
    (lists / "val.txt").write_text("004\n005\n")
    data = open_set(tmp_path)
    assert counts(data) == [3, 1, 2]
    assert data.labels.classes[1] == "aeroplane"
    assert len(data.labels.classes) == 21


def test_ade20k_ignores_id_0_and_tests_on_validation(tmp_path: Path) -> None:
    for number in range(6):
        part = "training" if number < 4 else "validation"
        write_pair(tmp_path / "images" / part, tmp_path / "annotations" / part, number)
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tName\n1\t0.1\twall, side\n2\t0.2\tbuilding\n")
    data = open_set(tmp_path)
    assert counts(data) == [3, 1, 2]
    assert data.labels.classes == ["wall", "building"]
    assert set(data.labels.read(data.splits.train.masks[0]).unique().tolist()) <= {0, 1, 255}


def test_cityscapes_learns_19_of_its_ids(tmp_path: Path) -> None:
    for part, number in (("train", 7), ("train", 8), ("val", 9)):
        images, masks = (tmp_path / kind / part / "aachen" for kind in ("leftImg8bit", "gtFine"))
        images.mkdir(parents=True, exist_ok=True)
        masks.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(images / f"a_{number}_leftImg8bit.png")
        Image.fromarray(np.full((4, 6), number, np.uint8)).save(masks / f"a_{number}_gtFine_labelIds.png")
    data = open_set(tmp_path)
    assert data.labels.classes == list(CITYSCAPES_CLASSES.values())
    assert len(data.splits.test) == 1
    assert data.labels.read(data.splits.test.masks[0]).unique().tolist() == [255]  # id 9 (parking) is not learned


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda image, mask: mask.unlink(), "it has no mask"),
        (lambda image, mask: Image.new("L", (9, 7)).save(mask), "the mask has 9 x 7 pixels, the image 32 x 24"),
        (lambda image, mask: Image.new("L", (32, 24), 77).save(mask), "the mask has ids without a class: 77"),
        (lambda image, mask: Image.new("RGB", (32, 24)).save(mask), "the mask is RGB; give one channel"),
        (lambda image, mask: mask.write_bytes(b"no image"), "the mask cannot be read"),
        (lambda image, mask: image.write_bytes(b"no image"), "cannot identify image file"),
    ],
)
def test_a_bad_annotation_is_left_out_counted_and_listed(tmp_path: Path, damage: Any, reason: str) -> None:
    root = write_set(tmp_path / "set", 6, 3, 2)
    damage(root / "train/images/001.png", root / "train/masks/001.png")
    bad = BadImages(log=tmp_path / "bad.txt", quiet=True)
    assert counts(open_set(root, bad)) == [5, 3, 2]
    (line,) = (tmp_path / "bad.txt").read_text().splitlines()
    assert line.startswith(str(root / "train/images/001.png"))
    assert reason in line


def test_too_many_bad_annotations_are_refused(tmp_path: Path) -> None:
    root = write_set(tmp_path, 6, 3, 2)
    for number in (1, 2):
        (root / f"train/masks/00{number}.png").unlink()
    with pytest.raises(UserError, match=r"2 of 11 images cannot be read.*it has no mask.*--max-bad"):
        open_set(root)


def test_names_and_ignored_ids_can_be_given(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set", 4, 2, 2)
    names = tmp_path / "names.json"
    names.write_text('{"0": "ground", "2": "round", "1": "other"}')
    data = open_set(root, labels=str(names), ignore="1,255")
    assert data.labels.classes == ["ground", "round"]
    mask = data.labels.read(str(root / "train/masks/001.png"))  # a square, which is ignored
    assert mask.dtype == torch.uint8
    assert mask.unique().tolist() == [0, 255]
    for text in ("[1", "[1]", '{"0": 7}', '{"sky": "0"}', '{"0":' * 10_000):
        names.write_text(text)
        with pytest.raises(UserError, match=r"names\.json"):
            open_set(root, labels=str(names))


def test_ids_of_16_bits_and_palettes_are_read_as_they_are(tmp_path: Path) -> None:
    ids = np.array([[0, 300], [1, 65535]], np.uint16)
    Image.fromarray(ids).save(tmp_path / "wide.png")
    assert read_ids(str(tmp_path / "wide.png")).tolist() == ids.tolist()
    palette = Image.fromarray(np.array([[3, 4]], np.uint8)).convert("P")
    palette.putdata([3, 4])
    palette.save(tmp_path / "palette.png")
    assert read_ids(str(tmp_path / "palette.png")).tolist() == [[3, 4]]
    with pytest.raises(BadImage, match="ids without a class: 300"):
        Labels.of({0: "a", 1: "b"}, [65535]).read(str(tmp_path / "wide.png"))


def test_what_is_no_such_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no images with masks.*expected train/images"):
        list_masks(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        list_masks(tmp_path / "nothing")
    with pytest.raises(UserError, match="1 classes of pixels"):
        Labels.of({0: "a"}, [255])
