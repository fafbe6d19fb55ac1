"""Evaluation: accuracy and loss of a model and of subnets with inherited weights, and which classes are confused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.data.images import Data
from nasformer.data.loaders import Batches, BatchSource, Split
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.calibration import ALONE, IMAGES, recalibrated
from nasformer.supernet.supernet import Supernet
from nasformer.utils.world import World

KEPT = 8
"""Models kept: an arch is judged on one split, then on another, then shipped."""
EVALUATION_BATCH = 512


def autocast(device: torch.device, precision: str = "auto") -> AbstractContextManager[object]:
    """bf16 autocast where it is asked for, or by itself on a GPU that has it."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Data | BatchSource,
    split: Split = "test",
    *,
    arch: Arch | None = None,
    batch_size: int = EVALUATION_BATCH,
    precision: str = "auto",
    world: World = ALONE,
) -> dict[str, float]:
    """Top-1 and top-5 accuracy (0 to 1) and the mean cross-entropy on a split.

    Args:
        arch: Which arch to run, if the model is a supernet.
        world: Processes that share the images, and all call this alike.
    """
    device = next(model.parameters()).device
    batches = Batches(data, AugmentOptions(), batch_size, device=device) if isinstance(data, Data) else data
    sums, count = torch.zeros(3, device=device), 0
    settings: dict[str, Any] = {"arch": arch, "batch_size": batch_size, "precision": precision}
    for logits, labels in predictions(model, batches, split, **settings, world=world):
        hits = top_classes(logits) == labels[:, None]
        loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        sums += torch.stack([hits[:, 0].sum(), hits.any(1).sum(), loss])
        count += len(labels)
    top1, top5, loss_sum, count = world.sum(torch.cat([sums.double(), sums.new_tensor([count]).double()])).tolist()
    if not count:
        raise UserError(f"no image of the {split} part can be read; check the files")
    return {"accuracy": top1 / count, "top5": top5 / count, "loss": loss_sum / count}


