"""The work of a run's stages in MACs, so that progress can tell the remaining time of the whole run."""

from __future__ import annotations

from collections.abc import Mapping

from nasformer.data.loaders import BatchSource
from nasformer.search.problem import Problem
from nasformer.search.strategies.base import Strategy
from nasformer.train.recipe import Recipe

TRAINING = 3
"""Forward passes that a training image costs: backward takes two more."""


def typical_macs(problem: Problem) -> tuple[float, float]:
    """MACs midway between the smallest and the largest arch of a space, and those of an arch within the budget."""
    ends = [problem.costs(arch)["macs"] for arch in (problem.node.smallest(), problem.node.largest())]
    return sum(ends) / 2, problem.costs(problem.sample(problem.rng("stages")))["macs"]


def training_work(recipe: Recipe, steps_per_epoch: int, macs: float) -> float:
    """A training of a net with so many MACs; in a sandwich several nets are trained in a step."""
    nets = 2 + recipe.sandwich if recipe.sandwich else 1
    return TRAINING * nets * macs * recipe.batch_size * recipe.total_steps(steps_per_epoch)


def supernet_work(
    recipe: Recipe,
    batches: BatchSource,
    strategy: Strategy,
    baselines: Mapping[str, Mapping[str, int]],
    finish: Mapping[str, Recipe],
) -> dict[str, float]:
    """The stages from the supernet's training on, by the labels of their progress.

    Args:
        strategy: That of the search, which evaluates its candidates on the held-out images.
        baselines: Costs of the timm models that are trained beside it.
        finish: Recipes by which the winner is trained in the end.
    """
    macs, winner_macs = typical_macs(strategy.problem)
    single, steps = next(iter(finish.values()), recipe), batches.steps_per_epoch
    return {
        "supernet": training_work(recipe, steps, macs),
        **{f"baseline {name}": training_work(single, steps, cost["macs"]) for name, cost in baselines.items()},
        "search": strategy.evaluations * batches.held_out * winner_macs,
        **{f"winner, {name}": training_work(each, steps, winner_macs) for name, each in finish.items()},
    }
