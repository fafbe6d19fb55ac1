"""Which samples make up batch `step` of an endless stream: a pure function, so any step can be the first."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nasformer.data.augment import Augment, Mixing
from nasformer.data.decode import BadImage, read_image
from nasformer.data.files import MAX_BAD, Files, ImageFiles
from nasformer.data.images import Data, ImageSet, normalise, send
from nasformer.data.options import AugmentConfig
from nasformer.data.preprocessing import CROP_PCT, Preprocessing
from nasformer.data.sources import open_data
from nasformer.errors import UserError
from nasformer.utils.progress import say
from nasformer.utils.rng import Stream, generator, mix


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
    """Sample numbers of global batch `step`.

    With `repeats` > 1 (repeated augmentation, as in DeiT) every sample comes that many times before the next
    one, while an epoch keeps its n // batch_size batches and so sees about one in `repeats` of the samples.

    >>> sorted(batch_indices(4, 2, 0, seed=0).tolist() + batch_indices(4, 2, 1, seed=0).tolist())
    [0, 1, 2, 3]
    """
    batch = clamp_batch(n, batch_size)
    epoch, position = divmod(step, n // batch)
    places = torch.arange(position * batch, (position + 1) * batch)
    # The copies of a sample are dealt round the batch instead of standing side by side, since neighbours are
    # mixed with each other; and a rank's part holds different samples, as with DeiT's strided sampler.
    dealt = torch.cat([places[copy::repeats] for copy in range(repeats)])
    return _epoch_order(n, epoch, seed)[dealt // repeats]


def calibration_indices(n: int, images: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """The first so many samples of the first epoch, in batches that are nearly equal, since each counts alike.

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
    return torch.randperm(n, generator=generator(seed, Stream.ORDER, epoch))


# ----------------------------------------------------------------------------------------------------------------------
# A dataset in memory, its order and its augmentation, joined: step in, batch on the device out.
# ----------------------------------------------------------------------------------------------------------------------

Split = Literal["train", "holdout", "test"]
Batch = tuple[Tensor, Tensor]


class BatchSource(Protocol):
    """What training and evaluation need of data, in memory (`Batches`) or not (`StreamingFolder`)."""

    @property
    def num_classes(self) -> int: ...

    classes: list[str]
    """Their names."""

    @property
    def in_chans(self) -> int: ...

    @property
    def img_size(self) -> int: ...

    @property
    def held_out(self) -> int:
        """How many images are held out of training."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    """How images are normalised. A trained model wants them as in its training: set them before any batch."""

    @property
    def preprocessing(self) -> Preprocessing:
        """How evaluation prepares images, for whoever uses a model elsewhere."""

    @property
    def steps_per_epoch(self) -> int: ...

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Batches of this rank from `start_step` on, without end: normalised images and soft targets."""

    def evaluation(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """A whole split once, in a fixed order, on every rank: normalised images and labels."""

    def calibration(self, images: int, batch_size: int) -> Iterator[Tensor]:
        """So many training images, normalised but not augmented: always the same random ones, on every rank."""


class Batches:
    """Batches of a dataset that lives on the device as bytes.

    `batch_size` is that of all ranks together; it is lowered to the size of the set where that is smaller.

    >>> from nasformer.data.sources import load_data
    >>> batches = Batches(load_data("digits"), AugmentConfig(padding=1, hflip=0.0), batch_size=64, seed=0)
    >>> x, targets = batches.train(step=1000)
    >>> x.shape, targets.shape, batches.steps_per_epoch
    (torch.Size([64, 1, 8, 8]), torch.Size([64, 10]), 20)
    """

    def __init__(
        self,
        data: Data,
        augment: AugmentConfig,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
    ) -> None:
        self.data, self.classes = data, data.classes
        self.batch_size = clamp_batch(len(data.train), batch_size, world)
        self.seed, self.rank, self.world, self.repeats = seed, rank, world, repeats
        self.device = torch.device(device)
        self.augment = Augment(augment, data.mean, data.std, data.num_classes)
        self._on_device: dict[str, ImageSet] = {}

    @property
    def mean(self) -> tuple[float, ...]:
        """That of the augmentation, so that training and evaluation show images alike."""
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
    def num_classes(self) -> int:
        return self.data.num_classes

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
    def held_out(self) -> int:
        return len(self.data.holdout)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.data.train), self.batch_size)

    def train(self, step: int) -> Batch:
        """This rank's part of global batch `step`: normalised images and soft targets."""
        everything = batch_indices(len(self.data.train), self.batch_size, step, self.seed, self.repeats)
        mine = self._split("train").subset(send(rank_slice(everything, self.rank, self.world), self.device))
        return self.augment(mine.images, mine.labels, self.seed, step, self.rank, self.world)

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        return map(self.train, count(start_step))

    def evaluation(self, split: Split, batch_size: int) -> Iterator[Batch]:
        images = self._split(split)
        for x, labels in zip(images.images.split(batch_size), images.labels.split(batch_size), strict=True):
            yield normalise(x, self.mean, self.std), labels

    def calibration(self, images: int, batch_size: int) -> Iterator[Tensor]:
        for indices in calibration_indices(len(self.data.train), images, batch_size, self.seed):
            yield normalise(self._split("train").images[send(indices, self.device)], self.mean, self.std)

    def _split(self, split: Split) -> ImageSet:
        """A part of the data, moved to the device on first use."""
        if split not in self._on_device:
            images: ImageSet = getattr(self.data, check_split(split, self.held_out))
            self._on_device[split] = images.to(self.device)
        return self._on_device[split]


