"""Images that cannot be read: left out, counted and listed, until they are too many."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import BadImage, check_channels, read_header, read_image
from nasformer.data.images import Data, ImageSet, channel_stats, check_filled, stratified
from nasformer.data.preprocessing import CROP_PCT, resize_and_crop
from nasformer.errors import UserError
from nasformer.utils.progress import Progress, progress, say
from nasformer.utils.rng import Stream, generator

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_BAD = 0.01
"""More than one in a hundred is seldom bad luck: the disk, the download or the format is wrong."""
SHOWN = 3


class BadImages:
    """The unreadable images of a set.

    Args:
        limit: the share of all images from which on they are an error.
        log: a file to list them in, one a line with the reason.
    """

    def __init__(self, limit: float = MAX_BAD, log: Path | None = None, quiet: bool = False) -> None:
        if not 0 <= limit <= 1:
            raise UserError(f"max_bad is {limit}; give a share from 0 to 1, such as 0.01")
        self.limit, self.log, self.quiet = limit, log, quiet
        self.found: dict[str, str] = {}

    def add(self, path: str, reason: str) -> bool:
        """Note a file; False where it was noted before."""
        if path in self.found:
            return False
        self.found[path] = reason
        if self.log:
            self._write(f"{path}\t{reason}\n")
        return True

    def check(self, total: int, what: str) -> None:
        """Raises if they are too many of so many images."""
        if self.found and len(self.found) > self.limit * total:
            told = f"{what}: {self._told(total)}; more than {self.limit:.4g} of them is too many"
            raise UserError(f"{told}: repair or remove them, or allow more with --max-bad{self._listed()}")

    def tell(self, total: int, what: str) -> None:
        if self.found and not self.quiet:
            say(f"{what}: {self._told(total)}; left out{self._listed()}")

    def _told(self, total: int) -> str:
        first = ", ".join(f"{path} ({reason})" for path, reason in list(self.found.items())[:SHOWN])
        more = " ..." if len(self.found) > SHOWN else ""
        return f"{len(self.found)} of {total} images cannot be read: {first}{more}"

    def _listed(self) -> str:
        return f" (all of them: {self.log})" if self.log else ""

    def _write(self, line: str) -> None:
        """Append to the list what an earlier start of the same run has not."""
        assert self.log
        before = self.log.read_text() if self.log.exists() else ""
        if line not in before:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file:
                file.write(line)


# ----------------------------------------------------------------------------------------------------------------------
# Do the decoded images fit into memory, or must they be streamed?
# ----------------------------------------------------------------------------------------------------------------------

SHARE = 0.5  # of what is free now; the rest is for training

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def fits(needed: int, device: torch.device, world: int = 1) -> bool:
    """Whether so many bytes may live on the host, once for each of `world` processes, and on the device."""
    if needed * world > SHARE * free_memory():
        return False
    return device.type != "cuda" or needed <= SHARE * torch.cuda.mem_get_info(device)[0]


def free_memory() -> int:
    """Bytes that this machine, or the container on it, can still give."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_machine() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no telling: half of what there is


def _free_in_container() -> int:
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit in it
        return 2**62
    return limit - used + int(counts.get("inactive_file", 0))  # cached files give way


# ----------------------------------------------------------------------------------------------------------------------
# A first look at image files, at their headers only: are they images, all of one size, all grey?
# ----------------------------------------------------------------------------------------------------------------------

LOOKS = 10_000  # files that are opened; of larger sets so many, evenly spread
THREADS = 16  # they wait for the disk


@dataclass(frozen=True)
class Survey:
    """What the files have in common; `size` is None where they differ or are not square."""

    size: int | None
    grey: bool
    looks: int


def survey(files: FileSplits, bad: BadImages, what: str) -> Survey:
    """Look at the files of all splits. Too many that are no images are refused here, before any work."""
    paths = [part.path(index) for part in files.parts() for index in _spread(part, len(files))]
    with ThreadPoolExecutor(THREADS) as pool:
        headers = list(pool.map(_header, paths))
    for path, header in zip(paths, headers, strict=True):
        if isinstance(header, str):
            bad.add(path, header)
    bad.check(len(paths), what)
    good = [header for header in headers if not isinstance(header, str)]
    if not good:
        raise UserError(f"{what}: none of the {len(paths)} images can be read; check the files")
    sizes = {side for size, _ in good for side in size}
    return Survey(sizes.pop() if len(sizes) == 1 else None, all(grey for _, grey in good), len(paths))


