"""Image sets in memory: bytes and labels in three parts, checked once, when they are made.

Also how a set is split into these parts: those that its author does not provide are made here, balanced over classes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Generic, NotRequired, Protocol, Self, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.data.options import HoldoutAmount
from nasformer.errors import UserError
from nasformer.utils.progress import say
from nasformer.utils.rng import Purpose, generator
from nasformer.utils.tables import html_row, html_table

CHUNK = 512  # images turned to float at a time, to keep memory small
TEST_FRACTION = 0.2
SHOWN_CLASSES = 20  # in notebooks


@dataclass
class Pixels:
    """Images of a batch (uint8, b x C x H x W) and their labels.

    Where they differ in size, each lies in the upper left corner of its slot, and `sizes` (b x 2, on the CPU) has
    their rows and columns.
    """

    images: Tensor
    labels: Tensor
    sizes: Tensor | None = None


@dataclass
class ImageSet:
    """Images (uint8, N x C x H x W) and their labels (int64, N)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            actual = f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            raise UserError(f"images are {actual}; give uint8 of shape (N, C, H, W)")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            actual = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise UserError(f"labels are {actual}; give int64 of shape (N,)")
        if len(self.images) != len(self.labels):
            raise UserError(f"{len(self.images)} images but {len(self.labels)} labels; give one label for each image")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageSet({len(self):,} images of {' x '.join(map(str, self.images.shape[1:]))})"

    def to(self, device: torch.device | str) -> ImageSet:
        return ImageSet(self.images.to(device), self.labels.to(device))

    def batches(self, parts: Iterable[Tensor], replace: bool = False) -> Iterator[Pixels]:
        """The images of these numbers, part by part. `replace` is for files that cannot be read; here all can."""
        for part in parts:
            where = send(part, self.images.device)
            yield Pixels(self.images[where], self.labels[where])

    def subset(self, indices: Tensor) -> ImageSet:
        return ImageSet(self.images[indices], self.labels[indices])

    def __add__(self, other: ImageSet) -> ImageSet:
        return ImageSet(torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels]))

    def resized(self, size: int | None) -> ImageSet:
        return ImageSet(resize(self.images, size), self.labels) if size else self


@dataclass
class UncroppedSet:
    """Images of different sizes (uint8, C x H x W each) and their labels; `fill` is the colour that pads them."""

    images: list[Tensor]
    labels: Tensor
    fill: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> UncroppedSet:
        images = [image.to(device) for image in self.images]
        return UncroppedSet(images, self.labels.to(device), self.fill.to(device))

    def batches(self, parts: Iterable[Tensor], replace: bool = False) -> Iterator[Pixels]:
        for part in parts:
            images, sizes = pad([self.images[number] for number in part.tolist()], self.fill)
            yield Pixels(images, self.labels[send(part, self.labels.device)], sizes)


def pad(images: list[Tensor], fill: Tensor) -> tuple[Tensor, Tensor]:
    """One tensor of images of different sizes, each in its upper left corner, and their sizes."""
    sizes = torch.tensor([image.shape[-2:] for image in images])
    height, width = sizes.amax(0).tolist()
    padded = fill.view(1, -1, 1, 1).expand(len(images), -1, height, width).contiguous()
    corners = [slot[:, :rows, :columns] for slot, (rows, columns) in zip(padded, sizes.tolist(), strict=True)]
    torch._foreach_copy_(corners, images)
    return padded, sizes


def fill_colour(mean: tuple[float, ...]) -> Tensor:
    """The colour (uint8) of pixels outside an image: the mean."""
    return torch.tensor([round(255 * value) for value in mean], dtype=torch.uint8)