def check_split(split: str, held_out: int) -> str:
    if split not in ("train", "holdout", "test"):
        raise UserError(f"no split {split!r}; give train, holdout or test")
    if split == "holdout" and not held_out:
        raise UserError("no images are held out; load the data with holdout=0.1 or so to evaluate on them")
    return split


# ----------------------------------------------------------------------------------------------------------------------
# Image folders too big for memory (ImageNet): worker processes decode and augment files as they are needed.
#
# What an item looks like depends on (seed, step, place in the global batch) alone, not on the worker that
# makes it. So batches are the same for any number of workers, and any step can be the first to be decoded.
# A file that cannot be read gives its place to the next one of its class, which is the same one each time.
# ----------------------------------------------------------------------------------------------------------------------

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Key = tuple[int, int]  # which file, and the seed of its augmentation
Bad = tuple[str, str]  # a file that cannot be read, and why
Item = tuple[Tensor | None, int, list[Bad]]  # without an image where none of the files tried can be read
Loaded = tuple[Tensor, Tensor, list[Bad]]


class StreamingFolder:
    """Batches of image files, read from disk.

    Args:
        files: a folder or another source of files (see `open_data`), or what is known of them already, in which
            size, channels, hold-out and bad images are settled.
        augment: crop must be "resized" and rotate 0: each image is augmented by timm's own transforms. Or nothing
            at all (crop "none", hflip 0), which shows images as in evaluation.
        batch_size: of all ranks together.
        holdout: images per class (int) or fraction (float) of train that are set aside and never trained on.
        workers: processes that decode; 0 decodes in this one.
        mean, std: None for ImageNet's, in grey their means over the colours.
        max_bad: the share of files that may be unreadable before it is an error.
    """

    def __init__(
        self,
        files: str | Path | ImageFiles,
        augment: AugmentConfig,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
        *,
        img_size: int = 224,
        holdout: float | int = 10,
        workers: int = 4,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        max_bad: float = MAX_BAD,
    ) -> None:
        if not isinstance(files, ImageFiles):
            files = find_files(str(files), holdout=holdout, seed=seed, img_size=img_size, max_bad=max_bad)
        check_streamable(files, augment)
        files.bad.tell(len(files.splits), files.name)
        splits = files.splits
        self.classes, self.in_chans, self.bad, self._total = splits.classes, files.channels, files.bad, len(splits)
        self._name, self._files = files.name, {"train": splits.train, "holdout": splits.holdout, "test": splits.test}
        self.batch_size = clamp_batch(len(splits.train), batch_size, world)
        self.seed, self.rank, self.world, self.repeats = seed, rank, world, repeats
        self.device, self.workers, self.img_size = torch.device(device), workers, files.size
        self.augment, self.mixing = augment, Mixing.of(augment, self.num_classes)
        self.mean = mean or (IMAGENET_MEAN if self.in_chans == 3 else (sum(IMAGENET_MEAN) / 3,))
        self.std = std or (IMAGENET_STD if self.in_chans == 3 else (sum(IMAGENET_STD) / 3,))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def preprocessing(self) -> Preprocessing:
        size = self.img_size
        crop_pct = size / math.floor(size / CROP_PCT)  # timm rounds the resized side down
        return Preprocessing((size, size), self.in_chans, crop_pct, mean=self.mean, std=self.std)

    @property
    def held_out(self) -> int:
        return len(self._files["holdout"])

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self._files["train"]), self.batch_size)

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches from `start_step` on, without end: normalised images and soft targets."""
        items = self._items("train", self._train_transform(), replace=True)
        for step, (x, labels) in enumerate(self._load(items, self._train_keys(start_step)), start_step):
            yield self.mixing(x, labels, self.seed, step)

    def evaluation(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """A whole split once, in a fixed order, on every rank; files that cannot be read are left out."""
        items = self._items(check_split(split, self.held_out), self._eval_transform())
        keys = [[(index, 0) for index in part.tolist()] for part in torch.arange(len(items.files)).split(batch_size)]
        return self._load(items, keys)

    def calibration(self, images: int, batch_size: int) -> Iterator[Tensor]:
        """So many training images, not augmented; files that cannot be read are left out."""
        items = self._items("train", self._eval_transform())
        parts = calibration_indices(len(items.files), images, batch_size, self.seed)
        keys = [[(index, 0) for index in part.tolist()] for part in parts]
        return (x for x, _ in self._load(items, keys))

    def _train_keys(self, start_step: int) -> Iterator[list[Key]]:
        for step in count(start_step):
            everything = batch_indices(len(self._files["train"]), self.batch_size, step, self.seed, self.repeats)
            mine = rank_slice(everything, self.rank, self.world).tolist()
            first = self.rank * len(mine)
            yield [(index, mix(self.seed, Stream.ITEM, step, first + place)) for place, index in enumerate(mine)]

    def _items(self, split: str, transform: Callable[[Any], Tensor], replace: bool = False) -> _Items:
        return _Items(self._files[split], transform, self.in_chans, replace)

    def _load(self, items: _Items, keys: Iterable[list[Key]]) -> Iterator[Batch]:
        loader = DataLoader(
            items,
            batch_sampler=keys,
            collate_fn=_collate,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=generator(self.seed),  # else a loader takes a number from the global generator
        )
        for x, labels, bad in loader:
            self._note(bad)
            if len(x):
                yield x.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _note(self, bad: list[Bad]) -> None:
        """Tell of each unreadable file once, until they are too many."""
        for path, reason in bad:
            if self.bad.add(path, reason) and not self.bad.quiet:
                say(f"cannot read {path} ({reason}); left out")
        self.bad.check(self._total, self._name)

    def _train_transform(self) -> Callable[[Any], Tensor]:
        from timm.data import create_transform

        if self.augment.crop == "none":
            return self._eval_transform()
        mean, std = self._colours()
        transform = create_transform(
            self.img_size,
            is_training=True,
            hflip=self.augment.hflip,
            color_jitter=self.augment.color_jitter,
            auto_augment=self.augment.randaugment or None,
            re_prob=self.augment.erasing,
            re_mode="pixel",
            interpolation="bicubic",
            mean=mean,
            std=std,
        )
        for operation in (op for part in transform.transforms for op in getattr(part, "ops", ())):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
        return transform

    def _eval_transform(self) -> Callable[[Any], Tensor]:
        from timm.data import create_transform

        mean, std = self._colours()
        return create_transform(self.img_size, interpolation="bicubic", crop_pct=CROP_PCT, mean=mean, std=std)

    def _colours(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of three channels: timm's transforms are for RGB, also where an image is grey."""
        return self.mean * (3 // self.in_chans), self.std * (3 // self.in_chans)


def find_files(source: str, **options: Any) -> ImageFiles:
    """Files of a source (see `open_data`), which must have some."""
    found = open_data(source, **options)
    if not isinstance(found, ImageFiles):
        raise UserError(f"{source} is not made of image files, so it cannot be streamed; leave --stream out")
    return found


def check_streamable(files: ImageFiles, augment: AugmentConfig) -> None:
    plain = augment.crop == "none" and not (augment.hflip or augment.randaugment or augment.color_jitter)
    if augment.rotate or not (augment.crop == "resized" or (plain and not augment.erasing)):
        raise UserError(f"{files.name} is streamed, with crop=resized and rotate=0 only; set train.augment so")
    if files.channels > 3:
        raise UserError(f"{files.name} is streamed, with 1 or 3 channels only; leave --in-chans out")


class _Items(Dataset[Item]):
    """Images by key: a grey one goes through the transforms in RGB."""

    def __init__(self, files: Files, transform: Callable[[Any], Tensor], channels: int, replace: bool) -> None:
        self.files, self.transform, self.channels, self.replace = files, transform, channels, replace

    def __getitem__(self, key: Key) -> Item:
        index, seed = key
        bad = list[Bad]()
        for place in self._candidates(index):
            try:
                image = read_image(self.files.path(place), self.channels)
            except BadImage as error:
                bad.append((self.files.path(place), str(error)))
                continue
            with seeded(seed):
                return self.transform(image.convert("RGB"))[: self.channels], int(self.files.labels[place]), bad
        return None, 0, bad

    def _candidates(self, index: int) -> Iterator[int]:
        """The file itself; to replace it, those after it in turn, first the ones of its class."""
        yield index
        if self.replace:
            after = torch.arange(1, len(self.files)).add(index).remainder(len(self.files))
            same = self.files.labels[after] == self.files.labels[index]
            yield from after[same].tolist() + after[~same].tolist()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed every global generator that transforms draw from, and put each back as it was."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.random.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _posterize(image: Any, bits: int, **_: Any) -> Any:
    """Pillow 13 refuses to keep 0 bits, which timm asks for at full magnitude; it used to give black."""
    from PIL import Image, ImageOps

    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


def _collate(items: list[Item]) -> Loaded:
    good = [(image, label) for image, label, _ in items if image is not None]
    images = torch.stack([image for image, _ in good]) if good else torch.empty(0)
    return images, torch.tensor([label for _, label in good]), [one for _, _, bad in items for one in bad]
