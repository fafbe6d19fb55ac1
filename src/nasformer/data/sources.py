"""From a name or a path to data: .npz files, image folders, and sets by name in their official layouts.

A new source is one loader and, if it has a name, one line in SOURCES.
"""

from __future__ import annotations

import difflib
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import CROP_PCT, GREY_MODES, channels_first, converted, resize_and_crop
from nasformer.data.files import FEW, USUAL_SIZE, BadImages, Files, ImageFiles, Listing, prepare_files, printable
from nasformer.data.images import (
    Data,
    ImageSet,
    SplitAmounts,
    channel_stats,
    check_classes,
    check_filled,
    check_labels,
    make_splits,
    resize,
    stratified,
)
from nasformer.data.options import MAX_BAD
from nasformer.data.shards import is_packed, load_shards
from nasformer.errors import UserError, one_line
from nasformer.utils.progress import progress
from nasformer.utils.rng import Purpose, generator

# Data from any `torch.utils.data.Dataset` of (image, class number) pairs: each item is asked for once.

SLACK = 1e-3  # by which resizing in floats may leave 0..1
READ_ERRORS = (OSError, SyntaxError, EOFError, RuntimeError)  # what reading a broken file raises


def from_dataset(
    train: Any,
    test: Any = None,
    holdout: float | str | Any = 0.1,
    *,
    classes: Sequence[str] | None = None,
    img_size: int | None = None,
    seed: int = 0,
    train_images: int | None = None,
    max_bad: float = MAX_BAD,
    name: str = "dataset",
    quiet: bool = False,
) -> Data:
    """Data from datasets whose items are (image, label).

    Args:
        train: Anything with `len()` and items by number. An image is a Pillow image, a tensor (C, H, W) or an array
            (H, W, C) or (H, W), in bytes or in floats from 0 to 1: not augmented and not normalised.
        test: Likewise; None takes a fifth of each class out of train, always the same.
        holdout: A fraction, (int) images per class or such as "500 images" in all of train; or a dataset.
        classes: Their names; None: those in `train.classes`, or else numbers.
        img_size: Resize to this; None: all images must be square and of one size.
        seed: Decides which images are held out.
        train_images: Train on so many images only; None: on all.
        max_bad: The share of items that may raise an exception; they are left out.

    >>> items = [(np.full((8, 8), 20 * number, np.uint8), number % 2) for number in range(12)]
    >>> data = from_dataset(items, holdout=1, classes=["even", "odd"], quiet=True)
    >>> len(data.train), len(data.holdout), len(data.test), data.in_chans
    (7, 2, 3, 1)
    """
    bad = BadImages(max_bad, quiet=quiet)
    amount, val = (holdout, None) if isinstance(holdout, int | float | str) else (0.1, holdout)
    given = {"train": train, "holdout": val, "test": test}
    datasets = {part: items for part, items in given.items() if items is not None}
    read = {part: _read_items(items, f"{name}: {part}", img_size, bad) for part, items in datasets.items()}
    parts = _stack(read, name)
    total = sum(len(items) for items in datasets.values())
    bad.check(total, name)
    bad.tell(total, name)
    names = _names_of(train, classes, parts["train"].labels)
    check_classes(names, name)
    splits = make_splits(
        parts["train"],
        parts.get("holdout"),
        parts.get("test"),
        names,
        holdout=amount,
        seed=seed,
        train_images=train_images,
    )
    splits.report(name, quiet)
    crop_pct = min(item.crop_pct for items in read.values() for item in items)
    return Data(name, *splits.parts(), names, *channel_stats(splits.train.images), crop_pct)


class ReadItem(NamedTuple):
    """An item of a dataset: an image as bytes [C, H, W], its class number, and how the image was cropped."""

    image: Tensor
    label: int
    crop_pct: float


def _read_items(items: Any, what: str, img_size: int | None, bad: BadImages) -> list[ReadItem]:
    """The items that can be read."""
    read: list[ReadItem] = []
    with progress("read", len(items), bad.quiet or len(items) < FEW) as report:
        for index in range(len(items)):
            item = f"{what}[{index}]"
            try:
                image, label = items[index]
            except READ_ERRORS as error:
                bad.add(item, one_line(error))
                continue
            crop_pct = _crop_pct(image, img_size)
            read.append(ReadItem(to_bytes(image, img_size, item), _class_number(label, item), crop_pct))
            report(index + 1)
    if not read:
        raise UserError(f"{what}: none of the {len(items)} items can be read; check the dataset")
    return read


