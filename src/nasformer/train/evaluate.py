"""Evaluation: accuracy and loss of a model and of subnets with inherited weights, and which classes are confused.

Subnets are also evaluated while their supernet is trained (`Snapshots`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.data.images import Data
from nasformer.data.loaders import Batches, BatchSource, Split
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.space.arch import Arch
from nasformer.space.nodes import Node, corners
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.supernet import ALONE, CALIBRATION_IMAGES, Supernet, recalibrated
from nasformer.train.loss import Loss, Taught, soft_cross_entropy, taught_classes
from nasformer.train.recipe import Recipe
from nasformer.utils.cuda_graphs import CudaGraphs
from nasformer.utils.device import World

KEPT = 8
"""Models that are kept, as an arch is judged on one split, then on another, and then shipped."""
EVALUATION_BATCH = 512
WORST = 3
"""Classes that are named as the worst."""


def autocast(device: torch.device, precision: str = "auto") -> AbstractContextManager[object]:
    """bf16 autocast: on request, or with `auto` on a GPU that supports it."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


# What is learned and judged


class Metric(Protocol):
    """A metric that is summed over the batches of a split."""

    images: int

    def update(self, logits: Tensor, targets: Any) -> None: ...

    def combine(self, world: World, device: torch.device) -> None:
        """Adds the sums of other processes; all call it alike."""

    def compute(self) -> dict[str, float]:
        """The scores by name, `loss` among them."""


class Accuracy:
    """Top-1 and top-5 accuracy (0 to 1) and the mean cross-entropy."""

    def __init__(self) -> None:
        self.images, self.sums = 0, torch.zeros(3)

    def update(self, logits: Tensor, targets: Tensor) -> None:
        hits = top_classes(logits) == targets[:, None]
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        self.sums = self.sums.to(logits.device) + torch.stack([hits[:, 0].sum(), hits.any(1).sum(), loss])
        self.images += len(targets)

    def combine(self, world: World, device: torch.device) -> None:
        totals = world.sum(torch.cat([self.sums.double().cpu(), torch.tensor([float(self.images)])]).to(device))
        self.sums, self.images = totals[:3], round(float(totals[3]))

    def compute(self) -> dict[str, float]:
        top1, top5, loss = self.sums.tolist()
        return {"accuracy": top1 / self.images, "top5": top5 / self.images, "loss": loss / self.images}


def even_targets(count: int, batches: BatchSource) -> Tensor:
    """Uniform soft targets, for a trial of a step."""
    return torch.full((count, batches.num_classes), 1 / batches.num_classes)


@dataclass(frozen=True)
class Agreement:
    """A measure of how far two models give the same answers, which needs no labels.

    Args:
        keep: From the logits of a batch to what is kept of them for comparisons.
        compare: From this and the logits of another model to the agreement on each image, from 0 to 1.
    """

    keep: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]


def probabilities(logits: Tensor) -> Tensor:
    return logits.float().softmax(-1)


SHARED_PROBABILITY = Agreement(
    probabilities, lambda expected, logits: torch.minimum(expected, probabilities(logits)).sum(-1)
)
"""The share of probability that both models give to the same classes."""


@dataclass(frozen=True)
class Objective:
    """Loss and metric of a training. Batches of other tasks than classification carry their own.

    Args:
        score: The name of the score, among those of the metric, by which models are compared.
        batch_size: Images at a time in an evaluation.
        example_targets: Targets of so many images for a trial of a step.
        within_model: Whether the model is given the targets in training, and gives losses in place of answers.
        taught: How a teacher's answers become targets; None where there is nothing to compare, and its features alone
            are learned.
        outcomes: The score of each image, from 0 to 1, and its loss [2, images]; None where the score is no mean over
            images, and archs cannot race.
        agreement: How far two models answer the same; None where that has no measure, and nets are not cut by it.
    """

    score: str
    loss: Loss
    metric: Callable[[BatchSource], Metric]
    batch_size: int
    example_targets: Callable[[int, BatchSource], Any]
    within_model: bool = False
    taught: Taught | None = None
    outcomes: Callable[[Tensor, Tensor], Tensor] | None = None
    agreement: Agreement | None = None

    def loss_of(self, model: nn.Module, x: Any, targets: Any) -> Tensor:
        """The loss of a model on a training batch."""
        options = {"targets": targets} if self.within_model else {}
        return self.loss(model(x, **options), x, targets)


