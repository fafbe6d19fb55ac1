"""From a name or a path to `Data`. A new source is one loader and, if it has a name, one line in SOURCES."""

from __future__ import annotations

import difflib
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import GREY_MODES, converted
from nasformer.data.files import (
    FEW,
    MAX_BAD,
    TEST_FRACTION,
    USUAL_SIZE,
    BadImages,
    Files,
    ImageFiles,
    Listing,
    channels_first,
    check_classes,
    settle,
)
from nasformer.data.images import Data, ImageSet, Parts, channel_stats, check_filled, check_labels, resize, stratified
from nasformer.data.preprocessing import CROP_PCT, resize_and_crop
from nasformer.errors import UserError
from nasformer.utils.progress import progress, say
from nasformer.utils.rng import Stream, generator

# ----------------------------------------------------------------------------------------------------------------------
# Datasets as one .npz file of plain arrays, each checked, so that its author learns what to change.
# ----------------------------------------------------------------------------------------------------------------------

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
UNREADABLE = (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error)


def read_npz(path: str) -> Parts:
    """Arrays train_images (uint8, N x H x W or N x H x W x C), train_labels, test_images, test_labels.

    Optional: holdout_images with holdout_labels, which are then used as they are, and classes (names).
    """
    arrays = _arrays(path)
    train, test = _image_set(path, arrays, "train"), _image_set(path, arrays, "test")
    holdout = _image_set(path, arrays, "holdout") if "holdout_images" in arrays else None
    classes = [str(name) for name in arrays["classes"]] if "classes" in arrays else _numbers(train.labels)
    check_labels(train.labels, len(classes), f"{path}: train")
    count = torch.bincount(train.labels, minlength=len(classes)).tolist()
    absent = [name for name, found in zip(classes, count, strict=True) if not found]
    if len(train) and absent:
        raise UserError(f"{path}: class {absent[0]!r} has no training image; number classes without gaps")
    return Parts(train, test, classes, holdout)


def _arrays(path: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot read {path} ({reason}); write plain arrays with numpy.savez") from error
    wanted = (*KEYS, "holdout_labels") if "holdout_images" in arrays else KEYS
    missing = [key for key in wanted if key not in arrays]
    if missing:
        has = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"{path} lacks {', '.join(missing)}; add them (it has {has})")
    return arrays


def _image_set(path: str, arrays: dict[str, np.ndarray], part: str) -> ImageSet:
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        found = f"{images.dtype} of shape {images.shape}"
        raise UserError(f"{path}: {part}_images is {found}; give uint8 of shape (N, H, W) or (N, H, W, C)")
    if images.ndim == 4 and images.shape[3] > 4:
        raise UserError(f"{path}: {part}_images of shape {images.shape} is not (N, H, W, C); put channels last")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        found = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"{path}: {part}_labels is {found}; give integers of shape (N,)")
    if len(images) != len(labels):
        raise UserError(f"{path}: {len(images)} {part}_images but {len(labels)} {part}_labels; make them as many")
    return ImageSet(_channels_first(images), torch.from_numpy(labels.astype(np.int64)))


def _channels_first(images: np.ndarray) -> Tensor:
    with_channels = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(with_channels.transpose(0, 3, 1, 2)))


def _numbers(labels: Tensor) -> list[str]:
    """Names for classes without: their numbers."""
    return [str(number) for number in range(int(labels.max()) + 1 if len(labels) else 0)]


# ----------------------------------------------------------------------------------------------------------------------
# Image folders, one folder a class: `<class>/*.jpg`, or `train/<class>/*.jpg` with `val/` or `test/` beside it.
# ----------------------------------------------------------------------------------------------------------------------

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


# ----------------------------------------------------------------------------------------------------------------------
# Sets with a name, from a local folder in their official layout: those of torchvision, and CUB-200-2011.
#
# Their own splits are used. A set with a validation split of its own (Flowers, Aircraft) has that as its hold-out.
# ----------------------------------------------------------------------------------------------------------------------

CUB_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


