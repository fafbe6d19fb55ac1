"""A task of your own: several yes-or-no traits of a digit at once (multi-label classification).

Options, objective (loss and metric), batches, a head on the feature maps of any family, and the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer import Cost, Segment, Space, Task, TaskFacts, load_data, register_task
from nasformer.data.loaders import Batches
from nasformer.layers.segmentation import as_map
from nasformer.layers.stem import Grid
from nasformer.models.dense import DenseModel, Maps, dense_space, register_head
from nasformer.tasks.classify import image_input
from nasformer.train.evaluate import Objective

TRAITS = {"even": (0, 2, 4, 6, 8), "above four": (5, 6, 7, 8, 9), "prime": (2, 3, 5, 7)}
OF_DIGITS = torch.tensor([[float(digit in digits) for digits in TRAITS.values()] for digit in range(10)])
EVALUATION_BATCH = 512


@dataclass
class TraitOptions:
    """Options `--traits.NAME`."""

    hidden: int = 32
    """width of the head"""


# Loss and metric


def trait_loss(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


class TraitAccuracy:
    """The share of right answers to each trait, and the loss."""

    def __init__(self) -> None:
        self.images, self.sums = 0, torch.zeros(len(TRAITS) + 1)

    def update(self, logits: Tensor, targets: Tensor) -> None:
        right = ((logits > 0) == (targets > 0)).sum(0)
        loss = trait_loss(logits, logits, targets) * len(targets)
        self.sums = self.sums.to(logits.device) + torch.cat([right, loss[None]])
        self.images += len(targets)

    def combine(self, world: Any, device: torch.device) -> None:
        totals = world.sum(torch.cat([self.sums.cpu(), torch.tensor([float(self.images)])]).to(device))
        self.sums, self.images = totals[:-1], round(float(totals[-1]))

    @property
    def by_trait(self) -> list[float]:
        return (self.sums[:-1] / self.images).tolist()

    def compute(self) -> dict[str, float]:
        return {"trait_accuracy": sum(self.by_trait) / len(TRAITS), "loss": float(self.sums[-1]) / self.images}


def example_targets(count: int, batches: Any) -> Tensor:
    return torch.full((count, len(TRAITS)), 0.5)


TRAIT_OBJECTIVE = Objective(
    "trait_accuracy", trait_loss, lambda batches: TraitAccuracy(), EVALUATION_BATCH, example_targets
)


# Data


class TraitBatches(Batches):
    """Batches of digits, with their traits in place of their labels."""

    objective = TRAIT_OBJECTIVE

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.classes = list(TRAITS)

    @property
    def num_classes(self) -> int:
        return len(TRAITS)

    def train(self, step: int) -> tuple[Tensor, Tensor]:
        images, labels = super().train(step)  # soft labels: mixed images have mixed traits
        return images, labels @ OF_DIGITS.to(labels.device)

    def evaluation(self, *args: Any, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in super().evaluation(*args, **options):
            yield images, OF_DIGITS.to(labels.device)[labels]


# Head


class TraitHead(nn.Module):
    """Two linear layers on the mean of the coarsest map."""

    def __init__(
        self, channels: tuple[int, ...], grids: tuple[Grid, ...], img_size: Grid, num_classes: int, hidden: int
    ) -> None:
        super().__init__()
        self.grid = grids[-1]
        self.hidden, self.fc = nn.Linear(channels[-1], hidden), nn.Linear(hidden, num_classes)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        return self.fc(self.hidden(as_map(outputs[-1], self.grid).mean((2, 3))).relu())

    @staticmethod
    def cost(channels: tuple[int, ...], grids: tuple[Grid, ...], img_size: Grid, num_classes: int, hidden: int) -> Cost:
        weights = channels[-1] * hidden + hidden * num_classes
        return Cost(weights + hidden + num_classes, weights)


@register_head
class TraitModel(DenseModel):
    """A backbone with a logit for each trait."""

    task = "traits"

    @classmethod
    def plan_head(cls, maps: Maps, *, hidden: int = 32) -> Segment:
        return maps.only(-1).segment(TraitHead, hidden=hidden)


# Task


@dataclass(frozen=True)
class TraitScore:
    name: str
    accuracy: float


@dataclass(frozen=True)
class TraitEvaluation:
    """How a model does on a split."""

    scores: dict[str, float]
    by_class: list[TraitScore]

    def sentences(self) -> list[str]:
        return [f"traits right {self.scores['trait_accuracy']:.2%}"]

    def to_json(self) -> dict[str, Any]:
        return {**self.scores, "by_class": [asdict(score) for score in self.by_class]}


@dataclass(frozen=True)
class TraitPrediction:
    file: str
    traits: list[str]

    def __str__(self) -> str:
        return f"{self.file}: {', '.join(self.traits) or 'none'}"


@register_task
class DigitTraits(Task):
    facts = TaskFacts("traits", "traits of digits", {"trait_accuracy": "trait accuracy"}, TraitOptions)
    objective = TRAIT_OBJECTIVE

    def space(self, space: Space, options: TraitOptions | None) -> Space:
        return dense_space(space, self.name, hidden=options.hidden if options else None)

    def load_batches(self, options: Any, recipe: Any, world: Any, device: torch.device, *sizes: Any) -> TraitBatches:
        data = load_data(options.data, holdout=options.holdout, seed=options.seed)
        process = {"rank": world.rank, "world": world.size, "device": device}
        return TraitBatches(data, recipe.augment, recipe.batch_size, options.seed, **process)

    @torch.inference_mode()
    def judge(self, model: nn.Module, batches: Any, split: Any, classes: Sequence[str]) -> TraitEvaluation:
        metric = TraitAccuracy()
        for images, targets in batches.evaluation(split, EVALUATION_BATCH):
            metric.update(model(images), targets)
        scores = [TraitScore(name, accuracy) for name, accuracy in zip(classes, metric.by_trait, strict=True)]
        return TraitEvaluation({**metric.compute(), "images": metric.images}, scores)

    @torch.inference_mode()
    def predict(self, trained: Any, options: Any) -> Iterator[TraitPrediction]:
        device = next(trained.model.parameters()).device
        for file in options.images:
            logits = trained.model(image_input(Path(file), trained.folder, trained.model).x.to(device))[0]
            yield TraitPrediction(
                file, [name for name, logit in zip(trained.classes, logits, strict=True) if logit > 0]
            )
