"""Image files of a dataset: listed by split, surveyed by their headers, then decoded into memory or streamed.

Files that cannot be read are left out, counted and listed, until they are too many.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.data.decode import (
    CROP_PCT,
    BadImage,
    attempt,
    channels_first,
    check_channels,
    decode_image,
    read_bytes,
    read_header,
    resize_and_crop,
)
from nasformer.data.images import (
    Data,
    ImageSet,
    SplitAmounts,
    Splits,
    UncroppedSet,
    channel_stats,
    check_classes,
    check_filled,
    fill_colour,
    make_splits,
)
from nasformer.data.options import MAX_BAD
from nasformer.errors import UserError
from nasformer.utils.progress import Progress, progress, say
from nasformer.utils.units import check_number

USUAL_SIZE = 224
SURVEYED = 10_000  # files whose headers are read; of larger sets so many, evenly spread
SURVEY_THREADS = 16  # they wait for the disk
FEW = 2000  # so many are decoded in a few seconds, without a progress bar
NAMED_FILES = 3  # unreadable files named in a message
STATS_IMAGES = 2048  # training images, evenly spread, whose mean and deviation stand for all
LONGEST = 3  # times the short side; of a longer image only the middle is kept


@dataclass
class Files:
    """Image files and their labels. Paths are one array, which worker processes share, not many strings."""

    paths: np.ndarray
    labels: Tensor

    @classmethod
    def of(cls, pairs: Iterable[tuple[str | Path, int]]) -> Files:
        """Files from (path, label) pairs."""
        listed = list(pairs)
        paths = np.array([os.fsencode(path) for path, _ in listed], dtype=np.bytes_)
        return cls(paths, torch.tensor([label for _, label in listed], dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        return os.fsdecode(bytes(self.paths[index]))

    def read(self, index: int) -> Tensor:
        """The content of a file, uint8 [N]; raises BadImage."""
        return read_bytes(self.path(index))

    def header(self, index: int) -> tuple[tuple[int, int], bool]:
        """(width, height) and whether the image is grey; raises BadImage."""
        return read_header(self.path(index))

    def subset(self, indices: Tensor) -> Files:
        return Files(self.paths[indices.numpy()], self.labels[indices])

    def __add__(self, other: Files) -> Files:
        return Files(np.concatenate([self.paths, other.paths]), torch.cat([self.labels, other.labels]))


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

    def split(self, holdout: float | str, seed: int, train_images: int | None = None) -> Splits[Files]:
        """The three parts in use; made before anything is decoded, so that a broken file does not move others."""
        amounts: SplitAmounts = {"holdout": holdout, "seed": seed, "train_images": train_images}
        splits = make_splits(self.train, self.val, self.test, self.classes, **amounts)
        splits.notes[:0] = self.notes
        return splits


def printable(name: str | Path) -> str:
    """A file name that can be printed: bytes that are not UTF-8 are shown with escapes.

    >>> printable(os.fsdecode(b"caf\\xe9.jpg"))
    'caf\\\\xe9.jpg'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class BadImages:
    """The unreadable images of a set.

    Args:
        limit: The share of all images from which on they are an error. A single one never is, unless this is 0.
        log: A file to list them in, one a line with the reason.
        what: The words for them in messages.
    """

    def __init__(
        self,
        limit: float = MAX_BAD,
        log: Path | None = None,
        quiet: bool = False,
        what: str = "images cannot be read",
    ) -> None:
        check_number("max_bad", limit, 0, 1)
        self.limit, self.log, self.quiet, self.what = limit, log, quiet, what
        self.reasons: dict[str, str] = {}

    def add(self, path: str, reason: str) -> bool:
        """Record a file; False where it was recorded before."""
        name = printable(path)
        if name in self.reasons:
            return False
        self.reasons[name] = reason
        if self.log:
            self._write(self.log, f"{name}\t{reason}\n")
        return True

    def check(self, total: int, what: str) -> None:
        """Raise UserError if too many of `total` images are bad."""
        allowed = max(1, self.limit * total) if self.limit else 0
        if len(self.reasons) > allowed:
            raise UserError(
                f"{what}: {self._summary(total)}; more than {self.limit:.4g} of them is too many: repair or remove "
                f"them, or allow more with --max-bad{self._where()}"
            )

    def tell(self, total: int, what: str) -> None:
        if self.reasons and not self.quiet:
            say(f"{what}: {self._summary(total)}; left out{self._where()}")

    def _summary(self, total: int) -> str:
        first = ", ".join(f"{name} ({reason})" for name, reason in list(self.reasons.items())[:NAMED_FILES])
        more = " ..." if len(self.reasons) > NAMED_FILES else ""
        return f"{len(self.reasons)} of {total} {self.what}: {first}{more}"

    def _where(self) -> str:
        return f" (all of them: {self.log})" if self.log else ""

    @staticmethod
    def _write(log: Path, line: str) -> None:
        """Append a line to the list of bad images, unless an earlier start of the same run has written it."""
        before = log.read_text(encoding="utf-8") if log.exists() else ""
        if line not in before:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(line)


