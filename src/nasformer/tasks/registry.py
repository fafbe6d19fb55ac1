"""Registry of tasks by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.train.distributed import World
from nasformer.train.evaluate import Objective
from nasformer.train.recipe import Recipe

TASKS = ("classify", "segment")
"""Modules of this package that register a task."""


class Task(ABC):
    """A task: which data, head, loss and metric a backbone is trained with, and how its answers are shown."""

    name: ClassVar[str]
    about: ClassVar[str]
    objective: ClassVar[Objective]
    """Loss and metric; the batches of the task carry it to training and evaluation."""

    @abstractmethod
    def space(self, space: Space, options: Any) -> Space:
        """The space with the task's head on its backbones, as options ask; costs count the head."""

    @abstractmethod
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
    ) -> Any:
        """The batches (`BatchSource`) of what options name; None where images with one label each will do."""

    @abstractmethod
    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Any:
        """How a model does on a split, in detail: it has `scores` and `by_class`."""

    def draw(self, model: nn.Module, batches: BatchSource, split: Split, folder: Path) -> None:
        """Writes best.png, median.png and worst.png: images of a split with truth and answer; none by default."""
        return


T = TypeVar("T", bound=type[Task])
_tasks: dict[str, Task] = {}


def register_task(task: T) -> T:
    """Makes a task known by its name; a decorator."""
    if task.name in _tasks:
        raise UserError(f"there is another task named {task.name!r} already; give yours another name")
    _tasks[task.name] = task()
    return task


def list_tasks() -> dict[str, Task]:
    """Every task by name."""
    for name in TASKS:
        import_module(f"nasformer.tasks.{name}")
    return {name: _tasks[name] for name in TASKS}


def get_task(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; there are: {', '.join(TASKS)}")
    import_module(f"nasformer.tasks.{name}")  # of the others, some need torchvision, which is slow to import
    return _tasks[name]
