"""Batches of images: which samples are in batch `step`, and what they look like.

Both are pure functions of (seed, step), so that a training can start at any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from nasformer.data.augment import Augment
from nasformer.data.decode import Preprocessing
from nasformer.data.images import Data, ImageSet, Pixels, UncroppedSet, normalise
from nasformer.data.options import AugmentOptions
from nasformer.data.streaming import ImageStream, StreamedData
from nasformer.errors import UserError
from nasformer.utils.rng import Purpose, generator


def clamp_batch(n: int, batch_size: int, world: int = 1) -> int:
    """The global batch size in use: no larger than the set.

    A larger one becomes the whole set (down to a multiple of `world`), so that an epoch is one batch.

    >>> clamp_batch(100, 32), clamp_batch(5, 32), clamp_batch(5, 32, world=2)
    (32, 5, 4)
    """
    if n == 0:
        raise UserError("the training set is empty; give a source with at least one training image")
    if batch_size < 1 or batch_size % world:
        raise UserError(f"batch size {batch_size} cannot be split over {world} processes; use a multiple of {world}")
    if n < world:
        raise UserError(f"{n} training images are too few for {world} processes; start fewer processes")
    return min(batch_size, n // world * world)


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Full batches in an epoch; the ragged end is dropped.

    >>> steps_per_epoch(100, 32)
    3
    """
    return n // clamp_batch(n, batch_size)