def _crop_pct(image: Any, img_size: int | None) -> float:
    """How an image is cropped: a Pillow image as files are unless it has the right size, an array not at all."""
    from PIL.Image import Image

    return CROP_PCT if img_size and isinstance(image, Image) and image.size != (img_size, img_size) else 1.0


def to_bytes(image: Any, img_size: int | None, what: str) -> Tensor:
    """A Pillow image, tensor or array as bytes [C, H, W]."""
    from PIL.Image import Image

    if isinstance(image, Image):
        plain = converted(image, 1 if image.mode in GREY_MODES else 3)
        if img_size:
            plain = resize_and_crop(plain, (img_size, img_size), _crop_pct(image, img_size))
        return torch.from_numpy(channels_first(plain).copy())
    pixels = _to_tensor(image, what)
    if pixels.is_floating_point():
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -SLACK and high <= 1 + SLACK):
            raise UserError(f"{what} has floats from {low:.3g} to {high:.3g}; give 0 to 1, without normalisation")
        pixels = pixels.mul(255).round().clamp(0, 255).to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise UserError(f"{what} is an image of {pixels.dtype}; give uint8, or floats from 0 to 1")
    return resize(pixels[None], img_size)[0] if img_size else pixels


def _to_tensor(image: Any, what: str) -> Tensor:
    """An array or tensor as [C, H, W], of any type of numbers."""
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        pixels = image[..., None] if image.ndim == 2 else image
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    if isinstance(image, Tensor) and image.ndim in (2, 3):
        return image[None] if image.ndim == 2 else image
    shape = f" of shape {tuple(image.shape)}" if hasattr(image, "shape") else ""
    raise UserError(f"{what} is a {type(image).__name__}{shape}; give a Pillow image, a (C, H, W) tensor or an array")


