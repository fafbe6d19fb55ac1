"""From a pretrained net to a smaller one on the user's images: `nasformer run --from timm:NAME --data PHOTOS`.

1. full      the net itself is fine-tuned on the images (OUT/full), and is the teacher of all that follows.
2. sort      its heads and neurons are sorted by importance, so that every prefix keeps the best of them.
3. supernet  what can be cut out of it is trained together, in a sandwich, to answer as the full net does.
4. search    any strategy finds the best of it within the budget, by held-out accuracy with the supernet's weights.
5. finish    the winner is cut out of the full net, not out of the supernet (whose weights serve everybody), and
             trained to answer as the full net does (OUT/finish).

Without training (`--no-training`) the net is sorted by its own answers, no labels needed, and archs are judged by how
often they agree with it. Each stage goes on where a killed run stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nasformer.data.loaders import BatchSource
from nasformer.data.options import AugmentOptions
from nasformer.families.base import Backbone
from nasformer.families.storage import build_from, fingerprint, save_model
from nasformer.results.result import RunResult
from nasformer.runs.baselines import split_accuracies
from nasformer.runs.options import RunCommand
from nasformer.runs.run import Run
from nasformer.search.model_result import ModelResult
from nasformer.space.arch import Arch
from nasformer.supernet.importance import Labelled, sort_by_importance
from nasformer.supernet.pretrained import Pretrained, find_pretrained, supernet_from
from nasformer.supernet.storage import carry_over
from nasformer.supernet.supernet import Supernet
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.progress import say

SORTING_IMAGES = 1024
"""Training images on which importance is measured; four times as many change the order of few units."""


def steps_for(images: int) -> int:
    """Steps of fine-tuning for so many training images: more for more images, but fewer passes over them.

    >>> steps_for(500), steps_for(1020), steps_for(50_000)
    (335, 479, 3354)
    """
    return round(15 * math.sqrt(images))


@dataclass(frozen=True)
class Stages:
    """How long and how the stages of a pretrained run train; see `stage_recipes`."""

    full: Recipe
    supernet: Recipe
    finish: Recipe


def stage_recipes(asked: Recipe, images: int) -> Stages:
    """The recipes of all stages for so many training images.

    What the user set in `--train` holds for every stage, but for the length and the learning rate, which are those of
    the supernet. The rest are values for a pretrained net, chosen on held-out images of Flowers-102.
    """
    batch = min(128, max(16, images // 8))
    common = {"batch_size": batch, "weight_decay": 0.05, "min_lr": 1e-6, "clip_grad": 1.0}
    crop = AugmentOptions(crop="resized")
    steps = steps_for(images)
    full = {"iterations": steps, "lr": 5e-4, "layer_decay": 0.75}
    supernet = {"iterations": 4 * steps, "lr": 5e-4, "sandwich": 2}
    finish = {"iterations": 2 * steps, "lr": 5e-4}
    taught = {"teacher_weight": 1.0, "teacher_answers": "soft"}
    return Stages(
        with_defaults(asked, {**common, **full}, crop, length=False),
        with_defaults(asked, {**common, **supernet, **taught}, crop),
        with_defaults(asked, {**common, **finish, **taught}, crop, length=False),
    )


def with_defaults(asked: Recipe, values: dict[str, Any], crop: AugmentOptions, length: bool = True) -> Recipe:
    """The recipe that was asked for; what it leaves at our defaults takes these values."""
    plain = Recipe()
    given = {f.name for f in fields(Recipe) if getattr(asked, f.name) != getattr(plain, f.name)}
    if not length:  # length, rate and sandwich that were asked for are the supernet's
        given -= {"epochs", "iterations", "lr", "sandwich", "inplace_distillation"}
        asked = replace(asked, epochs=plain.epochs, sandwich=0, inplace_distillation=False)
    elif "epochs" in given:
        values = {**values, "iterations": None}
    chosen = {name: value for name, value in values.items() if name not in given}
    augment = {} if "augment" in given else {"augment": crop}
    recipe = replace(asked, **chosen, **augment)
    steps = recipe.iterations or 0
    images_per_step = recipe.batch_size
    return replace(recipe, warmup_epochs=recipe.warmup_epochs) if not (steps and images_per_step) else recipe


class PretrainedRun:
    """The stages of a run that starts from a pretrained net.

    Args:
        run: Its folder, images and space; the space is that of the source.
        source: The weights to start from.
    """

    def __init__(self, run: Run, source: Pretrained, command: RunCommand) -> None:
        self.run, self.source, self.command = run, source, command
        self.stages = stage_recipes(command.train, training_size(run.batches))
        for name in ("mean", "std"):
            if source.facts.get(name):
                setattr(run.batches, name, tuple(source.facts[name]))

    def start(self) -> Backbone:
        """The source for the run's images: positions resampled, a fresh classifier for other classes."""
        classes = self.source.facts.get("classes")
        same = self.source.model.num_classes == self.run.batches.num_classes
        same = same and (classes is None or list(classes) == list(self.run.batches.classes))
        model = build_from(deepcopy(self.source.model), self.run.space, self.run.options.seed, same)
        return model.to(self.run.device)

    def full(self) -> Backbone:
        """The full net, fine-tuned on the images; in OUT/full."""
        model, folder = self.start(), self.run.folder / "full"
        settings = {**self.run.settings, "space": self.run.space.name, "weights": fingerprint(self.source.model)}
        seed = self.run.options.seed
        train_model(
            model,
            self.run.batches,
            self.stages.full,
            folder=folder.train,
            seed=seed,
            settings=settings,
            label="full net",
        )
        if self.run.world.main:
            save_model(model, folder.model, space=self.run.space.name, **self.run.image_facts)
        return model.eval()

    def sort(self, full: Backbone) -> Backbone:
        """The full net with heads and neurons sorted by importance on training images."""
        sort_by_importance(full, sorting_batches(self.run.batches), self.command.importance)
        return full

    def train_supernet(self, full: Backbone) -> Supernet:
        """What can be cut out of the full net, trained together to answer as it does."""
        supernet = supernet_from(full, self.run.space)
        self.run.train(self.stages.supernet, supernet, teacher=full, weights=fingerprint(full))
        return supernet

    def finish(self, arch: Arch, full: Backbone, name: str = "finish") -> Backbone:
        """An arch cut out of the full net, trained to answer as it does."""
        model = supernet_from(full, self.run.space).extract(arch)
        folder = self.run.folder / name
        settings = {**self.run.settings, "space": self.run.space.name, "weights": fingerprint(full)}
        train_model(
            model,
            self.run.batches,
            self.stages.finish,
            folder=folder.train,
            seed=self.run.options.seed,
            settings=settings,
            teacher=full,
            label="finishing the winner",
        )
        return model.eval()


def training_size(batches: BatchSource) -> int:
    """About how many training images there are."""
    return batches.steps_per_epoch * getattr(batches, "batch_size", 1)


def sorting_batches(batches: BatchSource, images: int = SORTING_IMAGES, batch_size: int = 64) -> Iterator[Labelled]:
    """The first training images with their labels, as evaluation shows them."""
    return islice(batches.evaluation("train", batch_size), math.ceil(images / batch_size))
