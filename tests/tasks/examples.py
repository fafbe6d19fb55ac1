"""What the conformance tests need of each task: a tiny set, options for tiny nets, and answers without a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nasformer.data.options import DataOptions
from nasformer.tasks.options import TaskOptions
from nasformer.tasks.panoptic import make_targets
from tasks.objects import write_objects
from tasks.shapes import write_panoptic, write_questions, write_set


@dataclass
class Command(TaskOptions, DataOptions):
    """As much of a command as opens images."""


@dataclass(frozen=True)
class Example:
    """A task at its smallest.

    Args:
        perfect: The answers of a model that makes no mistake, from the targets of an evaluation batch.
        options: Of the task, for a tiny head.
        write: Writes a tiny set into a folder; None where the set has a name.
        needs: A library without which there is nothing to test.
    """

    perfect: Callable[[Any, int], Any]
    options: dict[str, Any] = field(default_factory=dict)
    write: Callable[[Path], Any] | None = None
    data: str = ""
    hflip: float = 0.5
    needs: str = "torch"

    def command(self, task: str, root: Path | None = None) -> Command:
        """What asks for the task; where a folder is given, on the tiny set, which is written into it."""
        if self.write and root:
            self.write(root)
        command = Command(data=self.data or str(root), holdout=0.25, workers=0, task=task)
        return command.with_task_options(**self.options) if self.options else command


def perfect_classes(labels: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, 10).float()


def perfect_masks(masks: list[Tensor], size: int) -> Tensor:
    """Squares into which the masks are fitted as their images are: 24 x 32 pixels at the top left of 32 x 32."""
    squares = torch.zeros(len(masks), 3, size, size)
    for square, mask in zip(squares, masks, strict=True):
        rows, columns = mask.shape
        square[:, :rows, :columns] = torch.nn.functional.one_hot(mask.clamp(max=2), 3).permute(2, 0, 1)
    return squares


def perfect_segments(maps: list[Tensor], size: int) -> Tensor:
    """Squares with the classes, heat and offsets of maps of segments, as `perfect_masks`."""
    squares = torch.zeros(len(maps), 4 + 3, size, size)
    for square, segments in zip(squares, maps, strict=True):
        rows, columns = segments.shape
        targets = make_targets(segments, sigma=2.0)
        square[:4, :rows, :columns] = torch.nn.functional.one_hot(targets[0].long().clamp(max=3), 4).permute(2, 0, 1)
        square[4:, :rows, :columns] = targets[1:4]
    return squares


def perfect_objects(scenes: list[Any], size: int) -> list[dict[str, Tensor]]:
    """The true boxes of images that are as wide as their squares."""
    targets = [scene.target() for scene in scenes]
    return [{**target, "scores": torch.ones(len(target["boxes"]))} for target in targets]


def perfect_answers(worths: Tensor, size: int) -> Tensor:
    return 20 * worths - 10


EXAMPLES = {
    "classify": Example(perfect_classes, data="digits"),
    "segment": Example(perfect_masks, {"decoder_dim": 8}, write_set),
    "detect": Example(perfect_objects, {"decoder_dim": 8}, write_objects, needs="pycocotools"),
    "vqa": Example(perfect_answers, {"decoder_dim": 8}, write_questions, hflip=0.0),
    "panoptic": Example(perfect_segments, {"decoder_dim": 16}, write_panoptic),
}
