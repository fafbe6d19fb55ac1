"""The two things one does with a supernet: train it, and search it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nasformer.data import BatchSource, Data
from nasformer.recipe import Recipe
from nasformer.search import Budget, SearchResult, search
from nasformer.supernet import Supernet
from nasformer.supernet.samplers import make_sampler
from nasformer.supernet.statistics import IMAGES
from nasformer.train.distributed import World
from nasformer.train.evaluate import inherited_accuracy
from nasformer.train.fit import as_batches, fit


def train_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> float:
    """Trains the shared weights in place, each step on the archs that the recipe's sampler draws.

    Returns the last mean loss. With a folder it can be killed and started again. Under torchrun every process calls
    it alike.
    """
    recipe = recipe or Recipe()
    if recipe.compile:
        supernet.compile()
    return fit(
        supernet,
        data,
        recipe,
        sampler=make_sampler(supernet.space, recipe.sampler, recipe.sandwich, seed),
        folder=folder,
        seed=seed,
        # No arch of its own: so the folder of a single model's training is refused.
        settings={"space": supernet.space.name, "arch": None, **(settings or {})},
        quiet=quiet,
        calibration_images=calibration_images,
    )


def search_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    *,
    budget: Budget | None = None,
    strategy: str = "evolution",
    options: Mapping[str, Any] | None = None,
    objectives: tuple[str, ...] = ("accuracy",),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: str = "auto",
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> SearchResult:
    """Searches the space by accuracy with inherited weights on the held-out images, never the test set.

    Where there is batch norm, an arch's own statistics are estimated on so many training images first.
    """
    # What has no effect is no setting: so it refuses no journal.
    calibration = {"calibration_images": calibration_images} if supernet.has_statistics else {}
    batches = as_batches(data, Recipe(), seed, World(), supernet.device)
    return search(
        supernet.space,
        inherited_accuracy(supernet, batches, "holdout", precision, calibration_images),
        supernet.space.costs,
        strategy=strategy,
        options=options,
        budget=budget or Budget(),
        objectives=objectives,
        seed=seed,
        journal=journal,
        settings={"space": supernet.space.name, **calibration, **(settings or {})},
        quiet=quiet,
    )
