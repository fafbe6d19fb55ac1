"""Image files whose splits, size and channels are settled: to be decoded into memory, or streamed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from nasformer.data.bad import BadImages
from nasformer.data.files import Files, FileSplits, Listing
from nasformer.data.images import Data, ImageSet, channel_stats, check_filled
from nasformer.data.memory import free_memory
from nasformer.data.read import BadImage, check_channels, read_image
from nasformer.data.survey import survey
from nasformer.errors import UserError
from nasformer.progress import Progress, progress, say

if TYPE_CHECKING:
    from PIL.Image import Image

USUAL_SIZE = 224
FEW = 2000  # so many are decoded in a few seconds, without a bar


@dataclass
class ImageFiles:
    """Files of three splits, to be read at `size` pixels with `channels`."""

    name: str
    splits: FileSplits
    size: int
    channels: int
    bad: BadImages

    @property
    def decoded_bytes(self) -> int:
        return len(self.splits) * self.channels * self.size**2

    def decode(self) -> Data:
        """All images in memory, without those that cannot be read."""
        if self.decoded_bytes > free_memory():
            needed, free = memory_size(self.decoded_bytes), memory_size(free_memory())
            told = f"{len(self.splits)} images of {self.size} px take {needed} in memory, of which {free} is free"
            raise UserError(f"{self.name}: {told}; stream them or use a smaller img_size")
        with progress("decode", len(self.splits), self.bad.quiet or len(self.splits) < FEW) as report:
            done, parts = 0, list[ImageSet]()
            for part in self.splits.parts():
                parts.append(self._decode(part, report, done))
                done += len(part)
        self.bad.check(len(self.splits), self.name)
        self.bad.tell(len(self.splits), self.name)
        train, holdout, test = parts
        check_filled(train, f"{self.name}: train")
        return Data(Path(self.name).stem, train, holdout, test, self.splits.classes, *channel_stats(train.images))

    def _decode(self, files: Files, report: Progress, done: int) -> ImageSet:
        images = torch.empty(len(files), self.channels, self.size, self.size, dtype=torch.uint8)

        def load(index: int) -> str | None:
            try:
                images[index] = torch.from_numpy(self.pixels(files.path(index)))
            except BadImage as error:
                return str(error)
            return None

        good = torch.ones(len(files), dtype=torch.bool)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for index, reason in enumerate(pool.map(load, range(len(files)))):
                report(done + index + 1)
                if reason is not None:
                    good[index] = False
                    self.bad.add(files.path(index), reason)
        return ImageSet(images, files.labels) if good.all() else ImageSet(images[good], files.labels[good])

    def pixels(self, path: str) -> np.ndarray:
        """One image as bytes, [C, size, size]."""
        return channels_first(resize_and_crop(read_image(path, self.channels), self.size))


def settle(
    listing: Listing,
    holdout: float | int,
    seed: int,
    img_size: int | None,
    in_chans: int | None,
    usual_size: int,
    bad: BadImages,
) -> ImageFiles:
    """Split the files, and decide on what is left open by a look at them; whatever was decided is said.

    Images that are all square and of one size keep it, others get `usual_size`. They are read in colour unless
    every one of them is grey.
    """
    splits = listing.split(holdout, seed)
    seen = survey(splits, bad, listing.name)
    if img_size is None and seen.size is None:
        splits.notes.append(
            f"images differ in size or are not square: resized to {usual_size} px; --img-size changes it"
        )
    channels = check_channels(in_chans or (1 if seen.grey else 3))
    if not bad.quiet:
        for note in splits.notes:
            say(f"{listing.name}: {note}")
    return ImageFiles(listing.name, splits, img_size or seen.size or usual_size, channels, bad)


def resize_and_crop(image: Image, size: int) -> Image:
    """The usual evaluation view: short side to 256/224 of the size, then the centre. The right size is left alone."""
    from PIL.Image import Resampling

    if image.size == (size, size):
        return image
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Resampling.BICUBIC).crop((left, top, left + size, top + size))


def channels_first(image: Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def memory_size(count: int) -> str:
    """Bytes as people say them.

    >>> memory_size(30_720), memory_size(5 * 2**30)
    ('0.029 MiB', '5.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.2g} MiB"
