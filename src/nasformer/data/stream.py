"""Image folders too big for memory (ImageNet): worker processes decode and augment files as they are needed.

What an item looks like depends on (seed, step, place in the global batch) alone, not on the worker that
makes it. So batches are the same for any number of workers, and any step can be the first to be decoded.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nasformer.data.batches import Batch, Split, check_split
from nasformer.data.folder import Files, list_folder, read_image
from nasformer.data.mixing import Mixing
from nasformer.data.order import batch_indices, calibration_indices, clamp_batch, rank_slice, steps_per_epoch
from nasformer.data.rng import Stream, generator, mix
from nasformer.errors import UserError
from nasformer.recipe import AugmentConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
Key = tuple[int, int]  # which file, and the seed of its augmentation
Item = tuple[Tensor, int] | None  # None: the file cannot be read


class StreamingFolder:
    """Batches of an image folder (`train/<class>/*.jpg` and `val/` or `test/`), read from disk.

    Args:
        augment: crop must be "resized" and rotate 0: each image is augmented by timm's own transforms.
        batch_size: of all ranks together.
        holdout: images per class (int) or fraction (float) of train that are set aside and never trained on.
        workers: processes that decode; 0 decodes in this one.
    """

    in_chans = 3

    def __init__(
        self,
        root: str | Path,
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
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
    ) -> None:
        if not Path(root).is_dir():
            raise UserError(f"no folder {root}; check the path")
        if augment.crop != "resized" or augment.rotate:
            raise UserError("an image folder is streamed with crop=resized and rotate=0 only; set them so")
        files = list_folder(root, holdout, seed)
        self.classes = files.classes
        self._files = {"train": files.train, "holdout": files.holdout, "test": files.test}
        self.batch_size = clamp_batch(len(files.train), batch_size, world)
        self.seed, self.rank, self.world, self.repeats = seed, rank, world, repeats
        self.device, self.workers, self.img_size = torch.device(device), workers, img_size
        self.augment, self.mean, self.std = augment, mean, std
        self.mixing = Mixing.of(augment, self.num_classes)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def held_out(self) -> int:
        return len(self._files["holdout"])

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self._files["train"]), self.batch_size)

    def train_batches(self, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches from `start_step` on, without end: normalised images and soft targets."""
        items = _Items(self._files["train"], self._train_transform())
        loaded = self._load(items, self._train_keys(start_step), _replace_unread)
        for step, (x, labels) in enumerate(loaded, start_step):
            yield self.mixing(x, labels, self.seed, step)

    def evaluation(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """A whole split once, in a fixed order, on every rank; files that cannot be read are left out."""
        files = self._files[check_split(split, self.held_out)]
        keys = [[(index, 0) for index in part.tolist()] for part in torch.arange(len(files)).split(batch_size)]
        return self._load(_Items(files, self._eval_transform()), keys, _drop_unread)

    def calibration(self, images: int, batch_size: int) -> Iterator[Tensor]:
        """So many training images, not augmented; files that cannot be read are left out."""
        files = self._files["train"]
        parts = calibration_indices(len(files), images, batch_size, self.seed)
        keys = [[(index, 0) for index in part.tolist()] for part in parts]
        return (x for x, _ in self._load(_Items(files, self._eval_transform()), keys, _drop_unread))

    def _train_keys(self, start_step: int) -> Iterator[list[Key]]:
        for step in count(start_step):
            everything = batch_indices(len(self._files["train"]), self.batch_size, step, self.seed, self.repeats)
            mine = rank_slice(everything, self.rank, self.world).tolist()
            first = self.rank * len(mine)
            yield [(index, mix(self.seed, Stream.ITEM, step, first + place)) for place, index in enumerate(mine)]

    def _load(
        self, items: _Items, keys: Iterable[list[Key]], collate: Callable[[list[Item]], Batch | None]
    ) -> Iterator[Batch]:
        loader = DataLoader(
            items,
            batch_sampler=keys,
            collate_fn=collate,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=generator(self.seed),  # else a loader takes a number from the global generator
        )
        for batch in loader:
            if batch is None:
                raise UserError("no image of a whole batch could be read; check the disk and the files")
            yield batch[0].to(self.device, non_blocking=True), batch[1].to(self.device, non_blocking=True)

    def _train_transform(self) -> Callable[[Any], Tensor]:
        from timm.data import create_transform

        transform = create_transform(
            self.img_size,
            is_training=True,
            hflip=self.augment.hflip,
            color_jitter=self.augment.color_jitter,
            auto_augment=self.augment.randaugment or None,
            re_prob=self.augment.erasing,
            re_mode="pixel",
            interpolation="bicubic",
            mean=self.mean,
            std=self.std,
        )
        for operation in (op for part in transform.transforms for op in getattr(part, "ops", ())):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
        return transform

    def _eval_transform(self) -> Callable[[Any], Tensor]:
        from timm.data import create_transform

        return create_transform(
            self.img_size, interpolation="bicubic", crop_pct=224 / 256, mean=self.mean, std=self.std
        )


class _Items(Dataset[Item]):
    def __init__(self, files: Files, transform: Callable[[Any], Tensor]) -> None:
        self.files, self.transform = files, transform

    def __getitem__(self, key: Key) -> Item:
        index, seed = key
        image = read_image(self.files.path(index))
        if image is None:
            warnings.warn(f"cannot read {self.files.path(index)}; skipped", stacklevel=2)
            return None
        with seeded(seed):
            return self.transform(image), int(self.files.labels[index])


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


def _replace_unread(items: list[Item]) -> Batch | None:
    """Give the place of an unreadable file to another one: training batches must keep their size."""
    good = [item for item in items if item is not None]
    return _collate([item or good[place % len(good)] for place, item in enumerate(items)]) if good else None


def _drop_unread(items: list[Item]) -> Batch | None:
    good = [item for item in items if item is not None]
    return _collate(good) if good else None


def _collate(items: list[tuple[Tensor, int]]) -> Batch:
    return torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items])
