"""A tiny set of images with objects in COCO's format: the squares and discs of `shapes.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.shapes import SIZE, draw

CATEGORIES = [{"id": 7, "name": "disc"}, {"id": 3, "name": "square"}]
"""Not in order, and not from 1 on, as in files that people have."""


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Uncompressed run lengths, column by column, zeros first."""
    flat = mask.T.flatten()
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *changes, len(flat)]).tolist()
    return {"size": list(mask.shape), "counts": counts if not flat[0] else [0, *counts]}


def annotation(number: int, identity: int) -> dict[str, Any]:
    """The object of an image: a square as a polygon, a disc by run lengths."""
    ids = draw(number)[1]
    mask = ((ids == 1) | (ids == 2)).astype(np.uint8)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    left, top, right, bottom = (int(x) for x in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    square = bool((ids == 1).any())
    polygon = [[left, top, right, top, right, bottom, left, bottom]]
    return {
        "id": identity,
        "image_id": 100 + number,
        "category_id": 3 if square else 7,
        "bbox": [left, top, right - left, bottom - top],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": polygon if square else run_lengths(mask),
    }


def write_objects(root: Path, train: int = 12, val: int = 4, test: int = 4) -> Path:
    """ROOT/annotations/instances_{train,val,test}2017.json and ROOT/{train,val,test}2017/*.png."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    first = 0
    for split, count in {"train": train, "val": val, "test": test}.items():
        numbers = range(first, first + count)
        first += count
        folder = root / f"{split}2017"
        folder.mkdir(exist_ok=True)
        for number in numbers:
            Image.fromarray(draw(number)[0]).save(folder / f"{number:03d}.png")
        sizes = {"height": SIZE[0], "width": SIZE[1]}
        images = [{"id": 100 + number, "file_name": f"{number:03d}.png", **sizes} for number in numbers]
        content = {"images": images, "categories": CATEGORIES}
        content["annotations"] = [annotation(number, 1 + place) for place, number in enumerate(numbers)]
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root
