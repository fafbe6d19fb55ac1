"""Which classes a model takes for which: from the counts, its accuracy by class and the classes it knows worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nasformer.data import BatchSource, Split
from nasformer.train.evaluate import ranked


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

    >>> found = Confusion(torch.tensor([[3, 1], [0, 4]]), 1.0, ["cat", "dog"])
    >>> found.scores
    {'accuracy': 0.875, 'top5': 1.0, 'images': 8}
    >>> found.worst(1)
    [ClassScore(name='cat', images=4, correct=3, accuracy=0.75, mistaken_for='dog')]
    """

    counts: Tensor
    top5: float
    classes: Sequence[str]

    @property
    def scores(self) -> dict[str, float]:
        images = int(self.counts.sum())
        return {"accuracy": int(self.counts.trace()) / images, "top5": self.top5, "images": images}

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
        known = [(one.accuracy, place, one) for place, one in enumerate(self.by_class) if one.accuracy is not None]
        return [one for *_, one in sorted(known)[:count]]


def find_confusion(model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Confusion:
    """Runs a model on a split and counts."""
    size, hits, images = len(classes), 0, 0
    pairs = torch.zeros(size * size, dtype=torch.int64)
    for guesses, labels in ranked(model, batches, split):
        hits += int((guesses == labels[:, None]).any(1).sum())
        images += len(labels)
        pairs += torch.bincount((labels * size + guesses[:, 0]).cpu(), minlength=size * size)
    return Confusion(pairs.view(size, size), hits / images, classes)
