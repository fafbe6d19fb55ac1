"""From a name or a path to `Data`. A new source is one loader and, if it has a name, one line in SOURCES."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from nasformer.data.folder import decode, list_folder
from nasformer.data.images import Data, ImageSet, Parts, channel_stats, check_filled, resize
from nasformer.data.npz import read_npz
from nasformer.data.rng import Stream, generator
from nasformer.data.split import stratified
from nasformer.errors import UserError


@dataclass(frozen=True)
class Request:
    """What the caller of `load_data` asked for."""

    source: str
    holdout: float | int
    seed: int
    img_size: int | None


def load_data(source: str, *, holdout: float | int = 0.1, seed: int = 0, img_size: int | None = None) -> Data:
    """Load a dataset into memory.

    Args:
        source: a name in SOURCES, an .npz file of plain arrays, or an image folder.
        holdout: how much of train to set aside for choosing: a fraction, or (int) images per class; or 0.
        seed: decides which images are set aside; the test set does not depend on it.
        img_size: resize to this; None keeps the size of the images.

    >>> data = load_data("digits")
    >>> len(data.train), len(data.holdout), len(data.test), data.num_classes, data.img_size
    (1293, 144, 360, 10, 8)
    """
    if img_size is not None and img_size < 1:
        raise UserError(f"img_size {img_size} is not a size; give a positive number of pixels")
    source = os.path.expanduser(source)
    parts = _find_loader(source)(Request(source, holdout, seed, img_size))
    check_filled(parts.train, f"{source}: train")
    train, held = _hold_out(parts, holdout, seed)
    train, held, test = (_sized(part, img_size) for part in (train, held, parts.test))
    return Data(Path(source).stem, train, held, test, parts.classes, *channel_stats(train.images))


def load_digits(request: Request) -> Parts:
    """Scikit-learn's 1,797 handwritten digits, 8 x 8 in grey: 1,437 to train and 360 to test."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    everything = ImageSet(images, torch.from_numpy(digits.target).long())
    rest, taken = stratified(everything.labels, 0.2, generator(0, Stream.SPLIT))
    return Parts(everything.subset(rest), everything.subset(taken), [str(digit) for digit in range(10)])


def load_npz(request: Request) -> Parts:
    """A file of plain arrays (see `read_npz`)."""
    return read_npz(request.source)


def load_folder(request: Request) -> Parts:
    """A folder train/<class>/*.jpg, with val/ or test/ beside it (see `list_folder`)."""
    files = list_folder(request.source, request.holdout, request.seed)
    train = decode(files.train, request.img_size, f"{request.source}: train")
    test = decode(files.test, request.img_size, f"{request.source}: test")
    empty = not len(files.holdout)
    holdout = None if empty else decode(files.holdout, request.img_size, f"{request.source}: holdout")
    nothing = train.subset(torch.zeros(0, dtype=torch.int64))
    return Parts(train, test, files.classes, holdout or nothing)


SOURCES: dict[str, Callable[[Request], Parts]] = {"digits": load_digits}


def _find_loader(source: str) -> Callable[[Request], Parts]:
    path = Path(source)
    if source in SOURCES:
        return SOURCES[source]
    if path.is_dir():
        return load_folder
    if path.is_file() and path.suffix == ".npz":
        return load_npz
    if path.is_file():
        raise UserError(f"{source} is neither an .npz file nor a folder; convert it to one of them")
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"no file or folder {source}; check the path")
    close = difflib.get_close_matches(source, SOURCES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "give one of these, an .npz file or an image folder"
    raise UserError(f"unknown dataset {source!r}, known: {', '.join(sorted(SOURCES))}; {hint}")


def _hold_out(parts: Parts, holdout: float | int, seed: int) -> tuple[ImageSet, ImageSet]:
    """(train, holdout)"""
    if parts.holdout is not None:
        return parts.train, parts.holdout
    rest, taken = stratified(parts.train.labels, holdout, generator(seed, Stream.SPLIT), parts.classes)
    return parts.train.subset(rest), parts.train.subset(taken)


def _sized(images: ImageSet, img_size: int | None) -> ImageSet:
    return ImageSet(resize(images.images, img_size), images.labels) if img_size else images
