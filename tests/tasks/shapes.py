"""A tiny set of images with masks: a bright square or a dark disc on a grey ground, each a class of its own."""

from __future__ import annotations

from pathlib import Path

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