@dataclass
class Data:
    """A dataset of square images in three parts that share no image.

    Train on `train`, choose (architectures, hyper-parameters) on `holdout`, report on `test` and use it for
    nothing else. `mean` and `std` are per channel, for pixels in 0..1; `crop_pct` says how images were cropped
    (see `Preprocessing`). `uncropped` has the training images as they were before, for crops at random of the whole;
    None: `train` has them.
    """

    name: str
    train: ImageSet
    holdout: ImageSet
    test: ImageSet
    classes: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    uncropped: UncroppedSet | None = None

    def __post_init__(self) -> None:
        check_filled(self.train, f"{self.name}: train")
        check_filled(self.test, f"{self.name}: test")
        shapes = {tuple(part.images.shape[1:]) for part in (self.train, self.holdout, self.test)}
        if len(shapes) > 1:
            raise UserError(f"{self.name}: parts differ in image shape {sorted(shapes)}; give all parts one shape")
        _, height, width = self.train.images.shape[1:]
        if height != width:
            raise UserError(f"{self.name}: images are {height}x{width}, not square; give img_size to crop them")
        for name, part in (("train", self.train), ("holdout", self.holdout), ("test", self.test)):
            check_labels(part.labels, self.num_classes, f"{self.name}: {name}")

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self._parts().items())
        shape = f"{self.in_chans} x {self.img_size} x {self.img_size}"
        return f"Data({self.name!r}, {counts} images of {shape}, {self.num_classes} classes)"

    def _repr_html_(self) -> str:
        """Parts and the first classes, for notebooks."""
        more = f" and {self.num_classes - SHOWN_CLASSES} more" if self.num_classes > SHOWN_CLASSES else ""
        rows = [html_row([f"{name} images", count]) for name, count in self._parts().items()]
        rows.append(html_row([f"{self.num_classes} classes", ", ".join(self.classes[:SHOWN_CLASSES]) + more]))
        title = f"<b>{escape(self.name)}</b>: {self.in_chans} x {self.img_size} x {self.img_size} pixels"
        return f"<div>{title}{html_table(['', ''], rows)}</div>"

    def _parts(self) -> dict[str, str]:
        parts = {"train": self.train, "held-out": self.holdout, "test": self.test}
        return {name: f"{len(part):,}" for name, part in parts.items()}

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def in_chans(self) -> int:
        return self.train.images.shape[1]

    @property
    def img_size(self) -> int:
        return self.train.images.shape[-1]


def check_filled(part: ImageSet, what: str) -> None:
    if not len(part):
        raise UserError(f"{what} is empty; give it at least one image")


def check_labels(labels: Tensor, num_classes: int, what: str) -> None:
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        actual = f"{int(labels.min())}..{int(labels.max())}"
        raise UserError(f"{what} labels are {actual}, not 0..{num_classes - 1}; renumber the classes from 0")


def check_classes(classes: list[str], what: str) -> None:
    if len(classes) == 1:
        raise UserError(f"{what} has one class only, {classes[0]!r}; a classifier needs two or more")


# Splits


class Labelled(Protocol):
    """Interface of labelled images that can be split, in memory or in files."""

    labels: Tensor

    def __len__(self) -> int: ...
    def subset(self, indices: Tensor) -> Self: ...
    def __add__(self, other: Self) -> Self: ...


Images = TypeVar("Images", bound=Labelled)


@dataclass
class Splits(Generic[Images]):
    """Three parts that share no image; `notes` for the user say how they were made."""

    train: Images
    holdout: Images
    test: Images
    classes: list[str]
    notes: list[str] = field(default_factory=list)

    def parts(self) -> tuple[Images, Images, Images]:
        return self.train, self.holdout, self.test

    def report(self, name: str, quiet: bool) -> None:
        """Says how the parts of the set of this name were made."""
        for note in [] if quiet else self.notes:
            say(f"{name}: {note}")

    def __len__(self) -> int:
        return sum(map(len, self.parts()))


class SplitAmounts(TypedDict):
    """Arguments of `make_splits`: how many images are held out, by which seed, and how many are trained on."""

    holdout: float | str
    seed: int
    train_images: NotRequired[int | None]


def make_splits(
    train: Images,
    val: Images | None,
    test: Images | None,
    classes: list[str],
    *,
    holdout: float | str,
    seed: int,
    train_images: int | None = None,
) -> Splits[Images]:
    """The parts of a set that its author has split into train and, perhaps, val and test.

    The test part is the same for every seed; the hold-out depends on the seed, but not on `train_images`.

    Args:
        val: The hold-out as it is, whatever its size; but with holdout 0 it is trained on.
        test: None takes a fifth of each class out of train.
        holdout: How many training images to hold out (see `HoldoutAmount`).
        train_images: How many of the training images that are left to keep; None keeps all.
    """
    notes = list[str]()
    if not test:  # None, or without any image
        rest, taken = stratified(train.labels, TEST_FRACTION, generator(0, Purpose.SPLIT), classes)
        train, test = train.subset(rest), train.subset(taken)
        notes.append(f"no test images of its own: {len(taken)} of {len(rest) + len(taken)}, a fifth of each class")
    if val and not HoldoutAmount.parse(holdout).value:
        notes.append(f"nothing is held out: the {len(val)} validation images are trained on as well")
        train, val = train + val, None
    if not val:
        rest, taken = stratified(train.labels, holdout, generator(seed, Purpose.SPLIT), classes)
        train, val = train.subset(rest), train.subset(taken)
    if train_images is not None:
        notes.append(f"trained on {train_images} of {len(train)} images, as train_images asks")
        train = train.subset(balanced_subset(train.labels, train_images, generator(seed, Purpose.SUBSET)))
    return Splits(train, val, test, classes, notes)


