"""Image folders, `train/<class>/*.jpg` with `val/` or `test/`: listing, reading, decoding into memory."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nasformer.data.images import ImageSet
from nasformer.data.rng import Stream, generator
from nasformer.data.split import stratified
from nasformer.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
IN_MEMORY_LIMIT = 16 * 2**30
BAD_LIMIT = 0.01
TEST_FRACTION = 0.2


@dataclass
class Files:
    """Image files and their labels. Paths are one array, which worker processes share, not many strings."""

    paths: np.ndarray
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        return os.fsdecode(bytes(self.paths[index]))

    def subset(self, indices: Tensor) -> Files:
        return Files(self.paths[indices.numpy()], self.labels[indices])


@dataclass
class FolderSplits:
    train: Files
    holdout: Files
    test: Files
    classes: list[str]


def list_folder(root: str | Path, holdout: float | int, seed: int) -> FolderSplits:
    """Find the files of each split. Classes are the folders in `train/`, in alphabetical order.

    The test set is `test/`, or else `val/`, or else a fifth of `train/` that is the same for every seed. The
    hold-out is `val/` where `test/` exists as well, and is otherwise taken out of train: `holdout` images per
    class (int) or that fraction of each (float).
    """
    root = Path(root)
    classes = _class_names(root / "train")
    if not classes:
        raise UserError(f"{root} has no class folders in train/; expected train/<class>/*.jpg")
    train = _list_split(root / "train", classes)
    val, test = (_list_split(root / part, classes) for part in ("val", "test"))
    if not len(test):
        val, test = Files(val.paths[:0], val.labels[:0]), val
    if not len(test):
        rest, taken = stratified(train.labels, TEST_FRACTION, generator(0, Stream.SPLIT), classes)
        train, test = train.subset(rest), train.subset(taken)
    if not len(val):
        rest, taken = stratified(train.labels, holdout, generator(seed, Stream.SPLIT), classes)
        train, val = train.subset(rest), train.subset(taken)
    return FolderSplits(train, val, test, classes)


def read_image(path: str) -> Image | None:
    """The image in RGB, or None if the file cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except Exception:  # Pillow's decoders raise a dozen kinds of exception on broken files
        return None


def decode(files: Files, img_size: int | None, what: str) -> ImageSet:
    """Read files at `img_size` (None: as they are, all of one size), leaving out a rare broken one."""
    size = img_size or _first_size(files, what)
    if len(files) * 3 * size * size > IN_MEMORY_LIMIT:
        raise UserError(f"{what}: {len(files)} images of {size} px do not fit in memory; use a smaller img_size")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        arrays = list(pool.map(lambda i: _decode_one(files.path(i), size, img_size is not None), range(len(files))))
    good = [i for i, array in enumerate(arrays) if array is not None]
    _report_bad(files, set(range(len(files))) - set(good), what)
    stacked = np.stack([array for array in arrays if array is not None])
    return ImageSet(torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous(), files.labels[good])


def _class_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def _list_split(folder: Path, classes: list[str]) -> Files:
    """The files of a split; none where there are no class folders (as in ImageNet's own `test/`)."""
    paths: list[bytes] = []
    labels: list[int] = []
    for name in _class_names(folder):
        if name not in classes:
            raise UserError(f"{folder} has a class {name!r} that train/ lacks; give every split the same classes")
        found = _image_files(folder / name)
        if not found and folder.name == "train":
            raise UserError(f"{folder / name} holds no images ({' '.join(EXTENSIONS)}); add some or remove the folder")
        paths += found
        labels += [classes.index(name)] * len(found)
    return Files(np.array(paths, dtype=np.bytes_), torch.tensor(labels, dtype=torch.int64))


def _image_files(folder: Path) -> list[bytes]:
    walk = ((base, name) for base, _, names in os.walk(folder) for name in names)
    return sorted(os.fsencode(os.path.join(base, n)) for base, n in walk if n.lower().endswith(EXTENSIONS))


def _first_size(files: Files, what: str) -> int:
    first = next((image for i in range(len(files)) if (image := read_image(files.path(i)))), None)
    if first is None:
        raise UserError(f"{what}: none of the {len(files)} images can be read; check the files")
    if first.width != first.height:
        raise UserError(f"{what}: images are {first.height}x{first.width}, not square; give img_size to crop them")
    return first.width


def _decode_one(path: str, size: int, may_resize: bool) -> np.ndarray | None:
    image = read_image(path)
    if image is None:
        return None
    if image.size != (size, size):
        if not may_resize:
            raise UserError(f"{path} is {image.height}x{image.width}, others are {size}x{size}; give img_size")
        image = _resize_and_crop(image, size)
    return np.asarray(image)


def _resize_and_crop(image: Image, size: int) -> Image:
    """The usual evaluation view: short side to 256/224 of the size, then the centre."""
    from PIL.Image import Resampling

    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Resampling.BICUBIC).crop((left, top, left + size, top + size))


def _report_bad(files: Files, bad: set[int], what: str) -> None:
    if not bad:
        return
    found = f"{what}: {len(bad)} of {len(files)} images cannot be read (first: {files.path(min(bad))})"
    if len(bad) > BAD_LIMIT * len(files):
        raise UserError(f"{found}; more than {BAD_LIMIT:.0%} is too many, repair or remove them")
    warnings.warn(f"{found}; left out", stacklevel=3)
