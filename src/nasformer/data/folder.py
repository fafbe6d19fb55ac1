"""Image folders, one folder a class: `<class>/*.jpg`, or `train/<class>/*.jpg` with `val/` or `test/` beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from nasformer.data.files import Files, Listing
from nasformer.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
VAL = ("val", "valid", "validation")
EXPECTED = "expected <class>/*.jpg, or train/<class>/*.jpg with val/ or test/ beside it"


def list_folder(root: str | Path) -> Listing:
    """Find the files of each split. Classes are the folders in `train/`, or in root, in alphabetical order.

    The test set is `test/`, or else `val/`. With both, `val/` is the hold-out.
    """
    root = Path(root)
    split = (root / "train").is_dir()
    classes, notes = _filled_classes(root / "train" if split else root)
    if not classes:
        raise UserError(f"{root} has no class folders{' in train/' if split else ''} with images; {EXPECTED}")
    train = list_classes(root / "train" if split else root, classes)
    if not split:
        return Listing(str(root), train, classes, notes=notes)
    val = next((_list_part(root / name, classes) for name in VAL if (root / name).is_dir()), None)
    test = _list_part(root / "test", classes) if (root / "test").is_dir() else None
    if not test or not len(test):
        val, test = None, val
    return Listing(str(root), train, classes, val, test, notes)


def list_classes(folder: Path, classes: list[str]) -> Files:
    """The images in the folder of each class, and in folders below that."""
    return Files.of((path, label) for label, name in enumerate(classes) for path in _image_files(folder / name))


def class_names(folder: Path) -> list[str]:
    """The folders in a folder, in order, without hidden ones."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        _unreadable(error)


def _filled_classes(folder: Path) -> tuple[list[str], list[str]]:
    """Classes with images, and a note on folders without."""
    names = class_names(folder)
    empty = [name for name in names if not any(True for _ in _walk(folder / name))]
    shown = ", ".join(empty[:3]) + (" ..." if len(empty) > 3 else "")
    notes = [f"left out {len(empty)} of {len(names)} class folders, which hold no images: {shown}"] if empty else []
    return [name for name in names if name not in set(empty)], notes


def _list_part(folder: Path, classes: list[str]) -> Files:
    """The files of a split; none where there are no class folders (as in ImageNet's own `test/`)."""
    for name in class_names(folder):
        if name not in classes and any(True for _ in _walk(folder / name)):
            raise UserError(f"{folder} has a class {name!r} that train/ lacks; give every split the same classes")
    return list_classes(folder, classes)


def _image_files(folder: Path) -> list[str]:
    return sorted(_walk(folder)) if folder.is_dir() else []


def _walk(folder: Path) -> Iterator[str]:
    for base, _, names in os.walk(folder, onerror=_unreadable):
        yield from (os.path.join(base, name) for name in names if name.lower().endswith(EXTENSIONS))


def _unreadable(error: OSError) -> NoReturn:
    """A folder that cannot be opened must not look like an empty one."""
    raise UserError(f"cannot read the folder {error.filename} ({error.strerror}); check its permissions") from error