def stratified(
    labels: Tensor, amount: float | str, source: torch.Generator, classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split sample numbers into (rest, taken), both ascending.

    Args:
        amount: How many to take (see `HoldoutAmount`). A share takes ceil(share * N) samples in all, and at least one
            of each class that has two or more. A number in all is shared out evenly. A class always keeps a sample.
        classes: Names for the error message.

    >>> rest, taken = stratified(torch.tensor([0] * 8 + [1] * 4), 0.25, generator(0))
    >>> len(rest), (taken < 8).sum().item(), (taken >= 8).sum().item()
    (9, 2, 1)
    """
    counts, holdout = torch.bincount(labels), HoldoutAmount.parse(amount)
    if holdout.unit == "share":
        quota = _share_quota(counts, holdout.value)
    elif holdout.unit == "per class":
        quota = _class_quota(counts, int(holdout.value), classes)
    else:
        spare = (counts - 1).clamp(min=0)
        if holdout.value > int(spare.sum()):
            raise UserError(
                f"cannot hold out {holdout.value:g} images: only {int(spare.sum())} can be spared, since every class "
                "keeps one for training; hold out fewer"
            )
        quota = _even_quota(spare, int(holdout.value))
    return _take(labels, quota, source)


def balanced_subset(labels: Tensor, images: int, source: torch.Generator) -> Tensor:
    """Indices of `images` samples, ascending, equally many of each class where there are enough.

    A larger subset by the same generator holds the smaller one.

    >>> balanced_subset(torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), 6, generator(0)).shape
    torch.Size([6])
    """
    counts = torch.bincount(labels)
    if images > len(labels):
        raise UserError(f"train_images is {images}, but there are only {len(labels)} to train on; give fewer")
    if images < (present := int((counts > 0).sum())):
        raise UserError(f"train_images is {images}, but there are {present} classes; give one for each at least")
    return _take(labels, _even_quota(counts, images), source)[1]


def _take(labels: Tensor, quota: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random sample numbers by the quota of each class: (rest, taken)."""
    counts = torch.bincount(labels)
    shuffled = torch.randperm(len(labels), generator=source)
    # Sorting by class keeps the random order within each, of which the first `quota` are taken.
    grouped = shuffled[labels[shuffled].argsort(stable=True)]
    start = counts.cumsum(0) - counts
    rank_in_class = torch.arange(len(labels)) - start[labels[grouped]]
    is_taken = rank_in_class < quota[labels[grouped]]
    return grouped[~is_taken].sort().values, grouped[is_taken].sort().values


def _share_quota(counts: Tensor, share: float) -> Tensor:
    """Share out ceil(share * N) by largest remainder, but leave a class on both sides where it can."""
    if share == 0:
        return torch.zeros_like(counts)
    exact = counts.double() * share
    quota = exact.floor().long()
    missing = math.ceil(round(int(counts.sum()) * share, 6)) - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:missing]] += 1
    return torch.minimum(quota.clamp(min=1), (counts - 1).clamp(min=0))


def _class_quota(counts: Tensor, amount: int, classes: Sequence[str] | None) -> Tensor:
    """The same amount of every class; refuses one that would leave a class nothing."""
    smallest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    if int(counts[smallest]) <= amount:  # of Python: the amount may be beyond all tensors
        name = repr(classes[smallest]) if classes else str(smallest)
        reason = f"class {name} has only {int(counts[smallest])}"
        raise UserError(
            f"cannot hold out {amount} images per class: {reason}; hold out fewer or a fraction such as 0.1"
        )
    return counts.clamp(max=amount)


def _even_quota(available: Tensor, total: int) -> Tensor:
    """Divide a number evenly among classes, as far as each has enough; the first ones get the remainder.

    >>> _even_quota(torch.tensor([9, 2, 9]), 11).tolist()
    [5, 2, 4]
    """
    # The highest level at which every class can give as many as that, or all it has, without exceeding the total.
    levels = range(int(available.max()) + 1)
    level = bisect_right(levels, total, key=lambda level: int(available.clamp(max=level).sum())) - 1
    quota = available.clamp(max=level)
    quota[(available > level).nonzero().flatten()[: total - int(quota.sum())]] += 1
    return quota


# Pixels


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats of about zero mean and unit variance, given the mean and std of pixels in 0..1."""
    shift, scale = send(torch.tensor([mean, std]) * 255, images.device).view(2, -1, 1, 1)
    return images.float().sub_(shift).div_(scale)


def send(small: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor to a device without waiting for its work in progress, as a plain `to` would.

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
