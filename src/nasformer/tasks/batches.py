"""Images in files with what is to be learned of them: fitted into squares, jittered in training, put into batches."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as V

from nasformer.data.augment import color_jitter
from nasformer.data.decode import channels_first, check_channels, converted
from nasformer.data.files import BadImages, fits
from nasformer.data.images import Splits, normalise
from nasformer.data.loaders import (
    WHOLE,
    Share,
    Split,
    batch_indices,
    calibration_indices,
    check_split,
    clamp_batch,
    rank_slice,
    steps_per_epoch,
)
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.data.preprocessing import Preprocessing
from nasformer.errors import UserError
from nasformer.layers.segmentation import fitted_size
from nasformer.supernet.pretrained import IMAGENET
from nasformer.tasks.masks import IGNORED
from nasformer.tasks.options import JitterOptions, TaskFacts
from nasformer.tasks.registry import Task
from nasformer.train.evaluate import Objective
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.rng import Draws, Purpose, generator

AHEAD = 3
"""Batches that are decoded while others are trained on."""

CALIBRATION_BATCH = 16
"""Most images at once when batch norm is calibrated."""

# Geometry

Pair = tuple[Tensor, Tensor]
"""An image, uint8 [channels, rows, columns], and its mask, integers [rows, columns]."""


def fit(image: Tensor, size: int, fill: list[int]) -> Tensor:
    """The whole image at the top left of a square, the rest of which has one colour."""
    return scaled_canvas(image, size, 1.0, fill)


def scaled_canvas(image: Tensor, size: int, scale: float, fill: list[int]) -> Tensor:
    """The image scaled as if to be fitted, and further, at the top left of a square or of what it needs beyond."""
    shape = list(fitted_size(image.shape[1], image.shape[2], size, scale))
    scaled = V.resize(tv_tensors.Image(image), shape, antialias=True)
    border = [0, 0, max(0, size - shape[1]), max(0, size - shape[0])]
    return V.pad(scaled, border, fill=fill).as_subclass(Tensor)


def unfit(logits: Tensor, rows: int, columns: int, *, size: int | None = None, scale: float = 1.0) -> Tensor:
    """Logits of a canvas [classes, rows, columns] for the image that was fitted into it, at its own size.

    Args:
        size: Of the square that the image was fitted to, where the canvas is larger.
    """
    height, width = fitted_size(rows, columns, size or logits.shape[-1], scale)
    inner = logits[None, :, :height, :width].float()
    return torch.nn.functional.interpolate(inner, (rows, columns), mode="bilinear", align_corners=False)[0]


def jitter(
    image: Tensor,
    mask: Tensor,
    size: int,
    options: JitterOptions,
    augment: AugmentOptions,
    fill: list[int],
    source: torch.Generator,
) -> Pair:
    """An image and its mask, jittered together."""
    parts: list[Tensor] = [tv_tensors.Image(image), tv_tensors.Mask(mask[None])]
    picture, classes = jitter_together(parts, [fill, IGNORED], size, options, augment, source)
    return picture.as_subclass(Tensor), classes[0].as_subclass(Tensor)


def jitter_together(
    parts: Sequence[Tensor],
    fills: Sequence[Any],
    size: int,
    options: JitterOptions,
    augment: AugmentOptions,
    source: torch.Generator,
) -> list[Tensor]:
    """Large-scale jitter (Ghiasi et al. 2021): scaled at random, a random part of it or padded, mirrored.

    Args:
        parts: The image and what belongs to it, as torchvision's tv_tensors.
        fills: What each part has where it is padded.
    """
    scale, top, left, flip = torch.rand(4, generator=source).tolist()
    scale = options.scale_min + (options.scale_max - options.scale_min) * scale
    shape = list(fitted_size(parts[0].shape[1], parts[0].shape[2], size, scale))
    border = [0, 0, max(0, size - shape[1]), max(0, size - shape[0])]
    corner = [int(top * (max(shape[0] - size, 0) + 1)), int(left * (max(shape[1] - size, 0) + 1))]
    done = list[Tensor]()
    for part, fill in zip(parts, fills, strict=True):
        part = V.resize(part, shape, antialias=True) if part.numel() else empty_like(part, shape)
        part = V.crop(V.pad(part, border, fill=fill), *corner, size, size)
        done.append(V.horizontal_flip(part) if flip < (augment.hflip or 0.0) else part)
    return done


def empty_like(part: Tensor, shape: list[int]) -> Tensor:
    """No masks or boxes of an image that has another size now; torchvision resizes none."""
    if isinstance(part, tv_tensors.BoundingBoxes):
        return tv_tensors.wrap(part.as_subclass(Tensor), like=part, canvas_size=(shape[0], shape[1]))
    return tv_tensors.Mask(part.new_zeros(0, *shape))


# Files of images


def existing(file: str) -> str:
    if not Path(file).is_file():
        raise UserError(f"there is no image {file}; check the path")
    return file


def unique_stems(files: Sequence[str]) -> list[str]:
    """Names for what is written of each file: its own, or its number where another file has the same.

    >>> unique_stems(["a/x.jpg", "a/y.jpg", "b/x.jpg"])
    ['0', 'y', '2']
    >>> unique_stems(["a/x.jpg", "b/x.jpg", "0.jpg"])  # numbers for all, where a file is named as the number of another
    ['0', '1', '2']
    """
    stems = [Path(file).stem for file in files]
    counts = Counter(stems)
    names = [stem if counts[stem] == 1 else str(number) for number, stem in enumerate(stems)]
    return names if len(set(names)) == len(names) else [str(number) for number in range(len(names))]


def read_pixels(path: str, channels: int) -> Tensor:
    """The image as its pixels lie in the file, since masks are drawn on these; uint8 [channels, rows, columns]."""
    try:
        with Image.open(path) as image:
            return torch.from_numpy(np.ascontiguousarray(channels_first(converted(image, channels))))
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception on broken files
        raise UserError(f"{path} cannot be read any more ({error}); restore it") from error


# Batches


class FileData(Protocol):
    """Files of images in three parts, all of which can be used, and what is to be learned of them."""

    @property
    def splits(self) -> Splits[Any]: ...

    @property
    def labels(self) -> Any:
        """With the names of the `classes`."""

    @property
    def pixels(self) -> int:
        """Of all images together, to know what they take in memory."""


class FileBatches:
    """Batches of images in files, decoded by threads as they are needed, or once where all fit into memory.

    What an item looks like depends on (seed, step, position in the global batch) alone. Subclasses say what belongs to
    an image (`read_pair`) and what is learned of it (`jittered`).
    """

    task: ClassVar[TaskFacts]
    objective: Objective
    target_bytes: ClassVar[int] = 0
    """Of what belongs to a pixel of an image."""

    def __init__(
        self,
        data: FileData,
        augment: AugmentOptions,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
        *,
        img_size: int,
        in_chans: int = 3,
        options: Any = None,
        workers: int = 4,
    ) -> None:
        self.data, self.classes, self.options = data, data.labels.classes, options or self.task.options()  # type: ignore[misc]
        self.augment = check_augment(augment.for_images(img_size, in_chans))
        self.files = dict(zip(("train", "holdout", "test"), data.splits.parts(), strict=True))
        self.batch_size = clamp_batch(len(self.files["train"]), batch_size, world)
        self.seed, self.rank, self.world, self.repeats = seed, rank, world, repeats
        self.device, self.workers = torch.device(device), workers
        self.img_size, self.in_chans = img_size, check_channels(in_chans)
        self.mean, self.std = (values if in_chans == 3 else (fmean(values),) * in_chans for values in IMAGENET)
        keeps = fits(data.pixels * (in_chans + self.target_bytes), torch.device("cpu"), world)
        self.decoded: dict[str, tuple[Tensor, Any]] | None = {} if keeps else None
        self.streamed = not keeps

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def held_out(self) -> int:
        return len(self.files["holdout"])

    @property
    def test_images(self) -> int:
        return len(self.files["test"])

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing((self.img_size, self.img_size), self.in_chans, 1.0, "bilinear", self.mean, self.std)

    @property
    def class_counts(self) -> Tensor:
        raise UserError("masks have many classes in an image; balance is for classification, leave it out")

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.files["train"]), self.batch_size)

    @property
    def fill(self) -> list[int]:
        """The mean colour, in bytes."""
        return [round(255 * value) for value in self.mean]

    def read_pair(self, files: Any, index: int) -> tuple[Tensor, Any]:
        """An image and what belongs to it, from their files, at their own size."""
        raise NotImplementedError

    def learned(self, content: Any) -> Any:
        """What is learned of an image, at its own size."""
        return content

    def jittered(self, image: Tensor, target: Any, source: torch.Generator) -> tuple[Tensor, Any]:
        """An image in the square of the model as training sees it, and what is learned of it."""
        raise NotImplementedError

    def together(self, targets: Sequence[Any]) -> Any:
        """The targets of a training batch, on the device."""
        raise NotImplementedError

    def truth(self, content: Any) -> Any:
        """What an image is evaluated by, at its own size."""
        return content

    def pair(self, files: Any, index: int) -> tuple[Tensor, Any]:
        """An image and what belongs to it, which are kept where all fit into memory."""
        path = files.images[index]
        if self.decoded is None:
            return self.read_pair(files, index)
        if path not in self.decoded:
            self.decoded[path] = self.read_pair(files, index)
        return self.decoded[path]

    def train_indices(self, start_step: int) -> Iterator[tuple[int, Tensor]]:
        """Each step, and the images of this process in its batch."""
        for step in count(start_step):
            everything = batch_indices(len(self.files["train"]), self.batch_size, step, self.seed, self.repeats)
            yield step, rank_slice(everything, self.rank, self.world)

    def train_batches(self, start_step: int = 0) -> Iterator[Any]:
        files = self.files["train"]

        def item(step: int, position: int, index: int) -> tuple[Tensor, Any]:
            source = generator(self.seed, Purpose.GEOMETRY, step, position)
            image, mask = self.pair(files, index)
            return self.jittered(image, self.learned(mask), source)

        arguments = (
            [(step, self.rank * len(mine) + number, index) for number, index in enumerate(mine.tolist())]
            for step, mine in self.train_indices(start_step)
        )
        for step, pairs in enumerate(self.loaded(item, arguments), start_step):
            images, targets = zip(*pairs, strict=True)
            yield self.normalised(self.coloured(torch.stack(images), step)), self.together(targets)

    def coloured(self, images: Tensor, step: int) -> Tensor:
        """A batch on the device, with colours that the recipe jitters."""
        images, strength = images.to(self.device, non_blocking=True), self.augment.color_jitter
        draws = Draws(generator(self.seed, Purpose.JITTER, step), len(images), self.rank, self.world)
        return color_jitter(images, strength, draws) if strength else images

    def evaluation(
        self, split: Split, batch_size: int, share: Share = WHOLE, numbers: Tensor | None = None
    ) -> Iterator[tuple[Tensor, list[Any]]]:
        """A split once, or some of its images, or a share of its batches: squares, and their truths."""
        files = self.files[check_split(split, self.held_out)]

        def item(index: int) -> Pair:
            image, mask = self.pair(files, index)
            return fit(image, self.img_size, self.fill), mask

        chosen = torch.arange(len(files)) if numbers is None else numbers
        parts = chosen.split(batch_size)[share[0] :: share[1]]
        for pairs in self.loaded(item, ([(index,) for index in part.tolist()] for part in parts)):
            x = self.normalised(torch.stack([image for image, _ in pairs]))
            yield x, [self.truth(mask) for _, mask in pairs]

    def to(self, device: torch.device | str) -> FileBatches:
        """The same images for another device."""
        other = copy(self)
        other.device = torch.device(device)
        return other

    def calibration(self, images: int, batch_size: int, share: Share = WHOLE) -> Iterator[Tensor]:
        files = self.files["train"]

        def item(index: int) -> Pair:
            image, mask = self.pair(files, index)
            return fit(image, self.img_size, self.fill), mask

        parts = calibration_indices(len(files), images, min(batch_size, CALIBRATION_BATCH), self.seed)
        mine = parts[share[0] :: share[1]]
        for pairs in self.loaded(item, ([(index,) for index in part.tolist()] for part in mine)):
            yield self.normalised(torch.stack([image for image, _ in pairs]))

    def normalised(self, images: Tensor) -> Tensor:
        return normalise(images.to(self.device, non_blocking=True), self.mean, self.std)

    def loaded(self, item: Any, batches: Iterable[Sequence[tuple[int, ...]]]) -> Iterator[list[Pair]]:
        """Batches of items, a few of them ahead, by threads; with no workers one after the other."""
        if not self.workers:
            for batch in batches:
                yield [item(*arguments) for arguments in batch]
            return
        waiting = deque[list[Future[Pair]]]()
        pool = ThreadPoolExecutor(self.workers)
        try:
            for batch in batches:
                waiting.append([pool.submit(item, *arguments) for arguments in batch])
                if len(waiting) > AHEAD:
                    yield [future.result() for future in waiting.popleft()]
            while waiting:
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


# A task


def check_augment(augment: AugmentOptions) -> AugmentOptions:
    """Refuses what is for whole images with one label."""
    for name in ("rotate", "randaugment", "erasing", "mixup", "cutmix"):
        if getattr(augment, name):
            raise UserError(f"train.augment.{name} is for classification; leave it out with other tasks")
    return augment


class FileTask(Task):
    """A task whose images lie in files beside what is to be learned of them."""

    batches: ClassVar[type[FileBatches]]
    batch_norm: ClassVar[bool] = True
    """Whether the head has it."""

    @abstractmethod
    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> Any:
        """Reads, splits and checks the files of a folder."""

    def check_recipe(self, recipe: Recipe, world: World) -> None:
        """Refuses what the task cannot be trained with."""
        if recipe.balance:
            raise UserError(f"balance is for classification; leave it out with --task {self.name}")
        if recipe.inplace_distillation and self.objective.taught is None:
            raise UserError(f"inplace_distillation has no answers to compare with --task {self.name}; leave it out")
        if self.batch_norm and recipe.batch_size // world.size // recipe.accumulate < 2:
            raise UserError("batch norm of the segmentation head needs two images at a time; raise --train.batch-size")

    def load_batches(
        self,
        options: Any,
        recipe: Recipe,
        world: World,
        device: torch.device,
        img_size: int | None,
        in_chans: int | None = None,
        usual_size: int = 224,
        bad_list: Path | None = None,
    ) -> FileBatches:
        self.check_recipe(recipe, world)
        if options.data == DataOptions.data and not Path(options.data).exists():
            raise UserError(f"--task {self.name} learns from annotated images in files; name their folder with --data")
        log = bad_list if world.main else None
        bad = BadImages(options.max_bad, log, quiet=not world.main, what="images cannot be used")
        amounts = {"holdout": options.holdout, "seed": options.seed, "train_images": options.train_images}
        return self.batches(
            self.open(Path(options.data), options.of_task, bad, **amounts),
            recipe.augment,
            recipe.batch_size,
            options.seed,
            world.rank,
            world.size,
            device,
            recipe.repeats,
            img_size=img_size or usual_size,
            in_chans=in_chans or 3,
            options=options.of_task,
            workers=options.workers if options.workers != "auto" else max(1, (os.cpu_count() or 1) // world.size),
        )
