"""Semantic segmentation: one class a pixel, learned from images with masks, judged by mIoU.

Images are fitted into a square of the model's size. Scores are counted at the size that each mask has in its file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from nasformer.data.files import BadImages
from nasformer.data.images import normalise
from nasformer.data.loaders import BatchSource, Split, check_split
from nasformer.models.dense import dense_space
from nasformer.models.space import Space
from nasformer.tasks.batches import (
    FileBatches,
    FileTask,
    Pair,
    jitter,
    read_named,
    read_pixels,
    scaled_canvas,
    unfit,
    unique_stems,
)
from nasformer.tasks.masks import IGNORED, FileData, MaskFiles, compare_masks, indexed, open_masks, overlay, with_legend
from nasformer.tasks.options import SEGMENT, PredictOptions, SegmentOptions
from nasformer.tasks.registry import Prediction, TrainedModel, register_task
from nasformer.train.evaluate import Agreement, Objective, predictions
from nasformer.train.loss import Answers
from nasformer.utils.device import World

EVALUATION_BATCH = 16
WORST, MOST_SHARES = 3, 5
"""Classes that are named as the worst of an evaluation, and as the largest of an image."""


# Loss and metric


def pixel_cross_entropy(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """The mean over all pixels that have a class; 0 where none has.

    Targets may be probabilities of the classes, as a teacher gives them; those of pixels without a class are zeros.
    """
    if targets.is_floating_point():
        return F.cross_entropy(logits.float(), targets, reduction="sum") / targets.sum().clamp(min=1)
    total = F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def taught_pixels(logits: Tensor, targets: Tensor, answers: Answers) -> Tensor:
    """Probabilities of every pixel's classes: of its label, and of a teacher; pixels without a class stay so."""
    labelled = (targets != IGNORED)[:, None]
    labels = torch.zeros_like(logits).scatter_(1, targets[:, None].where(labelled, 0), 1.0)
    return answers.mix(labels, answers.classes(logits)) * labelled


@dataclass(frozen=True)
class ClassIoU:
    """The results of a model on the pixels of one class; iou is None where there are none in truth and answer."""

    name: str
    pixels: int
    iou: float | None
    accuracy: float | None
    """share of the class's pixels that are right"""


