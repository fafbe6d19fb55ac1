"""Accuracy: of a model, or of an arch with the weights it inherits from a supernet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from nasformer.data import BatchSource, Split
from nasformer.families.backbone import Backbone
from nasformer.space import Arch
from nasformer.supernet import Supernet
from nasformer.supernet.statistics import IMAGES, recalibrated
from nasformer.train.precision import autocast

KEPT = 8
"""Models kept: an arch is judged on one split, then on another, then shipped."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: BatchSource,
    split: Split = "test",
    *,
    arch: Arch | None = None,
    batch_size: int = 512,
    precision: str = "auto",
) -> dict[str, float]:
    """Top-1 and top-5 accuracy (0 to 1) on a split.

    Args:
        arch: Which arch to run, if the model is a supernet.
    """
    device = next(model.parameters()).device
    top1, top5, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for guesses, labels in ranked(model, batches, split, arch=arch, batch_size=batch_size, precision=precision):
        hits = guesses == labels[:, None]
        top1 += hits[:, 0].sum()
        top5 += hits.any(1).sum()
        count += len(labels)
    return {"accuracy": top1.item() / count, "top5": top5.item() / count}


@torch.no_grad()
def ranked(
    model: nn.Module,
    batches: BatchSource,
    split: Split,
    *,
    arch: Arch | None = None,
    batch_size: int = 512,
    precision: str = "auto",
) -> Iterator[tuple[Tensor, Tensor]]:
    """A split in batches: the model's five best guesses for each image (all, where there are fewer), and the labels."""
    model.eval()
    device = next(model.parameters()).device
    for x, labels in batches.evaluation(split, batch_size):
        with autocast(device, precision):
            logits = padded(lambda x: model(x) if arch is None else model(x, arch), x, batch_size)
        yield logits.topk(min(5, logits.shape[1])).indices, labels


def padded(forward: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Runs a last, smaller batch at full size on a GPU, where another size would be compiled anew."""
    missing = size - len(x)
    if missing == 0 or not x.is_cuda:
        return forward(x)
    return forward(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))[: len(x)]


class Heirs:
    """Archs with the weights they inherit from a supernet, which must not change meanwhile.

    Where there is batch norm, each arch gets statistics of its own first, and the last few are kept.

    Args:
        images: How many training images these statistics are estimated on.
    """

    def __init__(self, supernet: Supernet, batches: BatchSource, precision: str = "auto", images: int = IMAGES) -> None:
        self.supernet, self.batches, self.precision = supernet, batches, precision
        self.model: Callable[[Arch], Backbone] = lru_cache(KEPT)(
            partial(recalibrated, supernet, batches=batches, images=images)
        )

    def accuracy(self, arch: Arch, split: Split = "test") -> float:
        if self.supernet.has_statistics:
            return evaluate(self.model(arch), self.batches, split, precision=self.precision)["accuracy"]
        return evaluate(self.supernet, self.batches, split, arch=arch, precision=self.precision)["accuracy"]


def inherited_accuracy(
    supernet: Supernet,
    batches: BatchSource,
    split: Split = "holdout",
    precision: str = "auto",
    images: int = IMAGES,
) -> Callable[[Arch], dict[str, float]]:
    """The evaluator of a search: accuracy with inherited weights on images held out of training."""
    heirs = Heirs(supernet, batches, precision, images)
    return lambda arch: {"accuracy": heirs.accuracy(arch, split)}
