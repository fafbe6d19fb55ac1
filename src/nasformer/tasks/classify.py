"""Classification, the first task: one class an image. All of it is what the other packages do by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.families.space import Space
from nasformer.tasks.registry import Task, register_task
from nasformer.train.evaluate import CLASSIFICATION, Confusion, find_confusion


@register_task
class Classify(Task):
    name, about, objective = "classify", "one class an image", CLASSIFICATION

    def space(self, space: Space, options: Any) -> Space:
        return space

    def load_batches(self, *args: Any, **options: Any) -> None:
        """Images with a label each are opened as ever (`runs/data.py`)."""

    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Confusion:
        return find_confusion(model, batches, split, classes)
