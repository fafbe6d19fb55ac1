"""Which classes are taken for which, in a model whose guesses are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tiny
from nasformer.train.evaluate import Confusion, evaluate, find_confusion

CLASSES = [f"digit {number}" for number in range(10)]


class Knowing(nn.Module):
    """Guesses the label of each image of the test set, but takes every 3 for a 5."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.place = nn.Parameter(torch.ones(())), 0

    def forward(self, x: Tensor) -> Tensor:
        labels = tiny.DATA.test.labels[self.place : self.place + len(x)]
        self.place += len(x)
        guesses = torch.where(labels == 3, 5, labels)
        return self.scale * nn.functional.one_hot(guesses, 10)


def test_counts_are_by_class_and_guess() -> None:
    found = find_confusion(Knowing(), tiny.Watched(tiny.recipe()), "test", CLASSES)
    images = tiny.DATA.test.labels.bincount()
    expected = torch.diag(images)
    expected[3, 5], expected[3, 3] = images[3], 0
    assert torch.equal(found.counts, expected)
    (worst,) = found.worst(1)
    assert (worst.name, worst.correct, worst.accuracy, worst.mistaken_for) == ("digit 3", 0, 0.0, "digit 5")
    assert worst.images == images[3]
    assert [one.accuracy for one in found.by_class] == [0.0 if number == 3 else 1.0 for number in range(10)]
    assert {one.mistaken_for for one in found.by_class} == {None, "digit 5"}


def test_scores_are_those_of_evaluate() -> None:
    model, batches = tiny.SPACE.build(tiny.SMALLEST), tiny.Watched(tiny.recipe())
    found = find_confusion(model, batches, "holdout", CLASSES).scores
    assert found == {**evaluate(model, batches, "holdout"), "images": len(tiny.DATA.holdout)}


def test_a_class_without_images_has_no_accuracy() -> None:
    found = Confusion(torch.tensor([[2, 0, 0], [0, 0, 0], [1, 1, 2]]), 1.0, ["a", "b", "c"])
    assert found.by_class[1].accuracy is None
    assert [one.name for one in found.worst(3)] == ["c", "a"]
    assert found.by_class[2].mistaken_for == "a"  # of equal ones the first
