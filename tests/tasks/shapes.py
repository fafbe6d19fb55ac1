"""Tiny sets of images with masks: bright squares and dark discs on a grey ground, each a class of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ["ground", "square", "disc"]
SIZE = (24, 32)  # rows and columns


def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
    """An image and the ids of its mask; a frame of one pixel is ignored."""
    rng = np.random.default_rng(number)
    rows, columns = np.indices(SIZE)
    row, column = rng.integers(8, 16), rng.integers(8, 24)
    square = (abs(rows - row) < 5) & (abs(columns - column) < 5)
    disc = (rows - row) ** 2 + (columns - column) ** 2 < 30
    mask = np.where(square, 1, 0) if number % 2 else np.where(disc, 2, 0)
    colours = np.array([[120, 120, 120], [250, 60, 60], [20, 30, 120]])
    image = (colours[mask] + rng.normal(0, 10, (*SIZE, 3))).clip(0, 255).astype(np.uint8)
    mask[[0, -1]] = 255
    return image, mask.astype(np.uint8)


def write_pair(images: Path, masks: Path, number: int) -> None:
    images.mkdir(parents=True, exist_ok=True)
    masks.mkdir(parents=True, exist_ok=True)
    image, mask = draw(number)
    Image.fromarray(image).save(images / f"{number:03d}.png")
    Image.fromarray(mask).save(masks / f"{number:03d}.png")


def write_set(root: Path, train: int = 12, val: int = 4, test: int = 4) -> Path:
    """ROOT/{train,val,test}/{images,masks} and ROOT/classes.txt."""
    number = 0
    for split, count in {"train": train, "val": val, "test": test}.items():
        for _ in range(count):
            write_pair(root / split / "images", root / split / "masks", number)
            number += 1
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


def draw_panoptic(number: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """An image with two things on a ground that is dark below, its ids of segments, and their descriptions."""
    rng = np.random.default_rng(number)
    rows, columns = np.indices(SIZE)
    ids, kinds = np.where(rows < 12, 11, 12), {11: 7, 12: 9}
    image = np.where(rows < 12, 130, 90)[..., None] * np.ones(3)
    for place, column in enumerate((7, 24)):
        row, kind = rng.integers(7, 17), int(rng.integers(2))
        square = (abs(rows - row) < 5) & (abs(columns - column) < 5)
        disc = (rows - row) ** 2 + (columns - column) ** 2 < 30
        inside, number_of_thing = (disc if kind else square), 1000 * (place + 1)
        ids[inside], kinds[number_of_thing] = number_of_thing, 3 if kind else 2
        image[inside] = (20, 30, 220) if kind else (250, 60, 60)
    ids[0] = 0
    segments = [{"id": key, "category_id": kind, "iscrowd": 0} for key, kind in kinds.items()]
    return (image + rng.normal(0, 8, (*SIZE, 3))).clip(0, 255).astype(np.uint8), ids, segments


CATEGORIES = [
    {"id": 7, "name": "wall", "isthing": 0},
    {"id": 9, "name": "floor", "isthing": 0},
    {"id": 2, "name": "square", "isthing": 1},
    {"id": 3, "name": "disc", "isthing": 1},
]


def save_ids(ids: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.stack([ids % 256, ids // 256 % 256, ids // 65536], 2).astype(np.uint8)).save(path)


def write_panoptic(root: Path, **counts: int) -> Path:
    """COCO's layout: ROOT/annotations/panoptic_{train,val,test}.json with PNGs, images in ROOT/{train,val,test}."""
    number = 0
    for split, count in (counts or {"train": 12, "val": 4, "test": 4}).items():
        images, annotations = [], []
        (root / split).mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            image, ids, segments = draw_panoptic(number)
            name = f"{number:03d}.png"
            Image.fromarray(image).save(root / split / name)
            save_ids(ids, root / "annotations" / f"panoptic_{split}" / name)
            images.append({"id": number, "file_name": name})
            annotations.append({"image_id": number, "file_name": name, "segments_info": segments})
            number += 1
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"panoptic_{split}.json").write_text(json.dumps(content))
    return root


def write_questions(root: Path, **counts: int) -> Path:
    """Two questions about each image: ROOT/{train,val,test}/questions.json with images/NUMBER.png."""
    number = 0
    for split, count in (counts or {"train": 12, "val": 4, "test": 4}).items():
        questions: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        (root / split / "images").mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            Image.fromarray(draw(number)[0]).save(root / split / "images" / f"shape_{number:06d}.png")
            shape, other = ("square", "disc") if number % 2 else ("disc", "square")
            for text, answer in (("What shape is there?", shape), (f"Is there a {other}?", "no")):
                key = len(questions)
                questions.append({"question_id": key, "image_id": number, "question": text})
                given = {"answers": [{"answer": answer}], "multiple_choice_answer": answer}
                annotations.append({"question_id": key, "image_id": number, **given})
            number += 1
        content = {"questions": questions, "annotations": annotations}
        (root / split / "questions.json").write_text(json.dumps(content))
    return root