@dataclass(frozen=True)
class Named:
    """A set: the folder in the data root, its class in torchvision (which can download it), and how to read it."""

    folder: str
    torchvision: str | None
    read: Callable[[str, Path], Parts | Listing]
    downloads: bool = True

    def open(self, name: str, root: Path, download: bool) -> Parts | Listing:
        if download:
            self._download(name, root)
        if not (root / self.folder).is_dir():
            fetch = "add --download" if self.downloads else "put it there by hand (it has no download)"
            raise UserError(
                f"{name} is not at {root / self.folder}; name the folder above with --data-root, or {fetch}"
            )
        try:
            return self.read(name, root)
        except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
            told = " ".join(str(error).split())
            raise UserError(f"{root / self.folder} is not {name} in its official layout ({told})") from error

    def _download(self, name: str, root: Path) -> None:
        if not self.downloads or not self.torchvision:
            raise UserError(f"{name} cannot be downloaded; put it at {root / self.folder} by hand")
        try:
            _torchvision(self.torchvision)(root, download=True)
        except (OSError, RuntimeError, ImportError) as error:
            raise UserError(f"cannot download {name} ({' '.join(str(error).split())}); fetch it by hand") from error


def read_cifar(name: str, root: Path) -> Parts:
    """Arrays, not files: they are in memory at once."""
    train, test = (_torchvision(name.upper())(root, train=part) for part in (True, False))
    parts = [ImageSet(_images_first(part.data), torch.tensor(part.targets)) for part in (train, test)]
    return Parts(parts[0], parts[1], list(train.classes))


def read_flowers(name: str, root: Path) -> Listing:
    return _official("Flowers102", name, root, ("train", "val", "test"))


def read_aircraft(name: str, root: Path) -> Listing:
    return _official("FGVCAircraft", name, root, ("train", "val", "test"))


def read_cars(name: str, root: Path) -> Listing:
    return _official("StanfordCars", name, root, ("train", None, "test"))


def read_pets(name: str, root: Path) -> Listing:
    """annotations/trainval.txt and test.txt: `Abyssinian_100 1 1 1`, which is name and class, from 1."""
    base, parts, classes = root / "oxford-iiit-pet", [], dict[int, str]()
    for part in ("trainval", "test"):
        rows = [line.split() for line in (base / "annotations" / f"{part}.txt").read_text().splitlines() if line]
        parts.append(Files.of((base / "images" / f"{row[0]}.jpg", int(row[1]) - 1) for row in rows))
        classes |= {int(row[1]) - 1: row[0].rsplit("_", 1)[0].replace("_", " ") for row in rows}
    return Listing(name, parts[0], [classes[label] for label in range(len(classes))], test=parts[1])


def read_caltech(name: str, root: Path) -> Listing:
    """No split of its own, so that one is made. Its background images are no class."""
    base = root / "caltech101" / "101_ObjectCategories"
    classes = [found for found in class_names(base) if found != "BACKGROUND_Google"]
    if not classes:
        raise ValueError("no folders of classes")
    return Listing(name, list_classes(base, classes), classes)


def is_cub(folder: Path) -> bool:
    return all((folder / file).is_file() for file in CUB_FILES)


def read_cub(name: str, root: Path) -> Listing:
    return list_cub(root / "CUB_200_2011", name)


def list_cub(folder: Path, name: str | None = None) -> Listing:
    """Its text files: image number and path, class (from 1), 1 for train and 0 for test."""
    images, labels, split, names = (dict(_rows(folder / file)) for file in CUB_FILES)
    train, test = (
        Files.of((folder / "images" / path, int(labels[key]) - 1) for key, path in images.items() if split[key] == part)
        for part in ("1", "0")
    )
    classes = [re.sub(r"^\d+\.", "", names[str(number + 1)]).replace("_", " ") for number in range(len(names))]
    return Listing(name or str(folder), train, classes, test=test)


