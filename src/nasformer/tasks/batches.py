"""Batches of image files and their targets: fitted into squares, jittered in training."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as V

from nasformer.data.augment import color_jitter
from nasformer.data.decode import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, channels_first, check_channels, converted
from nasformer.data.files import BadImages, fits
from nasformer.data.images import normalise
from nasformer.data.loaders import SPLITS, WHOLE, BatchSource, Share, Split, SplitBatches
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.data.streaming import ahead
from nasformer.errors import UserError
from nasformer.layers.segmentation import fitted_size
from nasformer.tasks.masks import IGNORED, FileData
from nasformer.tasks.options import JitterOptions, TaskFacts
from nasformer.tasks.registry import Evaluation, Task, example_images
from nasformer.train.evaluate import Objective
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.rng import Draws, Purpose, generator

AHEAD = 3
"""Batches that are decoded while others are trained on."""

# Geometry

Pair = tuple[Tensor, Tensor]
"""An image, uint8 [channels, rows, columns], and its mask, integers [rows, columns]."""


def fit(image: Tensor, size: int, fill: list[int]) -> Tensor:
    """The whole image at the top left of a square, the rest of which has one colour."""
    return scaled_canvas(image, size, 1.0, fill)


def scaled_canvas(image: Tensor, size: int, scale: float, fill: list[int]) -> Tensor:
    """The image, fitted and scaled further, at the top left of a square, or of a larger canvas where it needs one."""
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
    """Masks or boxes of an image without objects, after resizing, which torchvision cannot do for none."""
    if isinstance(part, tv_tensors.BoundingBoxes):
        return tv_tensors.wrap(part.as_subclass(Tensor), like=part, canvas_size=(shape[0], shape[1]))
    return tv_tensors.Mask(part.new_zeros(0, *shape))


# Files of images


def unique_stems(files: Sequence[str]) -> list[str]:
    """Names for the outputs of each file: its own, or its index where another file has the same name.

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
    """The pixels of a file, uint8 [channels, rows, columns]; never rotated by Exif data, as masks are drawn on them."""
    try:
        with Image.open(path) as image:
            return torch.from_numpy(np.ascontiguousarray(channels_first(converted(image, channels))))
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception on broken files
        raise UserError(f"{path} cannot be read any more ({error}); restore it") from error


def read_named(file: str, channels: int) -> Tensor:
    """The pixels of an image that a user names."""
    if not Path(file).is_file():
        raise UserError(f"there is no image {file}; check the path")
    return read_pixels(file, channels)


# Batches


