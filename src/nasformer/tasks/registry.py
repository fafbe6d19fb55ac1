"""The interface of tasks, and their registry by name."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.data.sources import SIGNS
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.models.storage import class_names, facts_in, input_shape, load_model, normalisation
from nasformer.tasks.options import BUILTIN_TASKS, TASKS, PredictOptions, TaskFacts, find_task
from nasformer.train.evaluate import Objective
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, choose_device
from nasformer.utils.files import write_json


class Evaluation(Protocol):
    """The results of a model on a split, in detail."""

    @property
    def scores(self) -> dict[str, float]:
        """All scores by name, and the number of `images`."""

    @property
    def by_class(self) -> Sequence[Any]:
        """The same for each class: dataclasses with a `name`."""

    def sentences(self) -> list[str]:
        """The main results in words, a line each."""

    def to_json(self) -> dict[str, Any]:
        """All results as JSON."""


class Prediction(Protocol):
    """The answer of a model to an image: a dataclass, which `str` puts in words."""

    @property
    def file(self) -> str: ...


@dataclass(frozen=True)
class TrainedModel:
    """A model from a folder, ready to answer single images.

    Args:
        folder: Where it is.
        classes: The names of its classes.
        mean, std: Of each channel of the images that it was trained on.
    """

    model: Backbone
    folder: Path
    classes: list[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def load(cls, folder: Path, device: str = "auto") -> Self:
        model = load_model(folder).to(choose_device(device))
        classes = class_names(facts_in(folder).get("classes"), model, folder)
        return cls(model, folder, classes, *normalisation(model, folder))

    @property
    def img_size(self) -> int:
        return input_shape(self.model)[1]

    @property
    def in_chans(self) -> int:
        return self.model.options["in_chans"]


class Task(ABC):
    """A task: which data, head, loss and metric a backbone is trained with, and how its answers are shown."""

    facts: ClassVar[TaskFacts]
    """Its name, what it is about, and its options."""
    objective: ClassVar[Objective]
    """Loss and metric; the batches of the task carry it to training and evaluation."""

    @property
    def name(self) -> str:
        return self.facts.name

    @abstractmethod
    def space(self, space: Space, options: Any) -> Space:
        """The space with the task's head on its backbones, as the task's own options ask; costs count the head."""

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
        """The batches (`BatchSource`) that a command's options name; None for images with a label each."""

    @abstractmethod
    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Evaluation:
        """How a model does on a split, in detail."""

    @abstractmethod
    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[Prediction]:
        """Answers to image files; masks, pictures and the like go into the folder `options.out`."""

    def draw(
        self, model: nn.Module, batches: BatchSource, split: Split, folder: Path, evaluation: Evaluation | None = None
    ) -> None:
        """Writes best.png, median.png and worst.png: images of a split with truth and answer; none by default.

        Args:
            evaluation: How the model does on the split, where it was judged already.
        """
        return


def write_evaluation(evaluation: Evaluation, out: Path, **facts: Any) -> None:
    """Writes evaluation.json and per_class.csv."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "evaluation.json", {**facts, **evaluation.to_json()})
    by_class = [asdict(score) for score in evaluation.by_class]
    with (out / "per_class.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, by_class[0])
        table.writeheader()
        table.writerows(by_class)


def example_images(scores: Sequence[float]) -> Mapping[str, int]:
    """The best, the median and the worst image by a score; those without one (NaN) do not count.

    >>> example_images([0.5, float("nan"), 0.9, 0.1])
    {'best': 2, 'median': 0, 'worst': 3}
    """
    order = sorted((score, index) for index, score in enumerate(scores) if score == score)
    return {"best": order[-1][1], "median": order[len(order) // 2][1], "worst": order[0][1]} if order else {}


T = TypeVar("T", bound=type[Task])
_tasks: dict[str, Task] = {}


def register_task(task: T) -> T:
    """Decorator that registers a task under its name, for Python and the command line."""
    name = task.facts.name
    if not name.isidentifier():
        raise UserError(f"a task is named by letters, digits and underscores, since its options are; rename {name!r}")
    if name in _tasks or TASKS.get(name, task.facts) is not task.facts:
        raise UserError(f"there is another task named {name!r} already; give yours another name")
    _tasks[name], TASKS[name] = task(), task.facts
    SIGNS.setdefault(name, task.facts.signs)
    return task


def list_tasks() -> dict[str, Task]:
    """Every task by name."""
    for name in BUILTIN_TASKS:
        import_module(f"nasformer.tasks.{name}")
    return {name: _tasks[name] for name in TASKS}


def get_task(name: str) -> Task:
    find_task(name)
    if name in BUILTIN_TASKS:  # of the others, some need torchvision, which is slow to import
        import_module(f"nasformer.tasks.{name}")
    return _tasks[name]


def chosen_task(options: Any) -> Task:
    """The task that a command asks for; classification where it has no such option."""
    return get_task(getattr(options, "task", "classify"))


def space_for(space: Space, options: Any) -> Space:
    """The space with the head that a command asks for."""
    return chosen_task(options).space(space, getattr(options, "of_task", None))