NAMED: dict[str, Named] = {
    "cifar10": Named("cifar-10-batches-py", "CIFAR10", read_cifar),
    "cifar100": Named("cifar-100-python", "CIFAR100", read_cifar),
    "flowers102": Named("flowers-102", "Flowers102", read_flowers),
    "stanford_cars": Named("stanford_cars", "StanfordCars", read_cars, downloads=False),
    "fgvc_aircraft": Named("fgvc-aircraft-2013b", "FGVCAircraft", read_aircraft),
    "caltech101": Named("caltech101/101_ObjectCategories", "Caltech101", read_caltech),
    "oxford_pets": Named("oxford-iiit-pet", "OxfordIIITPet", read_pets),
    "cub200": Named("CUB_200_2011", None, read_cub, downloads=False),
}


def _official(kind: str, name: str, root: Path, splits: tuple[str, str | None, str]) -> Listing:
    """Torchvision's sets hand the path of an image to a loader of ours, which gives it back."""
    sets = [_torchvision(kind)(root, split=part, loader=str) if part else None for part in splits]
    train, val, test = (Files.of(part[i] for i in range(len(part))) if part else None for part in sets)
    assert sets[0] is not None
    assert train is not None
    return Listing(name, train, list(sets[0].classes), val, test)


def _torchvision(kind: str) -> Any:
    from torchvision import datasets

    return getattr(datasets, kind)


def _images_first(images: Any) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _rows(path: Path) -> list[tuple[str, str]]:
    lines = (line.strip().split(" ", 1) for line in path.read_text().splitlines() if line.strip())
    return [(key, value) for key, value in lines]


# ----------------------------------------------------------------------------------------------------------------------
# Any `torch.utils.data.Dataset` of (image, class number) pairs to `Data`: each item is asked for once.
# ----------------------------------------------------------------------------------------------------------------------

SLACK = 1e-3  # by which resizing in floats may leave 0..1


def from_dataset(
    train: Any,
    test: Any = None,
    holdout: float | int | Any = 0.1,
    *,
    classes: Sequence[str] | None = None,
    img_size: int | None = None,
    seed: int = 0,
    max_bad: float = MAX_BAD,
    name: str = "dataset",
    quiet: bool = False,
) -> Data:
    """Data from datasets whose items are (image, label).

    Args:
        train: anything with `len()` and items by number. An image is a Pillow image, a tensor (C, H, W) or an array
            (H, W, C) or (H, W), in bytes or in floats from 0 to 1: not augmented and not normalised.
        test: likewise; None takes a fifth of each class out of train, always the same.
        holdout: a fraction or (int) images per class of train, or a dataset.
        classes: their names; None: those in `train.classes`, or else numbers.
        img_size: resize to this; None: all images must be square and of one size.
        seed: decides which images are held out.
        max_bad: the share of items that may raise an exception; they are left out.

    >>> items = [(np.full((8, 8), 20 * number, np.uint8), number % 2) for number in range(12)]
    >>> data = from_dataset(items, holdout=1, classes=["even", "odd"], quiet=True)
    >>> len(data.train), len(data.holdout), len(data.test), data.in_chans
    (7, 2, 3, 1)
    """
    bad = BadImages(max_bad, quiet=quiet)
    sets = {"train": train, "test": test} | ({} if isinstance(holdout, (int, float)) else {"holdout": holdout})
    given = {part: items for part, items in sets.items() if items is not None}
    crops = {1.0}
    read = {part: _read(items, f"{name}: {part}", img_size, bad, crops) for part, items in given.items()}
    parts = _stacked(read, name)
    total = sum(len(items) for items in given.values())
    bad.check(total, name)
    bad.tell(total, name)
    names = _class_names(train, classes, parts["train"].labels)
    check_classes(names, name)
    if "test" not in parts:
        parts["train"], parts["test"] = _take(parts["train"], TEST_FRACTION, 0, names)
        if not quiet:
            say(f"{name}: no test images of its own: {len(parts['test'])} of {total}, a fifth of each class")
    if "holdout" not in parts:
        parts["train"], parts["holdout"] = _take(parts["train"], holdout, seed, names)
    stats = channel_stats(parts["train"].images)
    return Data(name, parts["train"], parts["holdout"], parts["test"], names, *stats, min(crops))


def _crop_pct(image: Any, img_size: int | None) -> float:
    """How an image is cropped: a Pillow image as files are unless it has the right size, an array not at all."""
    from PIL.Image import Image

    return CROP_PCT if img_size and isinstance(image, Image) and image.size != (img_size, img_size) else 1.0


