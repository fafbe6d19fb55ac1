"""What stands beside the answer of a run: random search, and models of timm that are trained by its recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nasformer.baselines.random_start import RANDOM, best_of_search, best_of_start
from nasformer.baselines.timm_models import names_of
from nasformer.baselines.training import timm_costs, train_timm
from nasformer.options import SearchOptions
from nasformer.pipeline import Run
from nasformer.recipe import Recipe
from nasformer.search import Budget, SearchResult
from nasformer.searching import problem_of
from nasformer.space import Arch
from nasformer.supernet import Supernet


def random_rivals(
    run: Run, supernet: Supernet, options: SearchOptions, budget: Budget, result: SearchResult
) -> dict[str, Arch]:
    """The best of a random search with as many candidates, if asked for; else that of the search's random start."""
    if options.strategy == "random":
        return {}
    if has_random_search(options):
        again = replace(options, strategy="random", evaluations=len(result.candidates))
        return best_of_search(run.search(supernet, again, budget, RANDOM))
    return best_of_start(problem_of(run.space, options, budget, run.config.seed), result.candidates)


def has_random_search(options: SearchOptions) -> bool:
    """Whether a random search is made beside that of the run; a search that is random itself needs none."""
    return options.baseline == "random" and options.strategy != "random"


def check_baselines(run: Run, asked: str) -> dict[str, dict[str, int]]:
    """The costs of the timm models asked for. Raises now what their training would raise after a long search."""
    return timm_costs(names_of(asked), run.image_shape)


def drop_path_of(run: Run) -> float:
    """Stochastic depth is a part of the recipe, so that baselines have it as our models do."""
    return float(run.space.options.get("drop_path_rate", 0.0))


def train_baselines(run: Run, asked: str, recipe: Recipe) -> list[dict[str, Any]]:
    """Trains the timm models that are asked for, on the run's images and for as many steps; all processes together."""
    drop_path_rate = drop_path_of(run)
    return [
        train_timm(
            name,
            run.batches,
            recipe,
            run.image_shape,
            device=run.device,
            seed=run.config.seed,
            folder=run.folder / "baselines" / name,
            settings={"data": run.config.data, "holdout": run.config.holdout, "drop_path_rate": drop_path_rate},
            drop_path_rate=drop_path_rate,
        )
        for name in names_of(asked)
    ]