# Survey of headers: are these images, all of one size, all grey?


@dataclass(frozen=True)
class Survey:
    """Properties that all files share; `size` is None where they differ in it or are not square."""

    size: int | None
    grey: bool


def survey(splits: Splits[Files], bad: BadImages, what: str) -> Survey:
    """Read the headers of the files of all splits, and refuse too many unreadable ones before any further work."""
    share = min(1.0, SURVEYED / len(splits))
    chosen = [(part, index) for part in splits.parts() for index in spread(len(part), math.ceil(len(part) * share))]
    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        headers = list(pool.map(attempt(lambda file: file[0].header(file[1])), chosen))
    for (part, index), header in zip(chosen, headers, strict=True):
        if isinstance(header, BadImage):
            bad.add(part.path(index), str(header))
    bad.check(len(chosen), what)
    good = [header for header in headers if not isinstance(header, BadImage)]
    if not good:
        raise UserError(f"{what}: none of the {len(chosen)} images can be read; check the files")
    sides = {side for size, _ in good for side in size}
    return Survey(sides.pop() if len(sides) == 1 else None, all(grey for _, grey in good))


def spread(count: int, chosen: int) -> list[int]:
    """`chosen` of the numbers below `count`, evenly spread.

    >>> spread(10, 4), spread(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    chosen = min(count, chosen)
    return [number * count // chosen for number in range(chosen)]


# Files whose splits, size and channels are decided


@dataclass
class ImageFiles:
    """Files of three splits, to be read at `size` pixels with `channels`; `crop_pct` is 1 where all have that size."""

    name: str
    splits: Splits[Files]
    size: int
    channels: int
    bad: BadImages
    crop_pct: float = CROP_PCT

    @property
    def decoded_bytes(self) -> int:
        return len(self.splits) * self.channels * self.size**2

    def memory(self, uncropped: bool) -> int:
        """About how many bytes `decode` needs, where whole images are 4 : 3."""
        whole = len(self.splits.train) * self.channels * (self.size / self.crop_pct) ** 2 * 4 / 3
        return self.decoded_bytes + int(whole if uncropped and self.scaled else 0)

    @property
    def scaled(self) -> bool:
        """Whether images are scaled and cropped, so that the view of evaluation is not all of them."""
        return self.crop_pct < 1

    def view(self, content: Tensor) -> Tensor:
        """A file's content as evaluation shows it: [C, size, size]; raises BadImage."""
        from PIL import Image

        pixels = decode_image(content, self.channels)
        if tuple(pixels.shape[1:]) == (self.size, self.size) and not self.scaled:
            return pixels
        image = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
        return torch.from_numpy(channels_first(resize_and_crop(image, (self.size, self.size), self.crop_pct)))

    def whole(self, content: Tensor) -> Tensor:
        """All of an image, for crops at random: its short side no longer than before the view's crop."""
        return shrink(decode_image(content, self.channels), round(self.size / self.crop_pct))

    def decode(self, uncropped: bool = False) -> Data:
        """Decode all images into memory, without those that cannot be read.

        Args:
            uncropped: Keep all of the training images as well, where the view of evaluation is a part of them.
        """
        if self.decoded_bytes > free_memory():
            needed, free = memory_size(self.decoded_bytes), memory_size(free_memory())
            size = f"{len(self.splits)} images of {self.size} px take {needed} in memory, of which {free} is free"
            raise UserError(f"{self.name}: {size}; stream them or use a smaller img_size")
        keep_whole, parts = uncropped and self.scaled, list[Decoded]()
        with progress("decode", len(self.splits), self.bad.quiet or len(self.splits) < FEW) as report:
            for files in self.splits.parts():
                done = sum(len(part.labels) for part in parts)
                parts.append(self._decode(files, report, done, keep_whole and files is self.splits.train))
        self.bad.check(len(self.splits), self.name)
        self.bad.tell(len(self.splits), self.name)
        train, holdout, test = (part.readable for part in parts)
        check_filled(train, f"{self.name}: train")
        mean, std = channel_stats(parts[0].sample(STATS_IMAGES))
        whole = UncroppedSet(parts[0].wholes, train.labels, fill_colour(mean)) if keep_whole else None
        return Data(Path(self.name).stem, train, holdout, test, self.splits.classes, mean, std, self.crop_pct, whole)

    def _decode(self, files: Files, report: Progress, done: int, uncropped: bool) -> Decoded:
        """Decodes the files of a part side by side; `done` files of other parts count in the progress."""
        views = torch.empty(len(files), self.channels, self.size, self.size, dtype=torch.uint8)

        def load(index: int) -> Tensor | None:
            content = files.read(index)
            views[index] = self.view(content)
            return self.whole(content) if uncropped else None

        good, wholes = torch.ones(len(files), dtype=torch.bool), list[Tensor]()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for index, loaded in enumerate(pool.map(attempt(load), range(len(files)))):
                report(done + index + 1)
                if isinstance(loaded, BadImage):
                    good[index] = False
                    self.bad.add(files.path(index), str(loaded))
                elif loaded is not None:
                    wholes.append(loaded)
        return Decoded(views, files.labels, good, wholes)


