"""The two things one does with a supernet: train it, and search it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nasformer.data import Batches, BatchSource, Data
from nasformer.progress import progress
from nasformer.recipe import Recipe
from nasformer.search import Budget, Candidate, SearchResult, search
from nasformer.supernet import Supernet
from nasformer.supernet.samplers import SAMPLERS
from nasformer.train.distributed import World, join_world
from nasformer.train.evaluate import inherited_accuracy
from nasformer.train.loop import Trainer
from nasformer.train.loss import Loss, load_teacher, soft_cross_entropy, with_teacher


def train_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> float:
    """Trains the shared weights in place: a random arch each step. Returns the last mean loss.

    With a folder it can be killed and started again. Under torchrun every process calls it alike.
    """
    recipe = recipe or Recipe()
    world = join_world(supernet.device)
    batches = as_batches(data, recipe, seed, world, supernet)
    loss: Loss = soft_cross_entropy
    if recipe.teacher:
        teacher = load_teacher(recipe.teacher, batches.num_classes, batches.in_chans, supernet.device)
        loss = with_teacher(teacher, recipe.teacher_weight, recipe.augment.smoothing)
    if recipe.compile:
        supernet.compile()
    trainer = Trainer(
        supernet,
        batches,
        recipe,
        sampler=SAMPLERS[recipe.sampler](supernet.space, seed),
        loss=loss,
        folder=Path(folder) if folder else None,
        settings={"space": supernet.space.name, **(settings or {})},
        seed=seed,
        world=world,
        quiet=quiet,
    )
    return trainer.run()


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
) -> SearchResult:
    """Searches the space by accuracy with inherited weights on the held-out images, never the test set."""
    batches = as_batches(data, Recipe(), seed, World(), supernet)
    count, best = 0, 0.0
    with progress("search", planned(strategy, options), quiet) as report:

        def seen(candidate: Candidate) -> None:
            nonlocal count, best
            count, best = count + 1, max(best, candidate.scores["accuracy"])
            report(count, f"best {best:.2%}")

        return search(
            supernet.space,
            inherited_accuracy(supernet, batches, "holdout", precision),
            supernet.space.costs,
            strategy=strategy,
            options=options,
            budget=budget or Budget(),
            objectives=objectives,
            seed=seed,
            journal=journal,
            settings={"space": supernet.space.name, **(settings or {})},
            on_candidate=seen,
        )


def planned(strategy: str, options: Mapping[str, Any] | None) -> int:
    """How many candidates a search will judge, if it is not stopped early."""
    given = dict(options or {})
    if strategy == "random":
        return given.get("evaluations", 1000)
    return given.get("population", 50) * given.get("generations", 20)


def as_batches(data: Data | BatchSource, recipe: Recipe, seed: int, world: World, supernet: Supernet) -> BatchSource:
    if not isinstance(data, Data):
        return data
    return Batches(
        data, recipe.augment, recipe.batch_size, seed, world.rank, world.size, supernet.device, recipe.repeats
    )
