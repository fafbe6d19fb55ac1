"""Datasets as one .npz file of plain arrays, each checked, so that its author learns what to change."""

from __future__ import annotations

import zipfile
import zlib

import numpy as np
import torch
from torch import Tensor

from nasformer.data.images import ImageSet, Parts, check_labels
from nasformer.errors import UserError

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
