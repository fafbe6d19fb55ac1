"""Any `torch.utils.data.Dataset` of (image, class number) pairs to `Data`: each item is asked for once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nasformer.data.bad import MAX_BAD, BadImages
from nasformer.data.files import TEST_FRACTION, check_classes
from nasformer.data.image_files import FEW, channels_first, resize_and_crop
from nasformer.data.images import Data, ImageSet, channel_stats, resize
from nasformer.data.read import GREY_MODES, converted
from nasformer.data.rng import Stream, generator
from nasformer.data.split import stratified
from nasformer.errors import UserError
from nasformer.progress import progress, say

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
    parts = _stacked({part: _read(items, f"{name}: {part}", img_size, bad) for part, items in given.items()}, name)
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
    return Data(name, parts["train"], parts["holdout"], parts["test"], names, *stats)


def _take(images: ImageSet, amount: float | int, seed: int, classes: list[str]) -> tuple[ImageSet, ImageSet]:
    rest, taken = stratified(images.labels, amount, generator(seed, Stream.SPLIT), classes)
    return images.subset(rest), images.subset(taken)


def _read(items: Any, what: str, img_size: int | None, bad: BadImages) -> list[tuple[Tensor, int]]:
    found: list[tuple[Tensor, int]] = []
    with progress("read", len(items), bad.quiet or len(items) < FEW) as report:
        for index in range(len(items)):
            try:
                image, label = items[index]
            except (OSError, SyntaxError, EOFError, RuntimeError) as error:  # what reading a broken file raises
                bad.add(f"{what}[{index}]", " ".join(str(error).split()) or type(error).__name__)
                continue
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
        return torch.from_numpy(channels_first(resize_and_crop(plain, img_size) if img_size else plain).copy())
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
