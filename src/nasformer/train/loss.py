"""The loss: cross-entropy with soft targets, into which a teacher may mix its answers; and how far features differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError, one_line
from nasformer.models.base import Backbone
from nasformer.utils.cuda_graphs import CudaGraphs
from nasformer.utils.files import read_tensors

Loss = Callable[[Any, Tensor, Any], Tensor]


def soft_cross_entropy(logits: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with soft targets; mixing and label smoothing are in the targets already."""
    return F.cross_entropy(logits.float(), targets)


def class_weights(counts: Tensor) -> Tensor:
    """Weights under which all classes count alike, and an image 1 on average; a class without images has none.

    >>> class_weights(torch.tensor([6, 2, 0]))
    tensor([0.6667, 2.0000, 0.0000])
    """
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)


class Supervision(NamedTuple):
    """Targets of a batch and, where they are learned, features of a teacher by segment."""

    targets: Any
    features: Mapping[str, Tensor]

    def chunk(self, count: int) -> Iterator[Supervision]:
        """Its parts, along the batch."""
        chunks = {name: feature.chunk(count) for name, feature in self.features.items()}
        for index, targets in enumerate(chunk(self.targets, count)):
            yield Supervision(targets, {name: parts[index] for name, parts in chunks.items()})


def chunk(targets: Any, count: int) -> Sequence[Any]:
    """Parts of a batch's targets, a tensor or a list with an entry for each image; as `Tensor.chunk` makes them.

    >>> chunk(list("abcde"), 2)
    [['a', 'b', 'c'], ['d', 'e']]
    """
    if isinstance(targets, Tensor):
        return targets.chunk(count)
    size = -(-len(targets) // count)
    return [targets[start : start + size] for start in range(0, len(targets), size)]


@dataclass(frozen=True)
class Answers:
    """How the answers of another model are learned.

    Args:
        weight: Of these answers; the labels have the rest.
        hard: Its top class, smoothed as labels are (AutoFormer's optional distillation); else its probabilities of all
            classes.
    """

    weight: float = 1.0
    hard: bool = False
    smoothing: float = 0.0

    def classes(self, logits: Tensor) -> Tensor:
        """Targets from logits whose classes are the second dimension."""
        if not self.hard:
            return logits.softmax(1)
        top = torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
        return top * (1 - self.smoothing) + self.smoothing / logits.shape[1]

    def mix(self, targets: Tensor, taught: Tensor) -> Tensor:
        """Targets into which the answers are mixed.

        Cross-entropy is linear in its targets, so its loss is then the weighted sum of the loss of the labels and that
        of the answers.
        """
        return torch.lerp(targets, taught, self.weight)


Taught = Callable[[Any, Any, Answers], Any]
"""From logits of a teacher and targets to targets into which its answers are mixed."""


def taught_classes(logits: Tensor, targets: Tensor, answers: Answers) -> Tensor:
    return answers.mix(targets, answers.classes(logits))


class Teacher:
    """Distillation: mixes a teacher's answers into the targets of a batch, once for all archs of a step.

    Args:
        depths: After how many of its segments, evenly spaced, its features are learned, too; 0: none are.
        taught: How answers are mixed into targets; None for a task that has none to learn: then features alone are.
    """

    def __init__(
        self, model: nn.Module, answers: Answers | None = None, depths: int = 0, taught: Taught | None = taught_classes
    ) -> None:
        self.model, self.answers = model.eval().requires_grad_(False), answers or Answers()
        self.depths, self.taught = depths, taught
        self.graphs: CudaGraphs | None = None
        self.names = list[str]()
        if depths and not isinstance(model, Backbone):
            raise UserError("teacher_features needs a teacher of our own families; set it to 0 for one of timm")

    @torch.no_grad()
    def __call__(self, images: Any, targets: Any) -> Supervision:
        if self.graphs and isinstance(images, Tensor):
            logits, *features = self.graphs("teacher", self.forward, images, [], after="teacher")
        else:
            logits, *features = self.forward(images)
        if self.taught is not None:
            targets = self.taught(logits.float(), targets, self.answers)
        return Supervision(targets, dict(zip(self.names, features, strict=True)))

    def forward(self, images: Any, weights: Sequence[Tensor] = ()) -> tuple[Any, ...]:
        """The teacher's answers and the features that are learned, whose names go into `names`."""
        outputs: dict[str, Tensor] = {}
        if self.taught is None and isinstance(self.model, Backbone):
            logits = self.model.forward_features(images, outputs)
        else:
            logits = self.model(images, outputs) if self.depths else self.model(images)
        features = self.features(outputs)
        self.names = list(features)
        return (logits, *features.values())

    def features(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The features that are learned.

        Every classifier has the last of them, its norm. In other tasks the stem is added, as an arch may have no block.
        """
        chosen = evenly_spaced(outputs, self.depths)
        dense = isinstance(self.model, Backbone) and self.model.task != "classify"
        return {**dict(list(outputs.items())[: 1 if dense else 0]), **chosen}


def evenly_spaced(outputs: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """A number of outputs, evenly spaced; the last is one of them.

    >>> list(evenly_spaced(dict.fromkeys("abcdefghi", torch.ones(1)), 4))
    ['b', 'd', 'g', 'i']
    """
    names = list(outputs)
    indices = dict.fromkeys(round(len(names) * (number + 1) / count) - 1 for number in range(count)) if names else {}
    return {names[index]: outputs[names[index]] for index in indices if index >= 0}


def feature_difference(features: Mapping[str, Tensor], teacher: Mapping[str, Tensor]) -> Tensor:
    """Mean squared difference of normalised features, over the segments that both models have in one resolution.

    A student whose width is a prefix of the teacher's learns these channels.
    """
    pairs = [(features[name], teacher[name]) for name in teacher if name in features]
    losses = [distance(*pair) for pair in pairs if comparable(*pair)]
    if not losses:
        raise UserError("student and teacher have no features to compare; set teacher_features to 0")
    return torch.stack(losses).mean()


def comparable(student: Tensor, teacher: Tensor) -> bool:
    """Whether features have one resolution, and the student's tokens are no wider than the teacher's."""
    if student.ndim != 3:  # maps, whose channels are not always last
        return student.shape == teacher.shape
    return student.shape[:-1] == teacher.shape[:-1] and student.shape[-1] <= teacher.shape[-1]


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of layer-normed features, over the channels that the student has."""
    width = student.shape[-1]
    return F.mse_loss(F.layer_norm(student.float(), (width,)), F.layer_norm(teacher[..., :width].float(), (width,)))


def load_teacher(
    source: str, num_classes: int, in_chans: int, device: torch.device, task: str = "classify", img_size: int = 0
) -> nn.Module:
    """A model folder of ours, or ``timm:NAME`` or ``timm:NAME:WEIGHTS``, whose weights are a local file.

    Without a file timm's published weights are used, which timm may have to download.

    Args:
        img_size: To which a teacher of another task than classification is resized, as its answers have this size.
    """
    if source.startswith("timm:"):
        if task != "classify":
            raise UserError(f"teacher {source} gives classes of whole images; name a model folder for --task {task}")
        return load_timm(source, num_classes, in_chans).to(device)
    from nasformer.models.storage import load_model

    model = load_model(source, img_size=None if task == "classify" else img_size)
    if model.task != task:
        raise UserError(f"teacher {source} is a model for --task {model.task}; give one for --task {task}")
    if (model.num_classes, model.options["in_chans"]) != (num_classes, in_chans):
        raise UserError(f"teacher {source} is for other classes or channels; give one trained on the same data")
    return model.to(device)


def load_timm(source: str, num_classes: int, in_chans: int) -> nn.Module:
    """A timm model with its published weights, or those of a local file, which timm itself might unpickle."""
    import timm

    from nasformer.models.hub import published_model

    _, name, *weights = source.split(":", 2)
    try:
        model = (timm.create_model if weights else published_model)(name, num_classes=num_classes, in_chans=in_chans)
    except UserError:
        raise
    except Exception as error:  # an unknown name, a download that fails: timm raises a dozen kinds
        reason = one_line(error, 200)
        raise UserError(f"cannot load the teacher {source} ({reason}); check its name and weights") from error
    if weights:
        load_weights(model, Path(weights[0]), source)
    return model


def load_weights(model: nn.Module, path: Path, source: str) -> None:
    try:
        state = read_tensors(path)
    except UserError as error:
        raise UserError(f"cannot load the teacher {source}: {error}") from None
    if problem := mismatch(model.state_dict(), state):
        raise UserError(f"cannot load the teacher {source}: {problem} in {path}; give weights trained on the same data")
    model.load_state_dict(state)


def mismatch(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Why weights do not fit a model, by the first of them; empty where they do.

    >>> mismatch({"fc": torch.ones(2, 3)}, {"fc": torch.ones(5, 3)})
    'fc has the shape [5, 3], expected [2, 3]'
    """
    for name, weight in expected.items():
        if name not in weights:
            return f"{name} is missing"
        if weights[name].shape != weight.shape:
            return f"{name} has the shape {list(weights[name].shape)}, expected {list(weight.shape)}"
    extra = [name for name in weights if name not in expected]
    return f"{extra[0]} is unknown" if extra else ""