@dataclass
class Decoded:
    """The decoded files of a part, whose rows of files that cannot be read are not `good`."""

    views: Tensor
    labels: Tensor
    good: Tensor
    wholes: list[Tensor]

    @property
    def readable(self) -> ImageSet:
        return ImageSet(*((part if self.good.all() else part[self.good]) for part in (self.views, self.labels)))

    def sample(self, count: int) -> Tensor:
        """The images that can be read among `count` evenly spread ones."""
        rows = torch.tensor(spread(len(self.good), count))
        return self.views[rows[self.good[rows]]]


def shrink(pixels: Tensor, short_side: int) -> Tensor:
    """An image [C, H, W] with a short side no longer than this (bicubic, antialiased); of a long one the middle.

    >>> shrink(torch.zeros(3, 40, 400, dtype=torch.uint8), 20).shape
    torch.Size([3, 20, 60])
    """
    limit = LONGEST * min(pixels.shape[1:])
    top, left = (max(0, (side - limit) // 2) for side in pixels.shape[1:])
    pixels = pixels[:, top : top + limit, left : left + limit]
    scale = short_side / min(pixels.shape[1:])
    if scale >= 1:
        return pixels
    size = [max(short_side, round(side * scale)) for side in pixels.shape[1:]]
    source = pixels if pixels.device.type == "cpu" else pixels.float()  # only the CPU can scale bytes
    scaled = F.interpolate(source[None], size, mode="bicubic", antialias=True)[0]
    return scaled if scaled.dtype == torch.uint8 else scaled.round_().clamp_(0, 255).to(torch.uint8)


def prepare_files(
    listing: Listing,
    bad: BadImages,
    img_size: int | None,
    in_chans: int | None,
    usual_size: int,
    **amounts: Unpack[SplitAmounts],
) -> ImageFiles:
    """Split the files and choose what is left open by a survey of them; each choice is reported.

    Images that are all square and of one size keep it, others get `usual_size`. They are read in colour unless
    every one of them is grey.
    """
    splits = listing.split(**amounts)
    common = survey(splits, bad, listing.name)
    if img_size is None and common.size is None:
        splits.notes.append(
            f"images differ in size or are not square: resized to {usual_size} px; --img-size changes it"
        )
    channels = check_channels(in_chans or (1 if common.grey else 3))
    splits.report(listing.name, bad.quiet)
    size = img_size or common.size or usual_size
    return ImageFiles(listing.name, splits, size, channels, bad, 1.0 if common.size == size else CROP_PCT)


# Memory: do the decoded images fit, or must they be streamed?

MEMORY_SHARE = 0.5  # of what is free now; the rest is for training
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def fits(needed: int, device: torch.device, world: int = 1) -> bool:
    """Whether this many bytes fit into the host, once for each of `world` processes, and into the device."""
    if needed * world > MEMORY_SHARE * free_memory():
        return False
    return device.type != "cuda" or needed <= MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]


def free_memory() -> int:
    """Bytes that this machine, or the container on it, can still give."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_machine() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # unknown: half of the total


def _free_in_container() -> int:
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit in it
        return 2**62
    return limit - used + int(counts.get("inactive_file", 0))  # cached files give way


def memory_size(count: int) -> str:
    """Bytes in words.

    >>> memory_size(30_720), memory_size(5 * 2**30)
    ('0.029 MiB', '5.0 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.2g} MiB"
