from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from nasformer.train.evaluate import SubnetEvaluator, autocast, evaluate

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


@pytest.mark.parametrize("batch_size", [1, 2, 4, 512])
def test_top_1_and_top_5_by_hand(batch_size: int) -> None:
    source: Any = Known()
    assert evaluate(Echo(), source, "holdout", batch_size=batch_size) == {"accuracy": 2 / 6, "top5": 4 / 6}


def test_fewer_than_five_classes(monkeypatch: Any) -> None:
    source: Any = Known()
    monkeypatch.setattr("train.test_evaluate.LABELS", torch.tensor([0, 0, 1, 2, 2, 0]))
    assert evaluate(Echo(classes=3), source, "holdout") == {"accuracy": 4 / 6, "top5": 1.0}


def test_an_arch_is_judged_with_the_weights_it_inherits() -> None:
    recipe = tiny.recipe()
    model, batches = tiny.train(None, recipe)
    for split in ("holdout", "test"):
        images = getattr(tiny.DATA, split)
        x, labels = next(batches.evaluation(split, len(images)))
        for arch in (tiny.SMALLEST, tiny.LARGEST):
            right = model.extract(arch).eval()(x).argmax(1) == labels
            found = evaluate(model, batches, split, arch=arch)
            assert found["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-9)
    judge = SubnetEvaluator(model, batches)
    assert judge(tiny.SMALLEST) == {"accuracy": evaluate(model, batches, "holdout", arch=tiny.SMALLEST)["accuracy"]}


def test_bf16_computes_in_bf16_on_the_cpu_too() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    for precision, dtype in {"bf16": torch.bfloat16, "fp32": torch.float32, "auto": torch.float32}.items():
        with autocast(torch.device("cpu"), precision):
            assert layer(x).dtype == dtype
    model, batches = tiny.supernet(), tiny.Watched(tiny.recipe())
    found = evaluate(model, batches, "test", arch=tiny.SMALLEST, precision="bf16")
    assert 0 <= found["accuracy"] <= found["top5"] <= 1