def _take(images: ImageSet, amount: float | int, seed: int, classes: list[str]) -> tuple[ImageSet, ImageSet]:
    rest, taken = stratified(images.labels, amount, generator(seed, Stream.SPLIT), classes)
    return images.subset(rest), images.subset(taken)


def _read(items: Any, what: str, img_size: int | None, bad: BadImages, crops: set[float]) -> list[tuple[Tensor, int]]:
    found: list[tuple[Tensor, int]] = []
    with progress("read", len(items), bad.quiet or len(items) < FEW) as report:
        for index in range(len(items)):
            try:
                image, label = items[index]
            except (OSError, SyntaxError, EOFError, RuntimeError) as error:  # what reading a broken file raises
                bad.add(f"{what}[{index}]", " ".join(str(error).split()) or type(error).__name__)
                continue
            crops.add(_crop_pct(image, img_size))
            found.append((to_bytes(image, img_size, f"{what}[{index}]"), _label(label, f"{what}[{index}]")))
            report(index + 1)
    if not found:
        raise UserError(f"{what}: none of the {len(items)} items can be read; check the dataset")
    return found


def to_bytes(image: Any, img_size: int | None, what: str) -> Tensor:
    """A Pillow image, tensor or array as bytes [C, H, W]."""
    from PIL.Image import Image

    if isinstance(image, Image):
        plain = converted(image, 1 if image.mode in GREY_MODES else 3)
        crop_pct = _crop_pct(image, img_size)
        plain = resize_and_crop(plain, (img_size, img_size), crop_pct) if img_size else plain
        return torch.from_numpy(channels_first(plain).copy())
    pixels = _tensor(image, what)
    if pixels.is_floating_point():
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -SLACK and high <= 1 + SLACK):
            raise UserError(f"{what} has floats from {low:.3g} to {high:.3g}; give 0 to 1, without normalisation")
        pixels = pixels.mul(255).round().clamp(0, 255).to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise UserError(f"{what} is an image of {pixels.dtype}; give uint8, or floats from 0 to 1")
    return resize(pixels[None], img_size)[0] if img_size else pixels


def _tensor(image: Any, what: str) -> Tensor:
    """[C, H, W], of any type of numbers."""
    if isinstance(image, np.ndarray) and image.ndim in (2, 3):
        pixels = image[..., None] if image.ndim == 2 else image
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    if isinstance(image, Tensor) and image.ndim in (2, 3):
        return image[None] if image.ndim == 2 else image
    shape = f" of shape {tuple(image.shape)}" if hasattr(image, "shape") else ""
    raise UserError(f"{what} is a {type(image).__name__}{shape}; give a Pillow image, a (C, H, W) tensor or an array")


def _label(label: Any, what: str) -> int:
    try:
        return int(label.item() if isinstance(label, (Tensor, np.generic)) else label.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise UserError(f"{what} has the label {label!r}; give a class number") from None


def _stacked(parts: dict[str, list[tuple[Tensor, int]]], name: str) -> dict[str, ImageSet]:
    """One shape for all: grey images among coloured ones get three equal channels."""
    channels = {len(image) for items in parts.values() for image, _ in items}
    repeats = 3 if channels == {1, 3} else 1
    shapes = {
        (len(image) * (repeats if len(image) == 1 else 1), *image.shape[1:])
        for items in parts.values()
        for image, _ in items
    }
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise UserError(f"{name} has images of shape {first} and {second}; give img_size to make them of one size")
    (shape,) = shapes
    return {
        part: ImageSet(
            torch.stack([image.expand(shape) for image, _ in items]), torch.tensor([label for _, label in items])
        )
        for part, items in parts.items()
    }


def _class_names(train: Any, classes: Sequence[str] | None, labels: Tensor) -> list[str]:
    """As given, or as the dataset has them, or numbers."""
    found = classes if classes is not None else getattr(train, "classes", None)
    count = int(labels.max()) + 1
    if classes is None and not (isinstance(found, (list, tuple)) and len(found) >= count):
        return [str(number) for number in range(count)]
    return [str(one) for one in found or ()]


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