class MeanIoU:
    """Mean intersection over union: of each class over all pixels of a split, then the mean over the classes.

    As usual, classes that occur neither in the masks nor in the answers do not count.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes, self.images, self.loss = list(classes), 0, 0.0
        self.counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        self.by_image = list[float]()

    def update(self, logits: Tensor, targets: Sequence[Tensor]) -> None:
        """Adds images: the logits of their squares, and their masks at their own size."""
        for square, mask in zip(logits, targets, strict=True):
            self.add_logits(unfit(square, *mask.shape), mask)

    def add_logits(self, logits: Tensor, mask: Tensor) -> None:
        """Adds an image: logits [classes, rows, columns] and mask at its own size."""
        self.loss += float(pixel_cross_entropy(logits[None], logits, mask[None]))
        self.add(logits.argmax(0), mask)

    def add(self, answer: Tensor, mask: Tensor) -> None:
        size, labelled = len(self.classes), mask != IGNORED
        counts = torch.bincount(mask[labelled] * size + answer[labelled], minlength=size * size).view(size, size)
        self.counts = self.counts.to(counts.device) + counts
        self.by_image.append(mean_iou(counts))
        self.images += 1

    def combine(self, world: World, device: torch.device) -> None:
        """Adds what other processes have seen; mIoUs of single images stay where they are."""
        sums = world.sum(torch.tensor([self.loss, float(self.images)], device=device)).tolist()
        self.loss, self.images = sums[0], round(sums[1])
        self.counts = world.sum(self.counts.to(device))

    def compute(self) -> dict[str, float]:
        right = float(self.counts.diagonal().sum() / self.counts.sum().clamp(min=1))
        return {"miou": mean_iou(self.counts), "pixel_accuracy": right, "loss": self.loss / self.images}


def class_ious(counts: Tensor) -> Tensor:
    """Intersection over union of each class, from counts by true (row) and answered class; NaN without any."""
    hits = counts.diagonal().double()
    return hits / (counts.sum(0) + counts.sum(1) - hits)


def mean_iou(counts: Tensor) -> float:
    """The mean of the IoUs of classes that occur, from counts by true (row) and answered class.

    >>> mean_iou(torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    0.775
    """
    return float(class_ious(counts).nanmean())


@dataclass(frozen=True)
class Segmentation:
    """How a model does on a split."""

    counts: Tensor
    classes: Sequence[str]
    loss: float
    by_image: list[float]
    """mIoU of each image, in the order of the split"""

    @property
    def scores(self) -> dict[str, float]:
        right = int(self.counts.diagonal().sum()) / max(1, int(self.counts.sum()))
        return {"miou": mean_iou(self.counts), "pixel_accuracy": right, "loss": self.loss, "images": len(self.by_image)}

    @property
    def by_class(self) -> list[ClassIoU]:
        ious, pixels = class_ious(self.counts).tolist(), self.counts.sum(1).tolist()
        hits = self.counts.diagonal().tolist()
        return [
            ClassIoU(name, total, None if math.isnan(iou) else iou, hit / total if total else None)
            for name, total, iou, hit in zip(self.classes, pixels, ious, hits, strict=True)
        ]

    def sentences(self) -> list[str]:
        scored = sorted((score.iou, score.name) for score in self.by_class if score.iou is not None)
        worst = ", ".join(f"{name} {iou:.2%}" for iou, name in scored[:WORST])
        return [
            f"mIoU {self.scores['miou']:.2%}, pixels right {self.scores['pixel_accuracy']:.2%}",
            f"worst: {worst}",
        ]

    def to_json(self) -> dict[str, Any]:
        by_class = [asdict(score) for score in self.by_class]
        return {**self.scores, "by_class": by_class, "by_image": self.by_image}


def example_masks(images: int, batches: BatchSource) -> Tensor:
    return torch.zeros(images, batches.img_size, batches.img_size, dtype=torch.int64)


SAME_PIXELS = Agreement(
    lambda logits: logits.argmax(1).byte(), lambda classes, logits: (logits.argmax(1) == classes).float().mean((1, 2))
)
"""The share of pixels to which both models give the same class; probabilities of all pixels would fill the memory."""

SEGMENTATION = Objective(
    "miou",
    pixel_cross_entropy,
    lambda batches: MeanIoU(batches.classes),
    EVALUATION_BATCH,
    example_masks,
    taught=taught_pixels,
    agreement=SAME_PIXELS,
)


# Batches


class MaskBatches(FileBatches):
    """Batches of images with masks."""

    task, objective, target_bytes = SEGMENT, SEGMENTATION, 1

    @property
    def facts(self) -> dict[str, Any]:
        """What the model must know besides the classes."""
        return {"ignore": ",".join(map(str, self.options.ignored_ids()))}

    def read_pair(self, files: MaskFiles, index: int) -> Pair:
        return read_pixels(files.images[index], self.in_chans), self.data.labels.read(files.masks[index])

    def jittered(self, image: Tensor, target: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        x, moved = jitter(image, target, self.img_size, self.options, self.augment, self.fill, source)
        return x, self.target(moved)

    def target(self, mask: Tensor) -> Tensor:
        """The target of a mask in the square of the model."""
        return mask

    def collate(self, targets: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(targets)).to(self.device, non_blocking=True)
        return stacked if stacked.is_floating_point() else stacked.long()

    def truths(self, contents: Sequence[Tensor]) -> list[Tensor]:
        return [content.to(self.device, non_blocking=True).long() for content in contents]

    def pairs(self, split: Split) -> Iterator[Pair]:
        """The images and masks of a split, one by one, at their own size."""
        check_split(split, self.held_out)
        files = self.files[split]
        for (pair,) in self.loaded(lambda index: self.pair(files, index), ([(index,)] for index in range(len(files)))):
            yield pair


# Images


@torch.inference_mode()
def segment_image(
    model: nn.Module,
    image: Tensor,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    options: SegmentOptions | None = None,
) -> Tensor:
    """Logits of every pixel of an image (uint8, at its own size): [classes, rows, columns].

    With several scales, or mirrored as well, they are the logarithms of the mean probabilities.
    """
    model.eval()
    test, device = options or SegmentOptions(), next(model.parameters()).device
    fill = [round(255 * value) for value in mean]

    def logits(view: Tensor, scale: float) -> Tensor:
        canvas = scaled_canvas(view, size, scale, fill)
        of_canvas = window_logits(model, normalise(canvas[None].to(device), mean, std), size)
        return unfit(of_canvas, *view.shape[1:], size=size, scale=scale)

    if not test.tests_several:
        return logits(image, 1.0)
    answers = [logits(image, scale) for scale in test.scales()]
    if test.test_flip:
        answers += [logits(image.flip(2), scale).flip(2) for scale in test.scales()]
    return torch.stack([answer.softmax(0) for answer in answers]).mean(0).log()


def window_logits(model: nn.Module, canvas: Tensor, size: int) -> Tensor:
    """Logits [classes, rows, columns] of a canvas: the model's own, or where it is larger the mean of windows."""
    rows, columns = canvas.shape[2:]
    if (rows, columns) == (size, size):
        return model(canvas)[0].float()
    total, count = torch.zeros(0), canvas.new_zeros(rows, columns)
    for top in window_starts(rows, size):
        for left in window_starts(columns, size):
            window = slice(top, top + size), slice(left, left + size)
            logits = model(canvas[..., window[0], window[1]])[0].float()
            total = total if total.numel() else logits.new_zeros(len(logits), rows, columns)
            total[:, *window] += logits
            count[window] += 1
    return total / count


def window_starts(length: int, size: int) -> list[int]:
    """Where windows begin that cover a length evenly and overlap by a third or more.

    >>> window_starts(32, 32), window_starts(48, 32), window_starts(64, 32)
    ([0], [0, 16], [0, 16, 32])
    """
    steps = math.ceil((length - size) / (size * 2 / 3))
    return [round(step * (length - size) / max(steps, 1)) for step in range(steps + 1)]


# The task


@register_task
class Segment(FileTask):
    """Semantic segmentation with a UPerNet or DeepLab head."""

    facts, objective, batches = SEGMENT, SEGMENTATION, MaskBatches

    def space(self, space: Space, options: SegmentOptions) -> Space:
        return dense_space(space, self.name, head=options.head, decoder_dim=options.decoder_dim)

    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> FileData:
        return open_masks(root, options, bad, **amounts)

    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Any:
        metric = MeanIoU(classes)
        if isinstance(batches, MaskBatches) and batches.options.tests_several:
            for image, mask in batches.pairs(split):
                logits = segment_image(model, image, batches.img_size, batches.mean, batches.std, batches.options)
                metric.add_logits(logits, mask.to(logits.device).long())
        else:
            for logits, masks in predictions(model, batches, split):
                metric.update(logits, masks)  # type: ignore[arg-type]
        loss = metric.loss / metric.images
        return Segmentation(metric.counts.cpu(), classes, loss, metric.by_image)

    def picture(self, model: nn.Module, batches: MaskBatches, split: Split, index: int) -> Image.Image:
        image, truth = batches.pair(batches.files[split], index)
        logits = segment_image(model, image, batches.img_size, batches.mean, batches.std, batches.options)
        answer = logits.argmax(0).cpu()
        return with_legend(compare_masks(image, truth, answer), batches.classes, truth, answer)

    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[Prediction]:
        folder = options.folder("masks")
        for file, stem in zip(options.images, unique_stems(options.images), strict=True):
            image = read_named(file, trained.in_chans)
            answer = segment_image(trained.model, image, trained.img_size, trained.mean, trained.std).argmax(0).cpu()
            mask, picture = folder / f"{stem}_mask.png", folder / f"{stem}_overlay.png"
            indexed(answer).save(mask)
            overlay(image, answer).save(picture)
            yield MaskPrediction(file, class_shares(answer, trained.classes), str(mask), str(picture))


@dataclass(frozen=True)
class MaskPrediction:
    """The classes in an image by the share of its pixels, and where its mask and overlay were written."""

    file: str
    shares: dict[str, float]
    mask: str
    overlay: str

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in list(self.shares.items())[:MOST_SHARES])
        return f"{self.file}: {shares}; {self.overlay}"


def class_shares(answer: Tensor, classes: Sequence[str]) -> dict[str, float]:
    """The share of the pixels that each class has, the largest first.

    >>> class_shares(torch.tensor([0, 2, 2, 2]), ["sky", "road", "car"])
    {'car': 0.75, 'sky': 0.25}
    """
    counts = torch.bincount(answer.flatten(), minlength=len(classes)).tolist()
    shares = {name: count / answer.numel() for name, count in zip(classes, counts, strict=True) if count}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
