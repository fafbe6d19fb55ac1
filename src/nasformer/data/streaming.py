"""Image sets too large for memory (ImageNet): threads read and decode files ahead of their use.

Nothing here is random. A batch is decoded to the bytes that it would have in memory, so that all that follows, from
augmentation to evaluation, is the same (see `Batches`). In training, a file that cannot be read is replaced by the next
one of its class, which is always the same.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from nasformer.data.decode import BadImage, decode_jpegs, decodes_jpegs, jpeg_header
from nasformer.data.files import STATS_IMAGES, Files, ImageFiles, fits, printable, shrink, spread
from nasformer.data.images import ImageSet, Pixels, channel_stats, fill_colour, pad, send
from nasformer.utils.progress import say

AHEAD = 4  # batches being read and decoded while one is in use
LANES = 2  # CUDA streams: while one batch is decoded, another is put together
READ = 32  # files read at a time for a GPU, which decodes faster than Python hands out work
KEPT_SHARE = 0.1  # of the memory that counts as free: a hold-out that needs no more is kept, as searches need it often
Bad = tuple[str, str]  # a file that cannot be read, and why


@dataclass
class StreamedData:
    """A dataset like `Data` whose images are read from files on demand."""

    name: str
    train: ImageStream
    holdout: ImageStream
    test: ImageStream
    classes: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float
    in_chans: int
    img_size: int
    uncropped: ImageStream | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes)


def stream_files(files: ImageFiles, workers: int | str = "auto", world: int = 1) -> StreamedData:
    """The images of files, streamed by a number of threads; auto: one for each core, shared by `world` processes."""
    files.bad.tell(len(files.splits), files.name)
    threads = max(1, (os.cpu_count() or 1) // world if workers == "auto" else int(workers))
    train, holdout, test = (ImageStream(part, files, files.view, threads) for part in files.splits.parts())
    holdout.keep = True
    sample = torch.tensor(spread(len(train), STATS_IMAGES))
    mean, std = channel_stats(torch.cat([batch.images for batch in train.batches(sample.split(64))]))
    whole = replace(train, load=files.whole, fill=fill_colour(mean)) if files.scaled else None
    about = (files.splits.classes, mean, std, files.crop_pct, files.channels, files.size)
    return StreamedData(Path(files.name).stem, train, holdout, test, *about, whole)


T = TypeVar("T")


def ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """Each item after `count` more have been taken from their source, so that work they started goes on meanwhile.

    >>> list(ahead("abc", 2))
    ['a', 'b', 'c']
    """
    waiting = deque[T]()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


@dataclass
class ImageStream:
    """Images read from files on demand; the counterpart of `ImageSet`.

    Attributes:
        load: From a file's content to bytes [C, H, W].
        fill: The colour beside images that differ in size; None: all have one size.
        keep: Whether to read them once and keep them in memory, if they need little of it.
    """

    files: Files
    source: ImageFiles
    load: Callable[[Tensor], Tensor]
    threads: int
    fill: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    keep: bool = False
    lanes: SimpleQueue[torch.cuda.Stream] | None = None  # of a GPU, beside the training's

    @property
    def labels(self) -> Tensor:
        return self.files.labels

    def __len__(self) -> int:
        return len(self.files)

    def to(self, device: torch.device | str) -> ImageStream | ImageSet:
        """The stream for a device; a small one that is to be kept is read at once."""
        moved, (size, channels) = replace(self, device=torch.device(device)), (self.source.size, self.source.channels)
        if moved.device.type == "cuda":
            moved.lanes = SimpleQueue()
            for _ in range(LANES):
                moved.lanes.put(torch.cuda.Stream(moved.device))
        if not (self.keep and fits(int(len(self) * channels * size**2 / KEPT_SHARE), moved.device)):
            return moved
        batches = list(moved.batches(torch.arange(len(self)).split(256)))
        return ImageSet(torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches]))

    def batches(self, parts: Iterable[Tensor], replace: bool = False) -> Iterator[Pixels]:
        """The images of each part in turn. Files that cannot be read are replaced or left out."""
        # one thread an operation: the images of a batch are worked on side by side already
        pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            for batch in ahead((self._submit(pool, part.tolist(), replace) for part in parts), AHEAD):
                yield from self._receive(batch)
        finally:
            pool.shutdown(cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, numbers: list[int], replace: bool) -> Future[Loaded]:
        """Queues the reading and decoding of a batch. No job waits for a later one."""
        # Evaluation has the pixels of `predict` and of exports, whose decoder is the CPU's.
        if self.decodes_on_gpu and replace:
            parts = [numbers[start : start + READ] for start in range(0, len(numbers), READ)]
            files = [pool.submit(self._read, part, replace) for part in parts]
            return pool.submit(self._decode_together, numbers, files, replace)
        items = [pool.submit(self._load, number, replace) for number in numbers]
        return pool.submit(self._collect, items)

    def _load(self, number: int, replace: bool) -> Item:
        """A file, or the first of its replacements that can be read, with those that cannot."""
        bad = list[Bad]()
        for candidate in self._candidates(number, replace):
            try:
                return Item(self.load(self.files.read(candidate)), int(self.labels[candidate]), bad)
            except BadImage as error:
                bad.append((self.files.path(candidate), str(error)))
        return Item(None, 0, bad)

    def _candidates(self, number: int, replace: bool) -> Iterator[int]:
        """The file itself, and then its replacements: the files after it, first those of its class."""
        yield number
        if replace:
            after = torch.arange(1, len(self)).add(number).remainder(len(self))
            same = self.labels[after] == self.labels[number]
            yield from after[same].tolist() + after[~same].tolist()

    def _collect(self, items: list[Future[Item]]) -> Loaded:
        loaded = [item.result() for item in items]
        with self._lane():
            return self._batch(loaded)

    @contextmanager
    def _lane(self) -> Iterator[None]:
        """Context with a CUDA stream of its own, whose work ends with the context; without effect on a CPU.

        Torchvision decodes on a stream of its own, which does not wait for this one: were there still work on it,
        memory that was given back meanwhile might be written to while it is read.
        """
        if self.lanes is None:
            yield
            return
        stream = self.lanes.get()
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            stream.synchronize()
            self.lanes.put(stream)

    def _batch(self, items: list[Item]) -> Loaded:
        """The batch of the items that have an image, on the device."""
        bad = [file for item in items for file in item.bad]
        good = [(item.image, item.label) for item in items if item.image is not None]
        if not good:
            return Loaded(None, bad)
        images, labels = [image for image, _ in good], torch.tensor([label for _, label in good])
        stacked, sizes = (
            (torch.stack(images), None) if self.fill is None else pad(images, send(self.fill, images[0].device))
        )
        return Loaded(Pixels(self._send(stacked), self._send(labels), sizes), bad)

    def _send(self, tensor: Tensor) -> Tensor:
        pinned = tensor.pin_memory() if self.device.type == "cuda" and tensor.device.type == "cpu" else tensor
        return pinned.to(self.device, non_blocking=True)

    def _receive(self, batch: Future[Loaded]) -> Iterator[Pixels]:
        """Waits for a batch and reports its bad files; nothing where none of its files can be read."""
        loaded = batch.result()
        self._note(loaded.bad)
        if loaded.pixels is None:
            return
        if self.device.type == "cuda":
            for tensor in (loaded.pixels.images, loaded.pixels.labels):
                # else its memory might be given to the next batch while it is read
                tensor.record_stream(torch.cuda.current_stream(self.device))
        yield loaded.pixels

    # JPEGs on a GPU: the files of a batch are read by threads and decoded by one call

    @property
    def decodes_on_gpu(self) -> bool:
        """Whether batches of training are decoded by the GPU: not views that are scaled, which Pillow does exactly."""
        on_gpu = self.device.type == "cuda" and decodes_jpegs(self.device)
        return on_gpu and (self.fill is not None or not self.source.scaled)

    def _read(self, numbers: list[int], replace: bool) -> list[Tensor | Item]:
        """The contents of files; images that the GPU cannot decode are decoded here."""
        contents = [(number, self._read_jpeg(number)) for number in numbers]
        return [self._load(number, replace) if content is None else content for number, content in contents]

    def _read_jpeg(self, number: int) -> Tensor | None:
        try:
            content = self.files.read(number)
        except BadImage:
            return None
        header = jpeg_header(content)
        return content if header and header.plain(self.source.channels) and header.upright else None

    def _decode_together(self, numbers: list[int], parts: list[Future[list[Tensor | Item]]], replace: bool) -> Loaded:
        """The batch of the files that threads have read; what the GPU cannot decode is loaded on the CPU."""
        files = [file for part in parts for file in part.result()]
        with self._lane():
            decoded = iter(self._decode_jpegs([file for file in files if isinstance(file, Tensor)]))
            items = []
            for number, file in zip(numbers, files, strict=True):
                image = next(decoded) if isinstance(file, Tensor) else None
                if image is None:
                    item = file if isinstance(file, Item) else self._load(number, replace)
                    item.image = None if item.image is None else self._send(item.image)
                else:
                    item = Item(self._bounded(image), int(self.labels[number]), [])
                items.append(item)
            return self._batch(items)

    def _decode_jpegs(self, contents: list[Tensor]) -> list[Tensor | None]:
        """Each image on the device; None for broken ones."""
        try:
            return list(decode_jpegs(contents, self.source.channels, self.device)) if contents else []
        except RuntimeError:  # it gives nothing at all if one of them is broken
            halves = contents[: len(contents) // 2], contents[len(contents) // 2 :]
            return [None] if len(contents) == 1 else [image for half in halves for image in self._decode_jpegs(half)]

    def _bounded(self, image: Tensor) -> Tensor:
        """The image, scaled if it is far larger than needed, since a batch has room for its largest one."""
        short_side = round(self.source.size / self.source.crop_pct)
        return shrink(image, short_side) if max(image.shape[1:]) > 2 * short_side else image

    def _note(self, bad: list[Bad]) -> None:
        """Report each unreadable file once; too many are an error."""
        all_bad = self.source.bad
        for path, reason in bad:
            if all_bad.add(path, reason) and not all_bad.quiet:
                say(f"cannot read {printable(path)} ({reason}); left out")
        all_bad.check(len(self.source.splits), self.source.name)


@dataclass
class Item:
    """A decoded file; without an image where none of the files tried can be read."""

    image: Tensor | None
    label: int
    bad: list[Bad]


@dataclass
class Loaded:
    """A decoded batch; without pixels where none of its files can be read."""

    pixels: Pixels | None
    bad: list[Bad]