class FileBatches(SplitBatches):
    """Batches of images in files, decoded by threads as they are needed, or once where all fit into memory.

    What an item looks like depends only on (seed, step, position in the global batch). Subclasses say what belongs to
    an image (`read_pair`) and what is learned of it (`jittered`).
    """

    task: ClassVar[TaskFacts]
    objective: Objective
    target_bytes: ClassVar[int] = 0
    """Bytes of a pixel of the target."""
    calibration_batch: ClassVar[int] = 16
    """Most images at once when batch norm is calibrated."""

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
        self.files = dict(zip(SPLITS, data.splits.parts(), strict=True))
        super().__init__(self.files, data.splits.classes, batch_size, seed, rank, world, device, repeats)
        self.data, self.options, self.workers = data, options or self.task.options(), workers  # type: ignore[misc]
        self.augment = check_augment(augment.for_images(img_size, in_chans))
        self.img_size, self.in_chans = img_size, check_channels(in_chans)
        normalisation = (IMAGENET_MEAN, IMAGENET_STD)
        self.mean, self.std = (values if in_chans == 3 else (fmean(values),) * in_chans for values in normalisation)
        keeps = fits(data.pixels * (in_chans + self.target_bytes), torch.device("cpu"), world)
        self.decoded: dict[str, tuple[Tensor, Any]] | None = {} if keeps else None
        self.streamed = not keeps

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing((self.img_size, self.img_size), self.in_chans, 1.0, "bilinear", self.mean, self.std)

    @property
    def class_counts(self) -> Tensor:
        raise UserError("masks have many classes in an image; balance is for classification, leave it out")

    @property
    def fill(self) -> list[int]:
        """The mean colour, in bytes."""
        return [round(255 * value) for value in self.mean]

    def read_pair(self, files: Any, index: int) -> tuple[Tensor, Any]:
        """An image and what belongs to it, from their files, at their own size."""
        raise NotImplementedError

    def to_target(self, content: Any) -> Any:
        """The target of an image, at its own size."""
        return content

    def jittered(self, image: Tensor, target: Any, source: torch.Generator) -> tuple[Tensor, Any]:
        """An image in the square of the model, augmented, and its target."""
        raise NotImplementedError

    def collate(self, targets: Sequence[Any]) -> Any:
        """The targets of a training batch, on the device."""
        raise NotImplementedError

    def truths(self, contents: Sequence[Any]) -> Any:
        """The truths by which the images of a batch are judged, at their own size."""
        return list(contents)

    def pair(self, files: Any, index: int) -> tuple[Tensor, Any]:
        """An image and what belongs to it, kept in memory where all fit."""
        path = files.images[index]
        if self.decoded is None:
            return self.read_pair(files, index)
        if path not in self.decoded:
            self.decoded[path] = self.read_pair(files, index)
        return self.decoded[path]

    def train_batches(self, start_step: int = 0) -> Iterator[Any]:
        files = self.files["train"]

        def item(step: int, position: int, index: int) -> tuple[Tensor, Any]:
            source = generator(self.seed, Purpose.GEOMETRY, step, position)
            image, mask = self.pair(files, index)
            return self.jittered(image, self.to_target(mask), source)

        def arguments(step: int) -> list[tuple[int, int, int]]:
            part = self.train_part(step)
            return [(step, self.rank * len(part) + number, index) for number, index in enumerate(part.tolist())]

        for step, pairs in enumerate(self.loaded(item, map(arguments, count(start_step))), start_step):
            images, targets = zip(*pairs, strict=True)
            yield self.normalised(self.coloured(torch.stack(images), step)), self.collate(targets)

    def coloured(self, images: Tensor, step: int) -> Tensor:
        """A batch on the device, its colours jittered as the recipe asks."""
        images, strength = images.to(self.device, non_blocking=True), self.augment.color_jitter
        draws = Draws(generator(self.seed, Purpose.JITTER, step), len(images), self.rank, self.world)
        return color_jitter(images, strength, draws) if strength else images

    def evaluation(
        self, split: Split, batch_size: int, share: Share = WHOLE, numbers: Tensor | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """A split once (some of its images, or a share of its batches): squares and truths."""
        for x, contents in self.fitted(split, self.evaluation_parts(split, batch_size, share, numbers)):
            yield x, self.truths(contents)

    def calibration(self, images: int, batch_size: int, share: Share = WHOLE) -> Iterator[Any]:
        parts = self.calibration_parts(images, min(batch_size, self.calibration_batch), share)
        return (x for x, _ in self.fitted("train", parts))

    def fitted(self, split: Split, parts: Iterable[Tensor]) -> Iterator[tuple[Any, Any]]:
        """Batches of images, each in the square of the model without augmentation, and what belongs to them."""
        files = self.files[split]

        def item(index: int) -> tuple[Tensor, Any]:
            image, content = self.pair(files, index)
            return fit(image, self.img_size, self.fill), content

        for pairs in self.loaded(item, ([(index,) for index in part.tolist()] for part in parts)):
            images, contents = zip(*pairs, strict=True)
            yield self.normalised(torch.stack(images)), contents

    def normalised(self, images: Tensor) -> Tensor:
        return normalise(images.to(self.device, non_blocking=True), self.mean, self.std)

    def loaded(self, item: Any, batches: Iterable[Sequence[tuple[int, ...]]]) -> Iterator[list[Pair]]:
        """Batches of items, made a few ahead by threads, or one by one without workers."""
        if not self.workers:
            for batch in batches:
                yield [item(*arguments) for arguments in batch]
            return
        pool = ThreadPoolExecutor(self.workers)
        try:
            for futures in ahead(([pool.submit(item, *arguments) for arguments in batch] for batch in batches), AHEAD):
                yield [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


# A task


def check_augment(augment: AugmentOptions) -> AugmentOptions:
    """Refuses augmentation that is for whole images with one label."""
    for name in ("rotate", "randaugment", "erasing", "mixup", "cutmix"):
        if getattr(augment, name):
            raise UserError(f"train.augment.{name} is for classification; leave it out with other tasks")
    return augment


class FileTask(Task):
    """Base of tasks whose images and targets are in files."""

    batches: ClassVar[type[FileBatches]]
    batch_norm: ClassVar[bool] = True
    """Whether the head has batch norm."""

    @abstractmethod
    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> FileData:
        """Reads, splits and checks the files of a folder."""

    @abstractmethod
    def picture(self, model: nn.Module, batches: Any, split: Split, index: int) -> Image.Image:
        """An image of a split with its truth and the model's answer."""

    def draw(
        self, model: nn.Module, batches: BatchSource, split: Split, folder: Path, evaluation: Evaluation | None = None
    ) -> None:
        evaluation = evaluation or self.judge(model, batches, split, batches.classes)
        folder.mkdir(parents=True, exist_ok=True)
        for name, index in example_images(evaluation.by_image).items():  # type: ignore[attr-defined]
            self.picture(model, batches, split, index).save(folder / f"{name}.png")

    def check_recipe(self, recipe: Recipe, world: World) -> None:
        """Refuses recipes that the task cannot be trained with."""
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
