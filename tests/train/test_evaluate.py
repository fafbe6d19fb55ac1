"""Accuracy, loss and confusion of a model, and of an arch with inherited weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import Tensor, nn

import tiny
from nasformer.errors import UserError
from nasformer.runs.search import search_supernet
from nasformer.search.journal import read_journal
from nasformer.train.evaluate import Confusion, SubnetEvaluator, autocast, evaluate, find_confusion

# Ranks of the true class: 1, 2, 5, 6, 1, 7
LOGITS = torch.tensor(
    [
        [9.0, 1, 2, 3, 4, 5, 6],
        [8.0, 9, 2, 3, 4, 5, 6],
        [5.0, 1, 2, 6, 7, 8, 9],
        [4.0, 1, 5, 6, 7, 8, 9],
        [1.0, 2, 3, 4, 5, 6, 7],
        [9.0, 1, 2, 3, 4, 5, 6],
    ]
)
LABELS = torch.tensor([0, 0, 0, 0, 6, 1])


class Known:
    """Images that are the logits, in batches of two."""

    def evaluation(self, split: str, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        assert split == "holdout"
        yield from zip(LOGITS.split(batch_size), LABELS.split(batch_size), strict=True)


class Echo(nn.Module):
    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.weight, self.classes = nn.Parameter(torch.zeros(1)), classes

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return x[:, : self.classes]


def by_hand(logits: Tensor, labels: Tensor) -> float:
    """The mean of -log softmax at the label."""
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    losses = [math.log(sum(math.exp(value) for value in row)) - row[label] for row, label in rows]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("batch_size", [1, 4, 512])
def test_accuracies_and_loss_by_hand(batch_size: int) -> None:
    source: Any = Known()
    found = evaluate(Echo(), source, "holdout", batch_size=batch_size)
    loss = pytest.approx(by_hand(LOGITS, LABELS), rel=1e-6)
    assert found == {"accuracy": 2 / 6, "top5": 4 / 6, "loss": loss}


def test_fewer_than_five_classes(monkeypatch: Any) -> None:
    source: Any = Known()
    labels = torch.tensor([0, 0, 1, 2, 2, 0])
    monkeypatch.setattr("train.test_evaluate.LABELS", labels)
    loss = pytest.approx(by_hand(LOGITS[:, :3], labels), rel=1e-6)
    assert evaluate(Echo(classes=3), source, "holdout") == {"accuracy": 4 / 6, "top5": 1.0, "loss": loss}


def test_no_image_at_all() -> None:
    source: Any = type("Empty", (), {"evaluation": lambda *_: iter(())})()
    with pytest.raises(UserError, match="no image of the test part can be read"):
        evaluate(Echo(), source)


def test_an_arch_is_judged_with_the_weights_it_inherits() -> None:
    model, batches = tiny.train(None, tiny.recipe(iterations=4))
    for split in ("holdout", "test"):
        images = getattr(tiny.DATA, split)
        x, labels = next(batches.evaluation(split, len(images)))
        for arch in (tiny.SMALLEST, tiny.LARGEST):
            logits = model.extract(arch).eval()(x)
            found = evaluate(model, batches, split, arch=arch)
            assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item(), abs=1e-9)
            assert found["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    evaluator, scores = SubnetEvaluator(model, batches), evaluate(model, batches, "holdout", arch=tiny.SMALLEST)
    assert evaluator(tiny.SMALLEST) == {"accuracy": scores["accuracy"], "loss": scores["loss"]}


def test_a_search_can_go_by_the_loss() -> None:
    options: dict[str, Any] = {"strategy": "random", "options": {"evaluations": 6}, "quiet": True}
    result = search_supernet(tiny.supernet(), tiny.DATA, objectives=("-loss",), **options)
    assert result.best.scores["loss"] == min(one.scores["loss"] for one in result.candidates)
    assert all(one.scores.keys() >= {"accuracy", "loss", "params"} for one in result.candidates)


def test_a_journal_of_a_version_without_the_loss_goes_on(tmp_path: Path) -> None:
    supernet, path = tiny.supernet(), tmp_path / "journal.jsonl"
    options: dict[str, Any] = {"strategy": "random", "options": {"evaluations": 4}, "journal": path, "quiet": True}
    expected = search_supernet(supernet, tiny.DATA, **options)
    header, *lines = (json.loads(line) for line in path.read_text().splitlines())
    for line in lines:
        del line["loss"]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [header, *lines[:2]]))
    found = search_supernet(supernet, tiny.DATA, **options)
    assert found.best.arch == expected.best.arch
    assert ["loss" in record for record in read_journal(path)[1]] == [False, False, True, True]


def test_bf16_computes_in_bf16_on_the_cpu_too() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    for precision, dtype in {"bf16": torch.bfloat16, "fp32": torch.float32, "auto": torch.float32}.items():
        with autocast(torch.device("cpu"), precision):
            assert layer(x).dtype == dtype
    model, batches = tiny.supernet(), tiny.Watched(tiny.recipe())
    found = evaluate(model, batches, "test", arch=tiny.SMALLEST, precision="bf16")
    assert 0 <= found["accuracy"] <= found["top5"] <= 1
    assert found["loss"] == pytest.approx(evaluate(model, batches, "test", arch=tiny.SMALLEST)["loss"], rel=0.05)


# Confusion

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
    scores = evaluate(model, batches, "holdout")
    assert found["images"] == len(tiny.DATA.holdout)
    assert [found[name] for name in ("accuracy", "top5")] == [scores[name] for name in ("accuracy", "top5")]


def test_balanced_accuracy_and_macro_f1_are_those_of_sklearn() -> None:
    counts = torch.tensor([[50, 7, 0, 0], [0, 3, 1, 0], [2, 0, 4, 0], [0, 0, 0, 0]])
    labels, answers = zip(*[pair for pair in counts.nonzero().tolist() for _ in range(int(counts[*pair]))], strict=True)
    found = Confusion(counts, 1.0, ["a", "b", "c", "d"]).scores
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, answers))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, answers, average="macro"))


def test_a_class_without_images_has_no_accuracy() -> None:
    found = Confusion(torch.tensor([[2, 0, 0], [0, 0, 0], [1, 1, 2]]), 1.0, ["a", "b", "c"])
    assert found.by_class[1].accuracy is None
    assert [one.name for one in found.worst(3)] == ["c", "a"]
    assert found.by_class[2].mistaken_for == "a"  # of equal ones the first