def batch_indices(n: int, batch_size: int, step: int, seed: int, repeats: int = 1) -> Tensor:
    """Indices of the samples in global batch `step`.

    With `repeats` > 1 (repeated augmentation, as in DeiT) every sample comes that many times before the next
    one, while an epoch keeps its n // batch_size batches and so sees about one in `repeats` of the samples.

    >>> sorted(batch_indices(4, 2, 0, seed=0).tolist() + batch_indices(4, 2, 1, seed=0).tolist())
    [0, 1, 2, 3]
    """
    batch = clamp_batch(n, batch_size)
    epoch, number = divmod(step, n // batch)
    positions = torch.arange(number * batch, (number + 1) * batch)
    # The copies of a sample are dealt round the batch instead of standing side by side, since neighbours are
    # mixed with each other; and a rank's part holds different samples, as with DeiT's strided sampler.
    dealt = torch.cat([positions[copy::repeats] for copy in range(repeats)])
    return _epoch_order(n, epoch, seed)[dealt // repeats]


def calibration_indices(n: int, images: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """The first `images` samples of the first epoch, in batches of nearly equal size, since each counts alike.

    >>> [len(part) for part in calibration_indices(100, images=70, batch_size=32, seed=0)]
    [24, 23, 23]
    """
    count = clamp_batch(n, images)
    return batch_indices(n, count, 0, seed).tensor_split(-(-count // batch_size))


def rank_slice(indices: Tensor, rank: int, world: int) -> Tensor:
    """The contiguous part of a global batch that belongs to one of `world` ranks.

    >>> rank_slice(torch.arange(6), rank=1, world=3)
    tensor([2, 3])
    """
    if len(indices) % world:
        raise UserError(f"a batch of {len(indices)} cannot be split over {world} processes; use a multiple of {world}")
    local = len(indices) // world
    return indices[rank * local : (rank + 1) * local]


@lru_cache(maxsize=4)
def _epoch_order(n: int, epoch: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, Purpose.ORDER, epoch))


# Batches of a dataset


@dataclass(frozen=True)
class ImageText:
    """Images with a text each, as one input of a model: the backbone sees the images, the head also the words.

    Args:
        words: Word indices, [batch, words].
    """

    images: Tensor
    words: Tensor

    is_cuda: ClassVar[bool] = False
    """Evaluation asks for this: it pads the last batch, which only images can have."""

    def __len__(self) -> int:
        return len(self.images)

    def chunk(self, count: int) -> list[ImageText]:
        return [ImageText(*parts) for parts in zip(self.images.chunk(count), self.words.chunk(count), strict=True)]

    @staticmethod
    def split(x: Tensor | ImageText) -> tuple[Tensor, list[Tensor]]:
        """The images, and what the head is given besides their maps."""
        return (x.images, [x.words]) if isinstance(x, ImageText) else (x, [])


Split = Literal["train", "holdout", "test"]
SPLITS: tuple[Split, ...] = ("train", "holdout", "test")
Batch = tuple[Tensor, Tensor]


Share = tuple[int, int]
"""Rank and number of processes: of n processes, process r takes batches r, r + n, r + 2n ..."""
WHOLE: Share = (0, 1)


class BatchSource(Protocol):
    """The interface of data to training and evaluation (see `Batches`)."""

    classes: list[str]

    @property
    def num_classes(self) -> int: ...

    @property
    def in_chans(self) -> int: ...

    @property
    def img_size(self) -> int: ...

    @property
    def held_out(self) -> int:
        """How many images are held out of training."""

    @property
    def test_images(self) -> int:
        """How many images the test split has."""

    @property
    def train_images(self) -> int:
        """How many images are trained on."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation of the images. To use a trained model, set its own before the first batch."""

    @property
    def preprocessing(self) -> Preprocessing:
        """How evaluation prepares images, so that a model can be used elsewhere."""

    @property
    def class_counts(self) -> Tensor:
        """How many training images each class has."""

    @property
    def steps_per_epoch(self) -> int: ...

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Batches of this rank from `start_step` on, without end: normalised images and soft targets."""

    def evaluation(
        self, split: Split, batch_size: int, share: Share = WHOLE, numbers: Tensor | None = None
    ) -> Iterator[Batch]:
        """A whole split once, in a fixed order: normalised images and labels; or a share of its batches.

        Args:
            numbers: Indices of the images to evaluate; None: all.
        """

    def calibration(self, images: int, batch_size: int, share: Share = WHOLE) -> Iterator[Tensor]:
        """Training images, normalised but not augmented: the same random ones each time, or a share of them."""

    def to(self, device: torch.device | str) -> Self:
        """The same images for another device."""


class SplitBatches:
    """Base of batches of a set in three splits: which images the batches of this process have.

    Args:
        splits: The images of "train", "holdout" and "test".
        batch_size: That of all ranks together; it is lowered to the size of the set where that is smaller.
        repeats: How often an image occurs in an epoch (see `batch_indices`).
    """

    def __init__(
        self,
        splits: Mapping[Split, Sized],
        classes: list[str],
        batch_size: int,
        seed: int,
        rank: int,
        world: int,
        device: torch.device | str,
        repeats: int,
    ) -> None:
        self.sizes = {split: len(images) for split, images in splits.items()}
        self.classes, self.batch_size = classes, clamp_batch(self.sizes["train"], batch_size, world)
        self.seed, self.rank, self.world, self.repeats = seed, rank, world, repeats
        self.device = torch.device(device)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def held_out(self) -> int:
        return self.sizes["holdout"]

    @property
    def test_images(self) -> int:
        return self.sizes["test"]

    @property
    def train_images(self) -> int:
        return self.sizes["train"]

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.sizes["train"], self.batch_size)

    def train_part(self, step: int) -> Tensor:
        """The images of this rank's part of global batch `step`."""
        batch = batch_indices(self.sizes["train"], self.batch_size, step, self.seed, self.repeats)
        return rank_slice(batch, self.rank, self.world)

    def evaluation_parts(
        self, split: Split, batch_size: int, share: Share, numbers: Tensor | None = None
    ) -> Sequence[Tensor]:
        """The images of a share of a split's batches, in order; or of these numbers alone."""
        check_split(split, self.held_out)
        chosen = torch.arange(self.sizes[split]) if numbers is None else numbers
        return chosen.split(batch_size)[share[0] :: share[1]]

    def calibration_parts(self, images: int, batch_size: int, share: Share) -> Sequence[Tensor]:
        """The images of a share of the batches for calibration (see `calibration_indices`)."""
        return calibration_indices(self.sizes["train"], images, batch_size, self.seed)[share[0] :: share[1]]

    def to(self, device: torch.device | str) -> Self:
        """The same images for another device."""
        other = copy(self)
        other.device = torch.device(device)
        return other


class Batches(SplitBatches):
    """Batches of a dataset, whose images live on the device as bytes or are read from files.

    >>> from nasformer.data.sources import load_data
    >>> batches = Batches(load_data("digits"), AugmentOptions(padding=1, hflip=0.0), batch_size=64, seed=0)
    >>> x, targets = batches.train(step=1000)
    >>> x.shape, targets.shape, batches.steps_per_epoch
    (torch.Size([64, 1, 8, 8]), torch.Size([64, 10]), 20)
    """

    def __init__(
        self,
        data: Data | StreamedData,
        augment: AugmentOptions,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
    ) -> None:
        splits = dict(zip(SPLITS, (data.train, data.holdout, data.test), strict=True))
        super().__init__(splits, data.classes, batch_size, seed, rank, world, device, repeats)
        self.data = data
        self.augment = Augment(augment, data.mean, data.std, data.num_classes)
        self._on_device: dict[str, ImageSet | UncroppedSet | ImageStream] = {}

    @property
    def streamed(self) -> bool:
        """Whether images are read from files again and again."""
        return isinstance(self.data, StreamedData)

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean to normalise by: that of the augmentation, so that training and evaluation agree."""
        return self.augment.mean

    @mean.setter
    def mean(self, values: tuple[float, ...]) -> None:
        self.augment.mean = values

    @property
    def std(self) -> tuple[float, ...]:
        return self.augment.std

    @std.setter
    def std(self, values: tuple[float, ...]) -> None:
        self.augment.std = values

    @property
    def in_chans(self) -> int:
        return self.data.in_chans

    @property
    def img_size(self) -> int:
        return self.data.img_size

    @property
    def preprocessing(self) -> Preprocessing:
        size, crop_pct = (self.img_size, self.img_size), self.data.crop_pct
        return Preprocessing(size, self.in_chans, crop_pct, mean=self.mean, std=self.std)

    @property
    def class_counts(self) -> Tensor:
        return self.data.train.labels.bincount(minlength=self.num_classes)

    def train(self, step: int) -> Batch:
        """This rank's part of global batch `step`: normalised images and soft targets."""
        (batch,) = self._train_images().batches([self.train_part(step)], replace=True)
        return self._augmented(batch, step)

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        if not self.streamed:
            return map(self.train, count(start_step))
        ahead = self._train_images().batches(map(self.train_part, count(start_step)), replace=True)
        return (self._augmented(batch, step) for step, batch in enumerate(ahead, start_step))

    def _train_images(self) -> ImageSet | UncroppedSet | ImageStream:
        whole = self.augment.options.crop == "resized" and self.data.uncropped is not None
        return self._split("uncropped" if whole else "train")

    def _augmented(self, batch: Pixels, step: int) -> Batch:
        size = None if batch.sizes is None else self.img_size
        return self.augment(batch.images, batch.labels, self.seed, step, self.rank, self.world, batch.sizes, size)

    def evaluation(
        self, split: Split, batch_size: int, share: Share = WHOLE, numbers: Tensor | None = None
    ) -> Iterator[Batch]:
        parts = self.evaluation_parts(split, batch_size, share, numbers)
        for batch in self._split(split).batches(parts):
            yield normalise(batch.images, self.mean, self.std), batch.labels

    def calibration(self, images: int, batch_size: int, share: Share = WHOLE) -> Iterator[Tensor]:
        for batch in self._split("train").batches(self.calibration_parts(images, batch_size, share)):
            yield normalise(batch.images, self.mean, self.std)

    def to(self, device: torch.device | str) -> Self:
        other = super().to(device)
        other._on_device = {}
        return other

    def __getstate__(self) -> dict[str, Any]:
        """The state for other processes: without copies on a device."""
        return {**vars(self), "_on_device": {}}

    def _split(self, split: str) -> ImageSet | UncroppedSet | ImageStream:
        """A part of the data, moved to the device on first use."""
        if split not in self._on_device:
            self._on_device[split] = getattr(self.data, split).to(self.device)
        return self._on_device[split]


def check_split(split: str, held_out: int) -> None:
    """Refuses a split that does not exist or has no images."""
    if split not in SPLITS:
        raise UserError(f"no split {split!r}; give train, holdout or test")
    if split == "holdout" and not held_out:
        raise UserError("no images are held out; load the data with holdout=0.1 or so to evaluate on them")
