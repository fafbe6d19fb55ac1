"""What training a supernet and training an ordinary model have in common: processes, batches, loss, loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasformer.data import Batches, BatchSource, Data
from nasformer.recipe import Recipe
from nasformer.supernet.samplers import Sampler
from nasformer.supernet.statistics import IMAGES
from nasformer.train.distributed import World, join_world
from nasformer.train.loop import Trainer
from nasformer.train.loss import Loss, load_teacher, soft_cross_entropy, with_teacher


def fit(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe,
    *,
    sampler: Sampler | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> float:
    """Trains a model in place, where its weights are, among the processes of torchrun. Returns the last mean loss."""
    device = next(model.parameters()).device
    world = join_world(device)
    batches = as_batches(data, recipe, seed, world, device)
    trainer = Trainer(
        model,
        batches,
        recipe,
        sampler=sampler,
        loss=loss_of(recipe, batches, device),
        folder=Path(folder) if folder else None,
        settings=settings,
        seed=seed,
        world=world,
        quiet=quiet,
        calibration_images=calibration_images,
    )
    return trainer.run()


def as_batches(data: Data | BatchSource, recipe: Recipe, seed: int, world: World, device: torch.device) -> BatchSource:
    if not isinstance(data, Data):
        return data
    return Batches(data, recipe.augment, recipe.batch_size, seed, world.rank, world.size, device, recipe.repeats)


def loss_of(recipe: Recipe, batches: BatchSource, device: torch.device) -> Loss:
    """The targets alone, or together with what the recipe's teacher thinks."""
    if not recipe.teacher:
        return soft_cross_entropy
    teacher = load_teacher(recipe.teacher, batches.num_classes, batches.in_chans, device)
    return with_teacher(teacher, recipe.teacher_weight, recipe.augment.smoothing)
