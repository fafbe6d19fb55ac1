"""Image sets in memory: bytes and labels, checked once when they are made, so that nothing later has to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.errors import UserError

# ----------------------------------------------------------------------------------------------------------------------
# Class-balanced splits: take some samples of every class out of a set.
# ----------------------------------------------------------------------------------------------------------------------


def stratified(
    labels: Tensor, amount: float | int, source: torch.Generator, classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split sample numbers into (rest, taken), both ascending.

    Args:
        amount: an int takes so many samples of every class, a float that fraction of every class. A fraction
            takes ceil(fraction * N) samples in all, and at least one of each class that has two or more.
        classes: names for the error message.

    >>> from nasformer.utils.rng import generator
    >>> rest, taken = stratified(torch.tensor([0] * 8 + [1] * 4), 0.25, generator(0))
    >>> len(rest), (taken < 8).sum().item(), (taken >= 8).sum().item()
    (9, 2, 1)
    """
    counts = torch.bincount(labels)
    quota = _per_class(counts, amount, classes) if isinstance(amount, int) else _fraction(counts, amount)
    shuffled = torch.randperm(len(labels), generator=source)
    grouped = shuffled[labels[shuffled].argsort(stable=True)]
    start = counts.cumsum(0) - counts
    place = torch.arange(len(labels)) - start[labels[grouped]]
    is_taken = place < quota[labels[grouped]]
    return grouped[~is_taken].sort().values, grouped[is_taken].sort().values


def _per_class(counts: Tensor, amount: int, classes: Sequence[str] | None) -> Tensor:
    if amount < 0:
        raise UserError(f"cannot hold out {amount} images per class; give 0 or more, or a fraction such as 0.1")
    smallest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    if amount and counts[smallest] <= amount:
        name = repr(classes[smallest]) if classes else str(smallest)
        found = f"class {name} has only {int(counts[smallest])}"
        raise UserError(f"cannot hold out {amount} images per class: {found}; hold out fewer or a fraction such as 0.1")
    return counts.clamp(max=amount)


def _fraction(counts: Tensor, fraction: float) -> Tensor:
    """Share out ceil(fraction * N) by largest remainder, but leave a class on both sides where it can."""
    if not 0 <= fraction < 1:
        raise UserError(
            f"hold-out fraction {fraction} is not in [0, 1); give a fraction, or an int for images per class"
        )
    if fraction == 0:
        return torch.zeros_like(counts)
    exact = counts.double() * fraction
    quota = exact.floor().long()
    missing = math.ceil(round(int(counts.sum()) * fraction, 6)) - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:missing]] += 1
    return torch.minimum(quota.clamp(min=1), (counts - 1).clamp(min=0))


CHUNK = 512  # images turned to float at a time, to keep memory small


@dataclass
class ImageSet:
    """Images (uint8, N x C x H x W) and their labels (int64, N)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            found = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise UserError(f"images are {found}; give uint8 of shape (N, C, H, W)")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            found = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise UserError(f"labels are {found}; give int64 of shape (N,)")
        if len(self.images) != len(self.labels):
            raise UserError(f"{len(self.images)} images but {len(self.labels)} labels; give one label for each image")

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> ImageSet:
        return ImageSet(self.images.to(device), self.labels.to(device))

    def subset(self, indices: Tensor) -> ImageSet:
        return ImageSet(self.images[indices], self.labels[indices])

    def __add__(self, other: ImageSet) -> ImageSet:
        return ImageSet(torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels]))


@dataclass
class Parts:
    """What a source gives. Without a hold-out of its own, one is taken out of train."""

    train: ImageSet
    test: ImageSet
    classes: list[str]
    holdout: ImageSet | None = None


@dataclass
class Data:
    """A dataset of square images in three parts that share no image.

    Train on `train`, choose (architectures, hyper-parameters) on `holdout`, report on `test` and use it for
    nothing else. `mean` and `std` are per channel, for pixels in 0..1; `crop_pct` says how images were cropped
    (see `Preprocessing`).
    """

    name: str
    train: ImageSet
    holdout: ImageSet
    test: ImageSet
    classes: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0

    def __post_init__(self) -> None:
        check_filled(self.train, f"{self.name}: train")
        check_filled(self.test, f"{self.name}: test")
        shapes = {tuple(s.images.shape[1:]) for s in (self.train, self.holdout, self.test)}
        if len(shapes) > 1:
            raise UserError(f"{self.name}: parts differ in image shape {sorted(shapes)}; give all parts one shape")
        _, height, width = self.train.images.shape[1:]
        if height != width:
            raise UserError(f"{self.name}: images are {height}x{width}, not square; give img_size to crop them")
        for part, images in (("train", self.train), ("holdout", self.holdout), ("test", self.test)):
            check_labels(images.labels, self.num_classes, f"{self.name}: {part}")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def in_chans(self) -> int:
        return self.train.images.shape[1]

    @property
    def img_size(self) -> int:
        return self.train.images.shape[-1]


def check_filled(images: ImageSet, what: str) -> None:
    if not len(images):
        raise UserError(f"{what} is empty; give it at least one image")


def check_labels(labels: Tensor, num_classes: int, what: str) -> None:
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        found = f"{int(labels.min())}..{int(labels.max())}"
        raise UserError(f"{what} labels are {found}, not 0..{num_classes - 1}; renumber the classes from 0")


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats of about zero mean and unit variance, given the mean and std of pixels in 0..1."""
    shift, scale = send(torch.tensor([mean, std]) * 255, images.device).view(2, -1, 1, 1)
    return images.float().sub_(shift).div_(scale)


def send(small: Tensor, device: torch.device) -> Tensor:
    """Copy numbers to a device without waiting for what it is doing, as a plain `to` does.

    That is safe from ordinary (not pinned) memory, which the driver copies before the call returns.
    """
    return small.to(device, non_blocking=True)


def channel_stats(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, for pixels in 0..1.

    >>> channel_stats(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
    ((0.5,), (0.5,))
    """
    total = torch.zeros(images.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for chunk in images.split(CHUNK):
        pixels = chunk.double().div_(255)
        total += pixels.sum(dim=(0, 2, 3))
        squares += pixels.square_().sum(dim=(0, 2, 3))
    count = images.numel() // images.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    std[std < 1e-6] = 1.0  # a constant channel (an empty band, say) must not be divided by zero
    return tuple(mean.tolist()), tuple(std.tolist())


def resize(images: Tensor, size: int) -> Tensor:
    """Scale the short side to `size` (bicubic, antialiased) and crop the centre of the long side."""

    def pieces() -> Iterator[Tensor]:
        height, width = images.shape[-2:]
        scale = size / min(height, width)
        target = (max(size, round(height * scale)), max(size, round(width * scale)))
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        for chunk in images.split(CHUNK):
            scaled = F.interpolate(chunk.float(), target, mode="bicubic", antialias=True)
            cropped = scaled[..., top : top + size, left : left + size]
            yield cropped.round_().clamp_(0, 255).to(torch.uint8)

    return images if tuple(images.shape[-2:]) == (size, size) else torch.cat(list(pieces()))