def _class_number(label: Any, what: str) -> int:
    try:
        return int(label.item() if isinstance(label, (Tensor, np.generic)) else label.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise UserError(f"{what} has the label {label!r}; give a class number") from None


def _stack(parts: dict[str, list[ReadItem]], name: str) -> dict[str, ImageSet]:
    """The images of each part as one tensor: grey ones among coloured ones get three equal channels."""
    shapes = {tuple(item.image.shape) for items in parts.values() for item in items}
    if {channels for channels, *_ in shapes} == {1, 3}:
        shapes = {(3, *size) for _, *size in shapes}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise UserError(f"{name} has images of shape {first} and {second}; give img_size to make them of one size")
    (shape,) = shapes
    return {
        part: ImageSet(
            torch.stack([item.image.expand(shape) for item in items]), torch.tensor([item.label for item in items])
        )
        for part, items in parts.items()
    }


def _names_of(train: Any, classes: Sequence[str] | None, labels: Tensor) -> list[str]:
    """The names of the classes: those given, those of the dataset, or numbers."""
    if classes is not None:
        return [str(name) for name in classes]
    names, count = getattr(train, "classes", None), int(labels.max()) + 1
    if not isinstance(names, list | tuple) or len(names) < count:
        names = range(count)
    return [str(name) for name in names]


# Data by a name or a path


@dataclass(frozen=True)
class Request:
    """A request for a set: its source, and where sets by name are."""

    source: str
    root: Path
    download: bool
    answers: Sequence[str] | int | None = None


@dataclass
class Arrays:
    """A set in memory as its author split it; the counterpart of `Listing`."""

    train: ImageSet
    test: ImageSet
    classes: list[str]
    val: ImageSet | None = None


Source = Arrays | Listing


class LoadOptions(TypedDict, total=False):
    """The options of `open_data`, which explains them."""

    holdout: float | str
    seed: int
    train_images: int | None
    img_size: int | None
    in_chans: int | None
    usual_size: int
    root: str | Path
    download: bool
    max_bad: float
    bad_list: Path | None
    quiet: bool
    answers: Sequence[str] | int | None


def load_data(source: str, **options: Unpack[LoadOptions]) -> Data:
    """Load a dataset into memory; the options are those of `open_data`.

    >>> data = load_data("digits")
    >>> len(data.train), len(data.holdout), len(data.test), data.num_classes, data.img_size
    (1293, 144, 360, 10, 8)
    """
    opened = open_data(source, **options)
    return opened.decode() if isinstance(opened, ImageFiles) else opened


def open_data(
    source: str,
    *,
    holdout: float | str = 0.1,
    seed: int = 0,
    train_images: int | None = None,
    img_size: int | None = None,
    in_chans: int | None = None,
    usual_size: int = USUAL_SIZE,
    root: str | Path = "data",
    download: bool = False,
    max_bad: float = MAX_BAD,
    bad_list: Path | None = None,
    quiet: bool = False,
    answers: Sequence[str] | int | None = None,
) -> Data | ImageFiles:
    """Find a dataset: in memory, or files that can be decoded into memory or streamed.

    Args:
        source: A name in SOURCES, an .npz file of plain arrays, or an image folder.
        holdout: How much of train to set aside for choosing: a fraction, (int) images per class, or images in all
            such as "500 images"; or 0.
        seed: Decides which images are set aside; the test set does not depend on it.
        train_images: Train on so many images only, as many of each class as of the others; None: on all.
        img_size: Resize to this; None keeps the size of the images.
        in_chans: Read image files with 1, 3 or 4 channels; None: 3, or 1 where all are grey.
        usual_size: The size for image files that have not one size of their own.
        root: The folder in which sets with a name are, each in a folder of its own.
        download: Fetch a set with a name that is not there.
        max_bad: The share of image files that may be unreadable; they are left out.
        bad_list: A file to list them in.
        quiet: Report no choices and show no progress.
        answers: The classes of a net whose answers stand for labels, or how many there are: images of other classes, or
            without any, are taken as if all were of the first.
    """
    if img_size is not None and img_size < 1:
        raise UserError(f"img_size {img_size} is not a size; give a positive number of pixels")
    bad = BadImages(max_bad, bad_list, quiet)
    opened = _find(source, root, download, answers)
    if answers is not None and not same_classes(opened.classes, answers):
        opened = without_labels(opened, answers)
    amounts: SplitAmounts = {"holdout": holdout, "seed": seed, "train_images": train_images}
    if isinstance(opened, Listing):
        return prepare_files(opened, bad, img_size, in_chans, usual_size, **amounts)
    check_classes(opened.classes, source)
    check_filled(opened.train, f"{source}: train")
    check_filled(opened.test, f"{source}: test")
    splits = make_splits(opened.train, opened.val, opened.test, opened.classes, **amounts)
    splits.report(source, quiet)
    train, held_out, test = (part.resized(img_size) for part in splits.parts())
    return Data(Path(source).stem, train, held_out, test, opened.classes, *channel_stats(train.images))


def open_files(source: str, **options: Unpack[LoadOptions]) -> ImageFiles:
    """The image files of a source (see `open_data`); an error where it is not made of files."""
    opened = open_data(source, **options)
    if not isinstance(opened, ImageFiles):
        raise UserError(f"{source} is not made of image files, so it cannot be streamed; leave --stream out")
    return opened


def list_files(source: str, root: str | Path = "data", download: bool = False) -> Listing:
    """The files of a source, as its author split them; an error where it is not made of files."""
    opened = _find(source, root, download)
    if not isinstance(opened, Listing):
        raise UserError(f"{source} is not made of image files, so there is nothing to pack; use it as it is")
    return opened


def _find(source: str, root: str | Path, download: bool, answers: Sequence[str] | int | None = None) -> Source:
    if not source.strip():
        raise UserError("no data is named; give --data a folder of images, an .npz file or the name of a set")
    source = os.path.expanduser(source)
    return _find_loader(source)(Request(source, Path(root).expanduser(), download, answers))


def same_classes(classes: Sequence[str], answers: Sequence[str] | int) -> bool:
    """Whether images have the classes of a net, or as many where only their number is known."""
    return len(classes) == answers if isinstance(answers, int) else list(classes) == list(answers)


def without_labels(opened: Source, answers: Sequence[str] | int) -> Source:
    """The images of a set as if all were of the first of these classes."""
    names = [str(number) for number in range(answers)] if isinstance(answers, int) else list(answers)
    parts = {name: getattr(opened, name) for name in ("train", "val", "test")}
    zeros = {name: replace(part, labels=torch.zeros_like(part.labels)) for name, part in parts.items() if part}
    return replace(opened, classes=names, **zeros)


def _find_loader(source: str) -> Callable[[Request], Source]:
    """The loader for a name or a path; refuses what is neither."""
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


def load_digits(request: Request) -> Arrays:
    """Scikit-learn's 1,797 handwritten digits, 8 x 8 in grey: 1,437 to train and 360 to test."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    everything = ImageSet(images, torch.from_numpy(digits.target).long())
    rest, taken = stratified(everything.labels, 0.2, generator(0, Purpose.SPLIT))
    return Arrays(everything.subset(rest), everything.subset(taken), [str(digit) for digit in range(10)])


# .npz files of plain arrays, each checked, so that the author of a file learns what to change

NPZ_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
UNREADABLE = (OSError, ValueError, EOFError, AttributeError, TypeError, MemoryError, zipfile.BadZipFile, zlib.error)


def load_npz(request: Request) -> Arrays:
    """Arrays train_images (uint8, N x H x W or N x H x W x C), train_labels, test_images, test_labels.

    Optional: holdout_images with holdout_labels, which are then used as they are, and classes (names).
    """
    path = request.source
    arrays = _read_arrays(path)
    train, test = _image_set(path, arrays, "train"), _image_set(path, arrays, "test")
    val = _image_set(path, arrays, "holdout") if "holdout_images" in arrays else None
    names = _class_names(path, arrays["classes"]) if "classes" in arrays else None
    count = len(names) if names is not None else int(train.labels.max()) + 1 if len(train) else 0
    check_labels(train.labels, count, f"{path}: train")
    present = set(train.labels.tolist())
    gap = next((number for number in range(count) if number not in present), None)
    if len(train) and gap is not None:
        name = names[gap] if names else str(gap)
        raise UserError(f"{path}: class {name!r} has no training image; number classes without gaps")
    return Arrays(train, test, names or [str(number) for number in range(count)], val)


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; refuses one that lacks some, or has Python objects."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot read {path} ({reason}); write plain arrays with numpy.savez") from error
    keys = (*NPZ_KEYS, "holdout_labels") if "holdout_images" in arrays else NPZ_KEYS
    missing = [key for key in keys if key not in arrays]
    if missing:
        has = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"{path} lacks {', '.join(missing)}; add them (it has {has})")
    return arrays


def _image_set(path: str, arrays: dict[str, np.ndarray], part: str) -> ImageSet:
    """The images and labels of a part, whose types and shapes are checked."""
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        actual = f"{images.dtype} of shape {images.shape}"
        raise UserError(f"{path}: {part}_images is {actual}; give uint8 of shape (N, H, W) or (N, H, W, C)")
    if images.ndim == 4 and images.shape[3] > 4:
        raise UserError(f"{path}: {part}_images of shape {images.shape} is not (N, H, W, C); put channels last")
    if 0 in images.shape[1:]:
        raise UserError(f"{path}: {part}_images of shape {images.shape} has no pixels; give (N, H, W) or (N, H, W, C)")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        actual = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"{path}: {part}_labels is {actual}; give integers of shape (N,)")
    if len(images) != len(labels):
        raise UserError(f"{path}: {len(images)} {part}_images but {len(labels)} {part}_labels; make them as many")
    return ImageSet(_channels_second(images), torch.from_numpy(labels.astype(np.int64)))


def _channels_second(images: np.ndarray) -> Tensor:
    with_channels = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(with_channels.transpose(0, 3, 1, 2)))


def _class_names(path: str, names: np.ndarray) -> list[str]:
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise UserError(f"{path}: classes is {names.dtype} of shape {names.shape}; give one name for each class")
    return [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name) for name in names]


# Image folders, one folder a class: `<class>/*.jpg`, or `train/<class>/*.jpg` with `val/` or `test/` beside it

UNLABELLED = ["photo", "no photo"]
"""Placeholders for the classes of unlabelled photos, until those of a net replace them; a set needs two."""
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
VAL = ("val", "valid", "validation")
EXPECTED = "expected <class>/*.jpg, or train/<class>/*.jpg with val/ or test/ beside it"
NAMED_TYPES = 5  # of files that are not read
SIGNS: dict[str, tuple[str, ...]] = {
    "segment": ("SegmentationClass", "gtFine", "annotations/training"),
    "detect": ("annotations/instances_*.json", "*/_annotations.coco.json"),
    "panoptic": ("annotations/panoptic_*.json",),
    "vqa": ("*/questions.json", "*_OpenEnded_*_questions.json"),
}
"""What shows that a folder is made for another task than classification; masks beside images are another sign.

`register_task` adds those of plugins: here are those of the built-in tasks, which are imported only when they are used.
"""


def load_folder(request: Request) -> Listing:
    """A folder of class folders, of shards, or CUB-200-2011 in its own layout."""
    folder = Path(request.source)
    if is_packed(folder):
        return load_shards(folder)
    for base in (folder / "CUB_200_2011", folder):
        if is_cub(base):
            return read_official("cub200", base, partial(list_cub, base))
    if request.answers is not None and len(class_folders(folder)) < 2:
        return list_photos(folder)
    if request.answers is None and (tasks := annotated_for(folder)):
        raise UserError(
            f"{printable(folder)} has no folder for each class, but what --task {' or '.join(tasks)} learns from; "
            f"name that task, or give {EXPECTED.removeprefix('expected ')}"
        )
    return list_folder(folder)


def annotated_for(folder: Path) -> list[str]:
    """The tasks whose masks, boxes or questions a folder has."""
    masks = (path for sign in ("masks", "*/masks") for path in folder.glob(sign) if (path.parent / "images").is_dir())
    tasks = ["segment"] if any(masks) else []
    return tasks + [task for task, signs in SIGNS.items() if any(True for sign in signs for _ in folder.glob(sign))]


def made_for(folder: Path, task: str) -> str:
    """The end of a message that a folder is not for a task: for which other one it looks like; empty if for none."""
    tasks = annotated_for(folder) or (["classify"] if len(class_folders(folder)) > 1 else [])
    others = [other for other in tasks if other != task]
    return f"; what is there looks like --task {' or '.join(others)}" if others else ""


def class_folders(folder: Path) -> list[str]:
    """The names of the folders with images that `list_folder` takes for classes."""
    scanned = ClassFolders.scan(folder / "train" if (folder / "train").is_dir() else folder)
    return [name for name, images in scanned.images.items() if images]


def list_photos(folder: Path) -> Listing:
    """All images in a folder and below it, without labels."""
    photos = sorted(ClassFolders(folder).walk(folder))
    if not photos:
        raise UserError(f"{printable(folder)} has no images; give a folder of photos")
    return Listing(printable(folder), Files.of((path, 0) for path in photos), UNLABELLED)


def list_folder(root: str | Path) -> Listing:
    """Find the files of each split. Classes are the folders in `train/`, or in root, in alphabetical order.

    The test set is `test/`, or else `val/`. With both, `val/` is the hold-out.
    """
    root = Path(root)
    has_parts = (root / "train").is_dir()
    train = ClassFolders.scan(root / "train" if has_parts else root)
    classes = [name for name, images in train.images.items() if images]
    if not classes:
        others = f" ({note})" if (note := note_on_others([train])) else ""
        raise UserError(
            f"{printable(root)} has no class folders{' in train/' if has_parts else ''} with images{others}; "
            f"{EXPECTED}. Photos without classes serve to cut a pretrained net: run --from NET --no-training"
        )
    val = next((ClassFolders.scan(root / name) for name in VAL if has_parts and (root / name).is_dir()), None)
    test = ClassFolders.scan(root / "test") if has_parts and (root / "test").is_dir() else None
    val_files, test_files = (part.files(classes) if part else None for part in (val, test))
    if not test_files:  # also where there are no class folders in it, as in ImageNet's own `test/`
        val_files, test_files = None, val_files
    notes = [train.note_on_empty(), note_on_others([part for part in (train, val, test) if part])]
    names = [printable(name) for name in classes]
    files = train.files(classes), names, val_files, test_files
    return Listing(printable(root), *files, [note for note in notes if note])


@dataclass
class ClassFolders:
    """The image files of class folders, by the names of these folders, and counts of other files by ending."""

    folder: Path
    images: dict[str, list[str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    @classmethod
    def scan(cls, folder: Path) -> ClassFolders:
        """The class folders in a folder, each with all images below it; hidden folders are left out."""
        scanned = cls(folder)
        try:
            names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        except OSError as error:
            _refuse_unreadable(error)
        for name in names:
            if not name.startswith("."):
                scanned.images[name] = sorted(scanned.walk(folder / name))
        return scanned

    def walk(self, folder: Path) -> list[str]:
        images = []
        for base, _, names in os.walk(folder, onerror=_refuse_unreadable):
            images += [os.path.join(base, name) for name in names if name.lower().endswith(EXTENSIONS)]
            others = [name for name in names if not name.lower().endswith(EXTENSIONS) and not name.startswith(".")]
            self.others.update(os.path.splitext(name)[1].lower() or "without ending" for name in others)
        return images

    def files(self, classes: list[str]) -> Files:
        """The files with their class numbers."""
        for name, images in self.images.items():
            if images and name not in classes:
                unknown = f"{printable(self.folder)} has a class {printable(name)!r} that train/ lacks"
                raise UserError(f"{unknown}; give every split the same classes")
        return Files.of((path, label) for label, name in enumerate(classes) for path in self.images.get(name, []))

    def note_on_empty(self) -> str:
        empty = [printable(name) for name, images in self.images.items() if not images]
        shown = ", ".join(empty[:3]) + (" ..." if len(empty) > 3 else "")
        left_out = f"left out {len(empty)} of {len(self.images)} class folders, which hold no images: {shown}"
        return left_out if empty else ""


PHOTO_TYPES = {".heic", ".heif", ".avif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw"}
"""Endings of photos, as telephones and cameras write them, that are not read."""


def note_on_others(parts: list[ClassFolders]) -> str:
    """Files that are not read, such as photos in a format that Pillow does not know."""
    others = sum((part.others for part in parts), Counter[str]())
    types = [f"{printable(name)} ({count})" for name, count in sorted(others.items(), key=lambda x: (-x[1], x[0]))]
    shown = ", ".join(types[:NAMED_TYPES]) + (" ..." if len(types) > NAMED_TYPES else "")
    plural = "" if others.total() == 1 else "s"
    advice = "; convert photos to JPEG" if PHOTO_TYPES & others.keys() else ""
    return f"{others.total()} file{plural} of types that are not read: {shown}{advice}" if others else ""


def _refuse_unreadable(error: OSError) -> NoReturn:
    """Refuses a folder that cannot be opened, which would look like an empty one."""
    raise UserError(f"cannot read the folder {error.filename} ({error.strerror}); check its permissions") from error


# Sets by name, from a local folder in their official layout: those of torchvision, and CUB-200-2011.
# Their own splits are used; where one of them is for validation (Flowers, Aircraft), it is the hold-out.

CUB_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


@dataclass(frozen=True)
class NamedSet:
    """A set by name: its folder in the data root, its class in torchvision (which can download it), how to read it."""

    folder: str
    torchvision: str | None
    read: Callable[[str, Path], Source]
    downloads: bool = True

    def open(self, name: str, root: Path, download: bool) -> Source:
        folder = root / self.folder
        if download:
            self._download(name, root)
        if not folder.is_dir():
            fetch = "add --download" if self.downloads else "put it there by hand (it has no download)"
            raise UserError(f"{name} is not at {folder}; name the folder above with --data-root, or {fetch}")
        return read_official(name, folder, partial(self.read, name, root))

    def _download(self, name: str, root: Path) -> None:
        if not self.downloads or not self.torchvision:
            raise UserError(f"{name} cannot be downloaded; put it at {root / self.folder} by hand")
        try:
            _torchvision(self.torchvision)(root, download=True)
        except (OSError, RuntimeError, ImportError) as error:
            raise UserError(f"cannot download {name} ({one_line(error)}); fetch it by hand") from error


def read_official(name: str, folder: Path, read: Callable[[], Any]) -> Any:
    """The result of `read`, or an error that names the folder."""
    try:
        return read()
    except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
        raise UserError(f"{folder} is not {name} in its official layout ({one_line(error)})") from error


def load_named(request: Request) -> Source:
    return NAMED[request.source].open(request.source, request.root, request.download)


def read_cifar(name: str, root: Path) -> Arrays:
    """CIFAR as arrays in memory; it has no image files."""
    train, test = (_torchvision(name.upper())(root, train=part) for part in (True, False))
    parts = [ImageSet(_channels_second(part.data), torch.tensor(part.targets)) for part in (train, test)]
    return Arrays(parts[0], parts[1], list(train.classes))


def _torchvision(class_name: str) -> Any:
    from torchvision import datasets

    return getattr(datasets, class_name)


def list_torchvision(class_name: str, splits: tuple[str, str | None, str], name: str, root: Path) -> Listing:
    """The files of a torchvision dataset, by a loader that returns the path it is called with."""
    sets = [_torchvision(class_name)(root, split=part, loader=str) if part else None for part in splits]
    train, val, test = (Files.of(part[i] for i in range(len(part))) if part else None for part in sets)
    assert sets[0] is not None
    assert train is not None
    return Listing(name, train, list(sets[0].classes), val, test)


def read_pets(name: str, root: Path) -> Listing:
    """Oxford-IIIT Pet: lines such as `Abyssinian_100 1 1 1` in its annotations are name and class, from 1."""
    base, parts, classes = root / "oxford-iiit-pet", [], dict[int, str]()
    for part in ("trainval", "test"):
        rows = [line.split() for line in _lines(base / "annotations" / f"{part}.txt")]
        parts.append(Files.of((base / "images" / f"{row[0]}.jpg", int(row[1]) - 1) for row in rows))
        classes |= {int(row[1]) - 1: row[0].rsplit("_", 1)[0].replace("_", " ") for row in rows}
    return Listing(name, parts[0], [classes[label] for label in range(len(classes))], test=parts[1])


def read_caltech(name: str, root: Path) -> Listing:
    """Caltech-101, which has no split of its own; its background images are left out."""
    scanned = ClassFolders.scan(root / "caltech101" / "101_ObjectCategories")
    scanned.images.pop("BACKGROUND_Google", None)
    if not scanned.images:
        raise ValueError("no folders of classes")
    return Listing(name, scanned.files(list(scanned.images)), list(scanned.images))


def is_cub(folder: Path) -> bool:
    return all((folder / file).is_file() for file in CUB_FILES)


def list_cub(folder: Path, name: str | None = None) -> Listing:
    """CUB-200-2011 by its text files: image number and path, class (from 1), 1 for train and 0 for test."""
    images, labels, split, names = (_table(folder / file) for file in CUB_FILES)
    train, test = (
        Files.of((folder / "images" / path, int(labels[key]) - 1) for key, path in images.items() if split[key] == part)
        for part in ("1", "0")
    )
    classes = [re.sub(r"^\d+\.", "", names[str(number + 1)]).replace("_", " ") for number in range(len(names))]
    return Listing(name or str(folder), train, classes, test=test)


SPLITS, NO_VAL = ("train", "val", "test"), ("train", None, "test")
NAMED: dict[str, NamedSet] = {
    "cifar10": NamedSet("cifar-10-batches-py", "CIFAR10", read_cifar),
    "cifar100": NamedSet("cifar-100-python", "CIFAR100", read_cifar),
    "flowers102": NamedSet("flowers-102", "Flowers102", partial(list_torchvision, "Flowers102", SPLITS)),
    "stanford_cars": NamedSet(
        "stanford_cars", "StanfordCars", partial(list_torchvision, "StanfordCars", NO_VAL), downloads=False
    ),
    "fgvc_aircraft": NamedSet("fgvc-aircraft-2013b", "FGVCAircraft", partial(list_torchvision, "FGVCAircraft", SPLITS)),
    "caltech101": NamedSet("caltech101/101_ObjectCategories", "Caltech101", read_caltech),
    "oxford_pets": NamedSet("oxford-iiit-pet", "OxfordIIITPet", read_pets),
    "cub200": NamedSet("CUB_200_2011", None, lambda name, root: list_cub(root / "CUB_200_2011", name), downloads=False),
}
SOURCES: dict[str, Callable[[Request], Source]] = {"digits": load_digits} | dict.fromkeys(NAMED, load_named)


def _table(path: Path) -> dict[str, str]:
    """A text file as a dict: the rest of each line by its first word."""
    return {key: rest for key, _, rest in (line.strip().partition(" ") for line in _lines(path))}


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
