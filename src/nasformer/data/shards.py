"""Shards: image files, scaled once and packed into a few large tar files that read fast.

A shard is a plain tar file in the layout of WebDataset, `000000042.jpg` with the class number in `000000042.cls`: any
tar program, WebDataset and its relatives read it, from a disk or sequentially from an object store, without this
library. LitData's and MosaicML's formats can only be read by their own. Beside each shard a JSON file says where in it
the images lie, so that any image can be read at once, and `shards.json` has the checksums of all.

Images are in the shards in random order, as sequential readers need them, and in that of their listing when read here:
a packed set has the splits of the files that it was made of.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import BadImage, attempt, decode_image, read_header
from nasformer.data.files import BadImages, Files, Listing, printable, shrink
from nasformer.errors import UserError
from nasformer.utils.files import clear_drafts, locked, open_atomic, read_json, write_json
from nasformer.utils.progress import progress
from nasformer.utils.rng import Purpose, generator
from nasformer.utils.schema import from_json, to_json

INDEX = "shards.json"
PARTS = ("train", "val", "test")
BLOCK = 512  # bytes of a tar header, right before the content
OPEN_SHARDS = 512  # mapped into memory at once; a process may open about 1,000 files


@dataclass(frozen=True)
class PackSettings:
    """How images are packed; a packing that is resumed must have the same settings."""

    size: int
    quality: int
    shard_images: int
    listing: str


@dataclass(frozen=True)
class ShardEntry:
    """A shard in the index."""

    file: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardIndex:
    """The content of shards.json; `parts` is None until all is packed."""

    settings: PackSettings
    classes: list[str]
    parts: dict[str, list[ShardEntry]] | None = None


@dataclass
class ShardContents:
    """Where the images of a shard lie: their numbers in the listing, labels, offsets and sizes."""

    shard: ShardEntry
    numbers: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = (self.numbers, self.labels, self.offsets, self.sizes)
        if any(len(column) != self.shard.images for column in columns):
            raise ValueError(f"it does not have {self.shard.images} numbers, labels, offsets and sizes")
        if any(min(column, default=0) < 0 or max(column, default=0) >= 2**60 for column in columns):
            raise ValueError("a number is negative or huge")
        if any(start + size > self.shard.bytes for start, size in zip(self.offsets, self.sizes, strict=True)):
            raise ValueError("an image ends after its shard")


# Reading


@dataclass
class PackedFiles(Files):
    """Images in shards; `paths` has the shard, offset and size of each (int64, N x 3)."""

    shards: list[Path]

    def path(self, index: int) -> str:
        """The shard and the name in it."""
        shard, offset, _ = self.paths[index].tolist()
        header = _mapped(self.shards[shard])[offset - BLOCK : offset]
        name = header[:100].rstrip(bytes(1)).decode("ascii", "backslashreplace")
        return f"{self.shards[shard]}/{name}"

    def read(self, index: int) -> Tensor:
        shard, offset, size = self.paths[index].tolist()
        return torch.frombuffer(_mapped(self.shards[shard]), dtype=torch.uint8, count=size, offset=offset)

    def header(self, index: int) -> tuple[tuple[int, int], bool]:
        return read_header(self.read(index))

    def subset(self, indices: Tensor) -> PackedFiles:
        return PackedFiles(self.paths[indices.numpy()], self.labels[indices], self.shards)

    def __add__(self, other: Files) -> PackedFiles:
        both = np.concatenate([self.paths, other.paths]), torch.cat([self.labels, other.labels])
        return PackedFiles(*both, self.shards)


@lru_cache(OPEN_SHARDS)
def _mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def is_packed(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def load_shards(folder: Path) -> Listing:
    """The files of a folder that `pack_files` wrote."""
    index = _read_index(folder)
    entries = [entry for part in PARTS for entry in (index.parts or {}).get(part, [])]
    shards = [folder / entry.file for entry in entries]
    for entry, path in zip(entries, shards, strict=True):
        size = path.stat().st_size if path.is_file() else 0
        if size != entry.bytes:
            raise UserError(f"{path} has {size} bytes, not {entry.bytes}: it is damaged; copy it again or pack anew")
    parts = {part: _load_part(folder, part, index, shards) for part in PARTS}
    train = parts["train"]
    if train is None:
        raise UserError(f"{folder} has no training images; pack the set again")
    return Listing(printable(folder), train, index.classes, parts["val"], parts["test"])


def _load_part(folder: Path, part: str, index: ShardIndex, shards: list[Path]) -> PackedFiles | None:
    """The files of a part in the order before they were packed; None where there are none."""
    rows, labels, numbers = list[Tensor](), list[int](), list[int]()
    for entry in (index.parts or {}).get(part, []):
        contents = _read_contents(folder / entry.file)
        if contents.shard != entry or max(contents.labels, default=0) >= len(index.classes):
            raise UserError(f"{folder / entry.file} and its JSON file are not those of {INDEX}; copy them or pack anew")
        number = torch.full((entry.images,), shards.index(folder / entry.file))
        rows.append(torch.stack([number, torch.tensor(contents.offsets), torch.tensor(contents.sizes)], dim=1))
        labels += contents.labels
        numbers += contents.numbers
    if not numbers:
        return None
    order = torch.tensor(numbers).argsort()
    return PackedFiles(torch.cat(rows)[order].numpy(), torch.tensor(labels)[order], shards)


def check_shards(folder: Path) -> list[str]:
    """The shards whose content has changed since it was packed; every byte is read."""
    parts = _read_index(folder).parts or {}
    entries = [entry for part in parts.values() for entry in part]
    damaged = []
    with progress("check", len(entries)) as report:
        for done, entry in enumerate(entries, 1):
            path = folder / entry.file
            if not path.is_file() or _sha256(path) != entry.sha256:
                damaged.append(entry.file)
            report(done)
    return damaged


def _read_index(folder: Path) -> ShardIndex:
    index = from_json(ShardIndex, read_json(folder / INDEX), folder / INDEX)
    if index.parts is None:
        raise UserError(f"{folder} is not packed completely; run the same nasformer pack command again to go on")
    return index


def _read_contents(shard: Path) -> ShardContents:
    path = shard.with_suffix(".json")
    return from_json(ShardContents, read_json(path), path)


# Packing


def pack_files(
    listing: Listing, folder: Path, size: int, quality: int, shard_images: int, max_bad: float
) -> ShardIndex:
    """Pack the files of a listing. A packing that was stopped is resumed: finished shards are kept.

    Args:
        size: Images with a longer short side are scaled down to it (bicubic, antialiased) and saved as JPEG of this
            `quality`; others keep their bytes.
        shard_images: Images in a shard.
        max_bad: The share of files that may be unreadable; they are left out and listed in bad_images.txt.
    """
    parts = {"train": listing.train, "val": listing.val, "test": listing.test}
    settings = PackSettings(size, quality, shard_images, _digest(listing))
    bad = BadImages(max_bad, folder / "bad_images.txt")
    with locked(folder / "lock"):
        clear_drafts(folder)
        _check_settings(folder, settings)
        if not (folder / INDEX).is_file():
            write_json(folder / INDEX, to_json(ShardIndex(settings, listing.classes)))
        total, done = sum(len(files) for files in parts.values() if files), 0
        packed: dict[str, list[ShardEntry]] = {part: [] for part in parts}
        with progress("pack", total) as report:
            for part, contents in _pack_parts(parts, folder, settings):
                for name, reason in contents.left_out.items():
                    bad.add(name, reason)
                bad.check(total, listing.name)
                packed[part].append(contents.shard)
                done += contents.shard.images
                report(done)
        bad.tell(total, listing.name)
        index = ShardIndex(settings, listing.classes, packed)
        write_json(folder / INDEX, to_json(index))
    return index


def _pack_parts(
    parts: Mapping[str, Files | None], folder: Path, settings: PackSettings
) -> Iterator[tuple[str, ShardContents]]:
    """The shards of all parts, each with the name of its part, as they are finished."""
    for part, files in parts.items():
        for contents in _pack_part(files, folder / part, settings) if files else ():
            yield part, contents


def _check_settings(folder: Path, settings: PackSettings) -> None:
    if not (folder / INDEX).is_file():
        return
    before = from_json(ShardIndex, read_json(folder / INDEX), folder / INDEX).settings
    if before != settings:
        raise UserError(
            f"{folder} has shards of other images or settings; give --to another folder, or the same options"
        )


def _pack_part(files: Files, prefix: Path, settings: PackSettings) -> Iterator[ShardContents]:
    """The shards of a part, which have its files in random order, as they are finished."""
    order = torch.randperm(len(files), generator=generator(0, Purpose.ORDER)).split(settings.shard_images)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, chosen in enumerate(order):
            path = prefix.with_name(f"{prefix.name}-{number:06d}.tar")
            yield _finished(path) or _pack_shard(files, chosen.tolist(), path, settings, pool)


def _finished(path: Path) -> ShardContents | None:
    """The contents of a shard that was finished before; None where there is none."""
    if not (path.is_file() and path.with_suffix(".json").is_file()):
        return None
    contents = _read_contents(path)
    return contents if path.stat().st_size == contents.shard.bytes else None


def _pack_shard(
    files: Files, numbers: list[int], path: Path, settings: PackSettings, pool: ThreadPoolExecutor
) -> ShardContents:
    """Writes a shard: a tar of images and labels, and beside it the JSON file that says where in it they are."""

    def load(number: int) -> tuple[str, bytes]:
        return packed_image(files.read(number), settings.size, settings.quality)

    rows, left_out = list[tuple[int, int, int, int]](), dict[str, str]()
    with open_atomic(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in zip(numbers, pool.map(attempt(load), numbers), strict=True):
            if isinstance(image, BadImage):
                left_out[printable(files.path(number))] = str(image)
                continue
            ending, content = image
            label = int(files.labels[number])
            rows.append((number, label, tar.offset + BLOCK, len(content)))
            _add(tar, f"{number:09d}.{ending}", content)
            _add(tar, f"{number:09d}.cls", str(label).encode())
    numbers, labels, offsets, sizes = ([row[column] for row in rows] for column in range(4))
    shard = ShardEntry(path.name, len(rows), path.stat().st_size, _sha256(path))
    contents = ShardContents(shard, numbers, labels, offsets, sizes, left_out)
    write_json(path.with_suffix(".json"), to_json(contents))
    return contents


def packed_image(content: Tensor, size: int, quality: int) -> tuple[str, bytes]:
    """The ending and the bytes of an image: those of its file, unless it is larger than needed; raises BadImage."""
    from PIL import Image

    (width, height), grey = read_header(content)
    pixels = decode_image(content, 1 if grey else 3)
    if min(width, height) <= size:
        with Image.open(io.BytesIO(content.numpy().tobytes())) as image:
            return (image.format or "img").lower().replace("jpeg", "jpg"), content.numpy().tobytes()
    scaled = Image.fromarray(shrink(pixels, size).permute(1, 2, 0).squeeze(2).numpy())
    file = io.BytesIO()
    scaled.save(file, "JPEG", quality=quality)
    return "jpg", file.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)  # no time and no owner: the same images give the same bytes
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _digest(listing: Listing) -> str:
    """A hash of the names and labels of all files."""
    digest = hashlib.sha256()
    for files in (listing.train, listing.val, listing.test):
        for index in range(len(files) if files else 0):
            assert files is not None
            digest.update(os.fsencode(files.path(index)) + f"\0{int(files.labels[index])}\0".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(index: ShardIndex, folder: Path) -> str:
    """A packed set in one line: its images, shards and size."""
    entries = {part: entries for part, entries in (index.parts or {}).items() if entries}
    counts = ", ".join(f"{sum(shard.images for shard in shards):,} {part}" for part, shards in entries.items())
    sizes = [shard.bytes / 2**20 for shards in entries.values() for shard in shards]
    return f"{folder}: {counts} images in {len(sizes)} shards, {sum(sizes):,.1f} MiB; use it with --data {folder}"
