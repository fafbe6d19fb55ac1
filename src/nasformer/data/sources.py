"""From a name or a path to `Data`. A new source is one loader and, if it has a name, one line in SOURCES."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nasformer.data.bad import MAX_BAD, BadImages
from nasformer.data.files import Listing, check_classes
from nasformer.data.folder import list_folder
from nasformer.data.image_files import USUAL_SIZE, ImageFiles, settle
from nasformer.data.images import Data, ImageSet, Parts, channel_stats, check_filled, resize
from nasformer.data.named import NAMED, is_cub, list_cub
from nasformer.data.npz import read_npz
from nasformer.data.rng import Stream, generator
from nasformer.data.split import stratified
from nasformer.errors import UserError

Source = Parts | Listing


@dataclass(frozen=True)
class Request:
    """Which set the caller asked for, and where sets with a name are."""

    source: str
    root: Path
    download: bool


def load_data(source: str, **options: Any) -> Data:
    """Load a dataset into memory; the options are those of `open_data`.

    >>> data = load_data("digits")
    >>> len(data.train), len(data.holdout), len(data.test), data.num_classes, data.img_size
    (1293, 144, 360, 10, 8)
    """
    found = open_data(source, **options)
    return found.decode() if isinstance(found, ImageFiles) else found


def open_data(
    source: str,
    *,
    holdout: float | int = 0.1,
    seed: int = 0,
    img_size: int | None = None,
    in_chans: int | None = None,
    usual_size: int = USUAL_SIZE,
    root: str | Path = "data",
    download: bool = False,
    max_bad: float = MAX_BAD,
    bad_list: Path | None = None,
    quiet: bool = False,
) -> Data | ImageFiles:
    """Find a dataset: in memory, or files that can be decoded into memory or streamed.

    Args:
        source: a name in SOURCES, an .npz file of plain arrays, or an image folder.
        holdout: how much of train to set aside for choosing: a fraction, or (int) images per class; or 0.
        seed: decides which images are set aside; the test set does not depend on it.
        img_size: resize to this; None keeps the size of the images.
        in_chans: read image files with 1, 3 or 4 channels; None: 3, or 1 where all are grey.
        usual_size: the size for image files that have not one size of their own.
        root: the folder in which sets with a name are, each in a folder of its own.
        download: fetch a set with a name that is not there.
        max_bad: the share of image files that may be unreadable; they are left out.
        bad_list: a file to list them in.
        quiet: say nothing of what was decided, and show no progress.
    """
    if img_size is not None and img_size < 1:
        raise UserError(f"img_size {img_size} is not a size; give a positive number of pixels")
    source = os.path.expanduser(source)
    bad = BadImages(max_bad, bad_list, quiet)
    found = _find_loader(source)(Request(source, Path(root).expanduser(), download))
    if isinstance(found, Listing):
        return settle(found, holdout, seed, img_size, in_chans, usual_size, bad)
    check_classes(found.classes, source)
    check_filled(found.train, f"{source}: train")
    train, held = _hold_out(found, holdout, seed)
    train, held, test = (_sized(part, img_size) for part in (train, held, found.test))
    return Data(Path(source).stem, train, held, test, found.classes, *channel_stats(train.images))


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


def load_folder(request: Request) -> Listing:
    """A folder of class folders (see `list_folder`), or CUB-200-2011 in its own layout."""
    folder = Path(request.source)
    inner = folder / "CUB_200_2011"
    return list_cub(inner if is_cub(inner) else folder) if is_cub(inner) or is_cub(folder) else list_folder(folder)


def load_named(request: Request) -> Source:
    """A set by its name, from the data root (see `NAMED`)."""
    return NAMED[request.source].open(request.source, request.root, request.download)


SOURCES: dict[str, Callable[[Request], Source]] = {"digits": load_digits} | dict.fromkeys(NAMED, load_named)


def _find_loader(source: str) -> Callable[[Request], Source]:
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
    if parts.holdout is not None and holdout:
        return parts.train, parts.holdout
    train = parts.train + parts.holdout if parts.holdout else parts.train  # with holdout 0 all is trained on
    rest, taken = stratified(train.labels, holdout, generator(seed, Stream.SPLIT), parts.classes)
    return train.subset(rest), train.subset(taken)


def _sized(images: ImageSet, img_size: int | None) -> ImageSet:
    return ImageSet(resize(images.images, img_size), images.labels) if img_size else images