@torch.no_grad()
def predictions(
    model: nn.Module,
    batches: BatchSource,
    split: Split,
    *,
    arch: Arch | None = None,
    batch_size: int = EVALUATION_BATCH,
    precision: str = "auto",
    world: World = ALONE,
    numbers: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """A split in batches, or its images of these numbers: the model's logits and the labels."""
    model.eval()
    device = next(model.parameters()).device
    part: dict[str, Any] = {"share": world.part} if world.size > 1 else {}
    if numbers is not None:
        part["numbers"] = numbers
    for x, labels in batches.evaluation(split, batch_size, **part):
        with autocast(device, precision):
            logits = padded(lambda x: model(x) if arch is None else model(x, arch), x, batch_size)
        yield logits, labels


def top_classes(logits: Tensor) -> Tensor:
    """The five best guesses for each image, best first; all classes, where there are fewer."""
    return logits.topk(min(5, logits.shape[1])).indices


def padded(forward: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Runs a last, smaller batch at full size on a GPU, where another size would be compiled anew."""
    missing = size - len(x)
    if missing == 0 or not x.is_cuda:
        return forward(x)
    return forward(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))[: len(x)]


class SubnetEvaluator:
    """Evaluates archs with the weights they inherit from a supernet, which must not change meanwhile.

    Where there is batch norm, each arch gets statistics of its own first, and the last few are kept. Called with an
    arch, it gives the scores of a search: on images held out of training, never on the test set.

    Args:
        images: How many training images these statistics are estimated on.
        world: Processes that share the images, and all evaluate the same archs.
    """

    def __init__(
        self,
        supernet: Supernet,
        batches: BatchSource,
        precision: str = "auto",
        images: int = IMAGES,
        world: World = ALONE,
    ) -> None:
        self.supernet, self.batches, self.precision, self.world = supernet, batches, precision, world
        self.model: Callable[[Arch], Backbone] = lru_cache(KEPT)(
            partial(recalibrated, supernet, batches=batches, images=images, world=world)
        )

    def __call__(self, arch: Arch) -> dict[str, float]:
        scores = self.evaluate(arch, "holdout")
        # Of logits that are NaN some class comes first as well: such an arch must not win by that.
        accuracy = math.nan if math.isnan(scores["loss"]) else scores["accuracy"]
        return {"accuracy": accuracy, "loss": scores["loss"]}

    def accuracy(self, arch: Arch, split: Split = "test") -> float:
        return self.evaluate(arch, split)["accuracy"]

    def evaluate(self, arch: Arch, split: Split = "test") -> dict[str, float]:
        model, chosen = self._ready(arch)
        return evaluate(model, self.batches, split, arch=chosen, precision=self.precision, world=self.world)

    def outcomes(self, arch: Arch, numbers: Tensor) -> Tensor:
        """Whether each held-out image of these numbers is recognised, and its loss: [2, images], on the CPU."""
        model, chosen = self._ready(arch)
        found = []
        asked = {"arch": chosen, "precision": self.precision, "numbers": numbers}
        for logits, labels in predictions(model, self.batches, "holdout", **asked):  # type: ignore[arg-type]
            losses = F.cross_entropy(logits.float(), labels, reduction="none")
            found.append(torch.stack([(logits.argmax(1) == labels).float(), losses]))
        return torch.cat(found, dim=1).cpu()

    def _ready(self, arch: Arch) -> tuple[nn.Module, Arch | None]:
        """The model to run and the arch to run it as: where there is batch norm one of its own, else the supernet."""
        return (self.model(arch), None) if self.supernet.has_statistics else (self.supernet, arch)


# Confusion: accuracy by class, and which class is taken for which


@dataclass(frozen=True)
class ClassScore:
    """How a model does on the images of one class; accuracy is None where there are none."""

    name: str
    images: int
    correct: int
    accuracy: float | None
    mistaken_for: str | None
    """the class that it is wrongly taken for most often; None if it never is"""


@dataclass(frozen=True)
class Confusion:
    """How often images of a class (row) were taken for which class (column).

    >>> confusion = Confusion(torch.tensor([[3, 1], [0, 4]]), 1.0, ["cat", "dog"])
    >>> confusion.scores
    {'accuracy': 0.875, 'top5': 1.0, 'balanced_accuracy': 0.875, 'macro_f1': 0.873015873015873, 'images': 8}
    >>> confusion.worst(1)
    [ClassScore(name='cat', images=4, correct=3, accuracy=0.75, mistaken_for='dog')]
    """

    counts: Tensor
    top5: float
    classes: Sequence[str]

    @property
    def scores(self) -> dict[str, float]:
        images = int(self.counts.sum())
        balanced = {"balanced_accuracy": self.balanced_accuracy, "macro_f1": self.macro_f1}
        return {"accuracy": int(self.counts.trace()) / images, "top5": self.top5, **balanced, "images": images}

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the classes' accuracies, so that rare classes count as much as others."""
        return fmean(score.accuracy for score in self.by_class if score.accuracy is not None)

    @property
    def macro_f1(self) -> float:
        """The mean of the classes' F1 (of precision and recall), over classes that occur as label or as answer."""
        hits, occurrences = self.counts.diagonal(), self.counts.sum(0) + self.counts.sum(1)
        occurs = occurrences > 0
        return float((2 * hits[occurs].double() / occurrences[occurs]).mean())

    @property
    def by_class(self) -> list[ClassScore]:
        return [self.score_of(number) for number in range(len(self.classes))]

    def score_of(self, number: int) -> ClassScore:
        row = self.counts[number]
        images, correct = int(row.sum()), int(row[number])
        wrong = row.clone()
        wrong[number] = 0
        mistaken = self.classes[int(wrong.argmax())] if images > correct else None
        return ClassScore(self.classes[number], images, correct, correct / images if images else None, mistaken)

    def worst(self, count: int) -> list[ClassScore]:
        """The classes with the lowest accuracy; of equal ones the first."""
        scored = [(score.accuracy, number) for number, score in enumerate(self.by_class) if score.accuracy is not None]
        return [self.score_of(number) for _, number in sorted(scored)[:count]]


def find_confusion(model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Confusion:
    """Runs a model on a split and counts."""
    size, hits, images = len(classes), 0, 0
    pairs = torch.zeros(size * size, dtype=torch.int64)
    for logits, labels in predictions(model, batches, split):
        guesses = top_classes(logits)
        hits += int((guesses == labels[:, None]).any(1).sum())
        images += len(labels)
        pairs += torch.bincount((labels * size + guesses[:, 0]).cpu(), minlength=size * size)
    return Confusion(pairs.view(size, size), hits / images, classes)