def _spread(part: Files, total: int) -> list[int]:
    count = len(part) if total <= LOOKS else -(-len(part) * LOOKS // total)
    return [place * len(part) // count for place in range(count)]


def _header(path: str) -> tuple[tuple[int, int], bool] | str:
    try:
        return read_header(path)
    except BadImage as error:
        return str(error)


# ----------------------------------------------------------------------------------------------------------------------
# Image files by split: as their author split them (`Listing`), and as they are used (`FileSplits`).
# ----------------------------------------------------------------------------------------------------------------------

TEST_FRACTION = 0.2


@dataclass
class Files:
    """Image files and their labels. Paths are one array, which worker processes share, not many strings."""

    paths: np.ndarray
    labels: Tensor

    @classmethod
    def of(cls, pairs: Iterable[tuple[str | Path, int]]) -> Files:
        """Files from (path, label) pairs."""
        found = list(pairs)
        paths = np.array([os.fsencode(path) for path, _ in found], dtype=np.bytes_)
        return cls(paths, torch.tensor([label for _, label in found], dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        return os.fsdecode(bytes(self.paths[index]))

    def subset(self, indices: Tensor) -> Files:
        return Files(self.paths[indices.numpy()], self.labels[indices])

    def __add__(self, other: Files) -> Files:
        return Files(np.concatenate([self.paths, other.paths]), torch.cat([self.labels, other.labels]))


@dataclass
class FileSplits:
    """Three parts that share no file; `notes` tell the user how they were made."""

    train: Files
    holdout: Files
    test: Files
    classes: list[str]
    notes: list[str] = field(default_factory=list)

    def parts(self) -> tuple[Files, Files, Files]:
        return self.train, self.holdout, self.test

    def __len__(self) -> int:
        return sum(map(len, self.parts()))


@dataclass
class Listing:
    """The files of a set as its author split them. `val` is for choosing, `test` for the final figures."""

    name: str
    train: Files
    classes: list[str]
    val: Files | None = None
    test: Files | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_classes(self.classes, self.name)
        if not len(self.train):
            raise UserError(f"{self.name} has no training images; check that it is complete")

    def split(self, holdout: float | int, seed: int) -> FileSplits:
        """Make what is missing: the test set is the same for every seed, the hold-out is not.

        A `val` part is the hold-out as it is, whatever its size; but with holdout 0 it is trained on.
        """
        train, val, test, notes = self.train, self.val, self.test, list(self.notes)
        if not test or not len(test):
            rest, taken = stratified(train.labels, TEST_FRACTION, generator(0, Stream.SPLIT), self.classes)
            train, test = train.subset(rest), train.subset(taken)
            notes.append(f"no test images of its own: {len(test)} of {len(rest) + len(taken)}, a fifth of each class")
        if val and len(val) and not holdout:
            notes.append(f"nothing is held out: the {len(val)} validation images are trained on as well")
            train, val = train + val, None
        if not val or not len(val):
            rest, taken = stratified(train.labels, holdout, generator(seed, Stream.SPLIT), self.classes)
            train, val = train.subset(rest), train.subset(taken)
        return FileSplits(train, val, test, self.classes, notes)


def check_classes(classes: list[str], what: str) -> None:
    if len(classes) == 1:
        raise UserError(f"{what} has one class only, {classes[0]!r}; a classifier needs two or more")


# ----------------------------------------------------------------------------------------------------------------------
# Image files whose splits, size and channels are settled: to be decoded into memory, or streamed.
# ----------------------------------------------------------------------------------------------------------------------

USUAL_SIZE = 224
FEW = 2000  # so many are decoded in a few seconds, without a bar


@dataclass
class ImageFiles:
    """Files of three splits, to be read at `size` pixels with `channels`; `crop_pct` is 1 where all have that size."""

    name: str
    splits: FileSplits
    size: int
    channels: int
    bad: BadImages
    crop_pct: float = CROP_PCT

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
        stats = channel_stats(train.images)
        return Data(Path(self.name).stem, train, holdout, test, self.splits.classes, *stats, self.crop_pct)

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
        return channels_first(resize_and_crop(read_image(path, self.channels), (self.size, self.size), self.crop_pct))


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
    size = img_size or seen.size or usual_size
    return ImageFiles(listing.name, splits, size, channels, bad, 1.0 if seen.size == size else CROP_PCT)


def channels_first(image: Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def memory_size(count: int) -> str:
    """Bytes as people say them.

    >>> memory_size(30_720), memory_size(5 * 2**30)
    ('0.029 MiB', '5.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.2g} MiB"
