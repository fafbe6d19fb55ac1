"""Data from any `torch.utils.data.Dataset` of (image, class number) pairs: each item is asked for once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import GREY_MODES, channels_first, converted
from nasformer.data.files import FEW, BadImages
from nasformer.data.images import Data, ImageSet, channel_stats, check_classes, make_splits, resize
from nasformer.data.options import MAX_BAD
from nasformer.data.preprocessing import CROP_PCT, resize_and_crop
from nasformer.errors import UserError
from nasformer.utils.progress import progress, say

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
    given = {part: items for part, items in {"train": train, "holdout": val, "test": test}.items() if items is not None}
    crops = {1.0}
    read = {part: _read_items(items, f"{name}: {part}", img_size, bad, crops) for part, items in given.items()}
    parts = _stack(read, name)
    total = sum(len(items) for items in given.values())
    bad.check(total, name)
    bad.tell(total, name)
    names = _class_names(train, classes, parts["train"].labels)
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
    for note in [] if quiet else splits.notes:
        say(f"{name}: {note}")
    return Data(name, *splits.parts(), names, *channel_stats(splits.train.images), min(crops))


def _read_items(
    items: Any, what: str, img_size: int | None, bad: BadImages, crops: set[float]
) -> list[tuple[Tensor, int]]:
    """The items as bytes and class numbers; adds to `crops` how each was cropped."""
    read: list[tuple[Tensor, int]] = []
    with progress("read", len(items), bad.quiet or len(items) < FEW) as report:
        for index in range(len(items)):
            item = f"{what}[{index}]"
            try:
                image, label = items[index]
            except READ_ERRORS as error:
                bad.add(item, " ".join(str(error).split()) or type(error).__name__)
                continue
            crops.add(_crop_pct(image, img_size))
            read.append((to_bytes(image, img_size, item), _class_number(label, item)))
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
    """[C, H, W], of any type of numbers."""
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


def _stack(parts: dict[str, list[tuple[Tensor, int]]], name: str) -> dict[str, ImageSet]:
    """One shape for all: grey images among coloured ones get three equal channels."""
    shapes = {tuple(image.shape) for items in parts.values() for image, _ in items}
    if {channels for channels, *_ in shapes} == {1, 3}:
        shapes = {(3, *size) for _, *size in shapes}
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
    names = classes if classes is not None else getattr(train, "classes", None)
    count = int(labels.max()) + 1
    if classes is None and not (isinstance(names, (list, tuple)) and len(names) >= count):
        return [str(number) for number in range(count)]
    return [str(name) for name in names or ()]