def class_outcomes(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each image is recognised, and its loss: [2, images]."""
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    return torch.stack([(logits.argmax(1) == labels).float(), losses])


CLASSIFICATION = Objective(
    "accuracy",
    soft_cross_entropy,
    lambda batches: Accuracy(),
    EVALUATION_BATCH,
    even_targets,
    taught=taught_classes,
    outcomes=class_outcomes,
    agreement=SHARED_PROBABILITY,
)


def objective_of(batches: BatchSource) -> Objective:
    return getattr(batches, "objective", CLASSIFICATION)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Data | BatchSource,
    split: Split = "test",
    *,
    arch: Arch | None = None,
    batch_size: int | None = None,
    precision: str = "auto",
    world: World = ALONE,
) -> dict[str, float]:
    """The scores of a model on a split: of a classifier top-1 and top-5 accuracy (0 to 1), and the mean loss.

    Args:
        arch: Which arch to run, if the model is a supernet.
        batch_size: Images at a time; None: as many as suit the task.
        world: Processes that share the images, and all call this alike.
    """
    if isinstance(data, Data):
        batch_size, device = batch_size or EVALUATION_BATCH, next(model.parameters()).device
        data = Batches(data, AugmentOptions(), batch_size, device=device)
    metric = objective_of(data).metric(data)
    answers = predictions(model, data, split, arch=arch, batch_size=batch_size, precision=precision, world=world)
    for logits, targets in answers:
        metric.update(logits, targets)
    metric.combine(world, next(model.parameters()).device)
    if not metric.images:
        raise UserError(f"no image of the {split} part can be read; check the files")
    return metric.compute()


@torch.no_grad()
def predictions(
    model: nn.Module,
    batches: BatchSource,
    split: Split,
    *,
    arch: Arch | None = None,
    batch_size: int | None = None,
    precision: str = "auto",
    world: World = ALONE,
    numbers: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """A split in batches, or its images of these numbers: the model's logits and the labels."""
    size = batch_size or objective_of(batches).batch_size
    model.eval()
    device = next(model.parameters()).device
    part: dict[str, Any] = {"share": world.part} if world.size > 1 else {}
    if numbers is not None:
        part["numbers"] = numbers
    for x, labels in batches.evaluation(split, size, **part):
        with autocast(device, precision):
            logits = padded(lambda x: model(x) if arch is None else model(x, arch), x, size)
        yield logits, labels


def top_classes(logits: Tensor) -> Tensor:
    """The five most likely classes of each image (or all, if fewer), the likeliest first."""
    return logits.topk(min(5, logits.shape[1])).indices


def padded(forward: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Runs a last, smaller batch at full size on a GPU, where another size would be compiled or recorded anew."""
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
        graphs: Whether a GPU may replay what comes often (see `CudaGraphs`).
    """

    def __init__(
        self,
        supernet: Supernet,
        batches: BatchSource,
        precision: str = "auto",
        images: int = CALIBRATION_IMAGES,
        world: World = ALONE,
        graphs: bool = True,
    ) -> None:
        self.supernet, self.batches, self.precision, self.world = supernet, batches, precision, world
        self.graphs = CudaGraphs.on(supernet.device, graphs)
        self.score = objective_of(batches).score
        self.model: Callable[[Arch], Backbone] = lru_cache(KEPT)(
            partial(recalibrated, supernet, batches=batches, images=images, world=world)
        )

    def __call__(self, arch: Arch) -> dict[str, float]:
        scores = self.evaluate(arch, "holdout")
        # Of logits that are NaN or infinite some class comes first as well: such an arch must not win by that.
        score = scores[self.score] if math.isfinite(scores["loss"]) else math.nan
        return {self.score: score, "loss": scores["loss"]}

    def accuracy(self, arch: Arch, split: Split = "test") -> float:
        """The score by which archs are compared: accuracy, or that of another task."""
        return self.evaluate(arch, split)[self.score]

    def evaluate(self, arch: Arch, split: Split = "test") -> dict[str, float]:
        model, subnet = self._model_for(arch)
        with self.supernet.replaying(self.graphs):
            return evaluate(model, self.batches, split, arch=subnet, precision=self.precision, world=self.world)

    def outcomes(self, arch: Arch, numbers: Tensor) -> Tensor:
        """The score of each held-out image of these numbers, and its loss: [2, images], on the CPU."""
        model, subnet = self._model_for(arch)
        outcomes_of = objective_of(self.batches).outcomes
        assert outcomes_of is not None  # others cannot race
        with self.supernet.replaying(self.graphs):
            answers = predictions(
                model, self.batches, "holdout", arch=subnet, precision=self.precision, numbers=numbers
            )
            outcomes = [outcomes_of(logits, labels) for logits, labels in answers]
        return torch.cat(outcomes, dim=1).cpu()

    def _model_for(self, arch: Arch) -> tuple[nn.Module, Arch | None]:
        """The model to run and the arch to run it as: a separate model where there is batch norm, else the supernet."""
        return (self.model(arch), None) if self.supernet.has_statistics else (self.supernet, arch)


# Snapshots of a supernet during its training: the accuracy of a few subnets with the weights of the moment.
#
# They change nothing: what is random in a step depends on the step alone, and batch norm is estimated anew on copies.


class Snapshots:
    """Evaluates subnets every `watch_epochs` of the recipe, and at the end, on held-out images only.

    These are the largest arch of each operator, and the subnets by which `nasformer doctor` judges.
    """

    def __init__(
        self, supernet: Supernet, batches: BatchSource, recipe: Recipe, images: int = CALIBRATION_IMAGES, seed: int = 0
    ) -> None:
        self.supernet, self.batches, self.precision, self.images = supernet, batches, recipe.precision, images
        self.graphs, epochs = recipe.graphs, recipe.watch_epochs
        self.interval = max(1, round(epochs * batches.steps_per_epoch)) if epochs else 0
        if self.interval and not batches.held_out:
            raise UserError("watch_epochs needs images held out of training; set --holdout 0.1 or so, or leave it out")
        self.operators = operator_archs(supernet.space.root) if self.interval else {}
        self.subnets = fixed_subnets(supernet.space, seed) if self.interval else {}

    def due(self, done: int, total: int) -> bool:
        """Whether a snapshot is due after `done` of `total` steps."""
        return self.interval > 0 and (done % self.interval == 0 or done == total)

    def take(self) -> dict[str, dict[str, float]]:
        """The accuracies of operators ("watch") and of "subnets" by name. The supernet's mode stays as it was."""
        training = self.supernet.training
        # A new evaluator each time, since the weights have changed.
        evaluator = SubnetEvaluator(self.supernet, self.batches, self.precision, self.images, graphs=self.graphs)
        archs = {*self.operators.values(), *self.subnets.values()}
        accuracy = {arch: evaluator.accuracy(arch, "holdout") for arch in archs}
        self.supernet.train(training)
        groups = {"watch": self.operators, "subnets": self.subnets}
        return {group: {name: accuracy[arch] for name, arch in named.items()} for group, named in groups.items()}


def operator_archs(root: Node) -> dict[str, Arch]:
    """The largest arch of each pure operator by the operator's name.

    Where not every alternative has such an arch, or there are none, also the smallest and the largest of all.

    >>> from nasformer import Choice, OneOf, Struct
    >>> operator_archs(Struct(operator=OneOf(conv=Choice(3, 5), attention=Choice(4, 8)), dim=Choice(16, 32)))
    {'conv': Arch(operator=Arch(conv=5), dim=32), 'attention': Arch(operator=Arch(attention=8), dim=32)}
    >>> operator_archs(Struct(dim=Choice(16, 32)))
    {'smallest': Arch(dim=16), 'largest': Arch(dim=32)}
    """
    pure: dict[str, Arch] = {}
    largest = corners(root)
    for arch in largest:
        operators = {name for _, name in root.picks(arch)}
        if len(operators) == 1:
            pure |= {operators.pop(): arch}
    return pure if len(pure) == len(largest) else pure | {"smallest": root.smallest(), "largest": root.largest()}


# Confusion: accuracy by class, and which class is taken for which


@dataclass(frozen=True)
class ClassScore:
    """The results of a model on the images of one class; accuracy is None where there are none."""

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
        """The results on the images of a class."""
        row = self.counts[number]
        images, correct = int(row.sum()), int(row[number])
        wrong = row.clone()
        wrong[number] = 0
        mistaken = self.classes[int(wrong.argmax())] if images > correct else None
        return ClassScore(self.classes[number], images, correct, correct / images if images else None, mistaken)

    def sentences(self) -> list[str]:
        """The main results in words, a line each."""
        scores = self.scores
        worst = ", ".join(f"{score.name} {score.accuracy:.2%} of {score.images}" for score in self.worst(WORST))
        return [
            f"top-1 {scores['accuracy']:.2%}, top-5 {scores['top5']:.2%}",
            f"balanced accuracy {scores['balanced_accuracy']:.2%}, macro-F1 {scores['macro_f1']:.2%}",
            f"worst: {worst}",
        ]

    def to_json(self) -> dict[str, Any]:
        """The scores, and the classes with the lowest accuracy."""
        return {**self.scores, "worst": [asdict(score) for score in self.worst(WORST)]}

    def worst(self, count: int) -> list[ClassScore]:
        """The classes with the lowest accuracy; of equal ones the first."""
        scored = [(score.accuracy, number) for number, score in enumerate(self.by_class) if score.accuracy is not None]
        return [self.score_of(number) for _, number in sorted(scored)[:count]]


def find_confusion(model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> Confusion:
    """The confusion of a model on a split."""
    size, hits, images = len(classes), 0, 0
    pairs = torch.zeros(size * size, dtype=torch.int64)
    for logits, labels in predictions(model, batches, split):
        guesses = top_classes(logits)
        hits += int((guesses == labels[:, None]).any(1).sum())
        images += len(labels)
        pairs += torch.bincount((labels * size + guesses[:, 0]).cpu(), minlength=size * size)
    return Confusion(pairs.view(size, size), hits / images, classes)
