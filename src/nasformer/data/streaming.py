"""Image files that are too large for memory (ImageNet): worker processes decode and augment them as they are needed.

What an item looks like depends on (seed, step, position in the global batch) alone, not on the worker that makes it. So
batches are the same for any number of workers, and any step can be the first to be decoded. A file that cannot be read
gives its place to the next one of its class, which is the same one each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nasformer.data.augment import Mixing
from nasformer.data.decode import BadImage, read_image
from nasformer.data.files import Files, ImageFiles, printable
from nasformer.data.loaders import (
    WHOLE,
    Batch,
    Part,
    Split,
    batch_indices,
    calibration_indices,
    check_split,
    clamp_batch,
    rank_slice,
    steps_per_epoch,
)
from nasformer.data.options import MAX_BAD, AugmentOptions
from nasformer.data.preprocessing import CROP_PCT, Preprocessing
from nasformer.data.sources import open_data
from nasformer.errors import UserError
from nasformer.utils.progress import say
from nasformer.utils.rng import Purpose, generator, mix

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Key = tuple[int, int]  # which file, and the seed of its augmentation
Bad = tuple[str, str]  # a file that cannot be read, and why
Item = tuple[Tensor | None, int, list[Bad]]  # without an image where none of the files tried can be read
Loaded = tuple[Tensor, Tensor, list[Bad]]
LONGEST = 8  # times the short side: what the centre crop of an evaluation cannot show of a longer image is cut off


class StreamingFolder:
    """Batches of image files, read from disk.

    Args:
        files: A folder or another source of files (see `open_data`); or files that are prepared already, whose size,
            channels, hold-out and bad images are decided.
        augment: crop must be "resized" and rotate 0: each image is augmented by timm's own transforms. Or nothing
            at all (crop "none", hflip 0), which shows images as in evaluation.
        batch_size: Of all ranks together.
        holdout: How many training images are set aside and never trained on (see `HoldoutAmount`).
        train_images: Train on so many images only; None: on all.
        workers: Processes that decode; 0 decodes in this one.
        mean, std: None for ImageNet's, in grey their means over the colours.
        max_bad: The share of files that may be unreadable before it is an error.
    """

    def __init__(
        self,
        files: str | Path | ImageFiles,
        augment: AugmentOptions,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
        *,
        img_size: int = 224,
        holdout: float | str = 10,
        train_images: int | None = None,
        workers: int = 4,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        max_bad: float = MAX_BAD,
    ) -> None:
        if not isinstance(files, ImageFiles):
            amounts: dict[str, Any] = {"holdout": holdout, "seed": seed, "train_images": train_images}
            files = find_files(str(files), **amounts, img_size=img_size, max_bad=max_bad)
        augment = augment.for_images(files.size, files.channels)
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
    def class_counts(self) -> Tensor:
        return torch.as_tensor(self._files["train"].labels).bincount(minlength=self.num_classes)

    @property
    def test_images(self) -> int:
        return len(self._files["test"])

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self._files["train"]), self.batch_size)

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches from `start_step` on, without end: normalised images and soft targets."""
        items = self._items("train", self._train_transform(), replace=True)
        for step, (x, labels) in enumerate(self._load(items, self._train_keys(start_step)), start_step):
            yield self.mixing(x, labels, self.seed, step)

    def evaluation(self, split: Split, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """A whole split once, in a fixed order, or a part of it; files that cannot be read are left out."""
        items = self._items(check_split(split, self.held_out), self._eval_transform())
        parts = torch.arange(len(items.files)).split(batch_size)
        keys = [[(index, 0) for index in indices.tolist()] for indices in parts]
        return self._load(items, keys[part[0] :: part[1]])

    def calibration(self, images: int, batch_size: int, part: Part = WHOLE) -> Iterator[Tensor]:
        """So many training images, not augmented; files that cannot be read are left out."""
        items = self._items("train", self._eval_transform())
        parts = calibration_indices(len(items.files), images, batch_size, self.seed)
        keys = [[(index, 0) for index in indices.tolist()] for indices in parts]
        return (x for x, _ in self._load(items, keys[part[0] :: part[1]]))

    def to(self, device: torch.device | str) -> Self:
        other = copy(self)
        other.device = torch.device(device)
        return other

    def _train_keys(self, start_step: int) -> Iterator[list[Key]]:
        for step in count(start_step):
            everything = batch_indices(len(self._files["train"]), self.batch_size, step, self.seed, self.repeats)
            mine = rank_slice(everything, self.rank, self.world).tolist()
            first = self.rank * len(mine)
            yield [(index, mix(self.seed, Purpose.ITEM, step, first + number)) for number, index in enumerate(mine)]

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
                say(f"cannot read {printable(path)} ({reason}); left out")
        self.bad.check(self._total, self._name)

    def _train_transform(self) -> Callable[[Any], Tensor]:
        from timm.data import create_transform

        if self.augment.crop == "none":
            return self._eval_transform()
        mean, std = self._rgb_stats()
        transform = create_transform(
            self.img_size,
            is_training=True,
            hflip=self.augment.hflip or 0.0,
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

        mean, std = self._rgb_stats()
        usual = create_transform(self.img_size, interpolation="bicubic", crop_pct=CROP_PCT, mean=mean, std=std)
        usual.transforms.insert(0, cut_long)
        return usual

    def _rgb_stats(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of three channels: timm's transforms are for RGB, also where an image is grey."""
        return self.mean * (3 // self.in_chans), self.std * (3 // self.in_chans)


def find_files(source: str, **options: Any) -> ImageFiles:
    """Files of a source (see `open_data`), which must have some."""
    opened = open_data(source, **options)
    if not isinstance(opened, ImageFiles):
        raise UserError(f"{source} is not made of image files, so it cannot be streamed; leave --stream out")
    return opened


def check_streamable(files: ImageFiles, augment: AugmentOptions) -> None:
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
        for number in self._candidates(index):
            path = self.files.path(number)
            try:
                image = read_image(path, self.channels)
            except BadImage as error:
                bad.append((path, str(error)))
                continue
            with seeded(seed):
                return self.transform(image.convert("RGB"))[: self.channels], int(self.files.labels[number]), bad
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


def cut_long(image: Any) -> Any:
    """The middle of a very long image, which would be too large once its short side is scaled up."""
    width, height = image.size
    limit = LONGEST * min(width, height)
    if max(width, height) <= limit:
        return image
    left, top = max(0, (width - limit) // 2), max(0, (height - limit) // 2)
    return image.crop((left, top, left + min(width, limit), top + min(height, limit)))


def _posterize(image: Any, bits: int, **_: Any) -> Any:
    """Pillow 13 refuses to keep 0 bits, which timm asks for at full magnitude; it used to give black."""
    from PIL import Image, ImageOps

    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


def _collate(items: list[Item]) -> Loaded:
    good = [(image, label) for image, label, _ in items if image is not None]
    images = torch.stack([image for image, _ in good]) if good else torch.empty(0)
    return images, torch.tensor([label for _, label in good]), [file for _, _, bad in items for file in bad]
