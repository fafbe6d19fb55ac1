"""A run from start to end: train a supernet, search it, finish and export the winner.

`run_supernet` is `nasformer run`; `train_run`, `search_run` and `training_free_run` are its parts and its variant
without training. Each stage goes on where a killed run stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch

from nasformer.data.files import USUAL_SIZE
from nasformer.data.loaders import BatchSource
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.latency.lookup import with_profile
from nasformer.models.registry import SpaceOptions
from nasformer.models.space import Space
from nasformer.proxies.scoring import Scorer
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.runs.base import Run, check_before_images, command_space, open_run, publish
from nasformer.runs.baselines import check_baselines, train_baselines
from nasformer.runs.data import fit_to_data, load_batches
from nasformer.runs.finish import finish_recipes, finish_winner, ship, supernet_starts
from nasformer.runs.options import RunCommand, SearchCommand, TrainCommand
from nasformer.runs.search import ArchSearch, UntrainedEvaluator, check_search, open_supernet, search_weights
from nasformer.runs.tracking import tracking
from nasformer.search.problem import Problem
from nasformer.search.strategy import Strategy
from nasformer.supernet.supernet import has_batch_norm
from nasformer.tasks.registry import space_for
from nasformer.train.evaluate import objective_of
from nasformer.train.log import TrainLog
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, choose_device
from nasformer.utils.progress import run_stages


def run_supernet(command: RunCommand) -> RunResult | None:
    """Trains a supernet, searches it, finishes and exports the winner; the result, in the main process."""
    with open_run(command, "supernet") as run:
        run.measure_profile(command)
        with stages(run, command, command.train, finish_recipes(command.finish, command.train)):
            run.train(command.train)
            trained = train_baselines(run, command.baseline, command.train)
            if not run.world.main:
                return None
            supernet = open_supernet(run)
            result = search_weights(run, supernet, command, trained, compiled=command.train.compile is True)
            result = finish_winner(run, result, supernet_starts(run, supernet, result, command.finish, command.train))
        if command.export:
            ship(run.folder)
    return result


def train_run(command: TrainCommand) -> tuple[Run, float]:
    """Trains a supernet; the run, and the last loss."""
    with open_run(command, "supernet") as run:
        run.train(command.train)
        return run, TrainLog.last_loss(run.folder.log)


def search_run(command: SearchCommand) -> RunResult | None:
    """Searches the supernet that a run folder has, or another one; the result, in the main process."""
    command = replace(command, data=command.data or "digits")
    with open_run(command, "supernet") as run:
        if not run.world.main:
            return None
        run.use_profile(command, command.search.objectives)
        return search_weights(run, open_supernet(run, command.supernet), command, compiled=command.compile)


def training_free_run(command: SearchCommand) -> RunResult:
    """Searches untrained archs by proxies; with a run folder it can be killed and goes on."""
    command = command.with_shares(command.source_costs())
    space, device = space_for(command_space(command), command), choose_device(command.device).type
    check_before_images(command, space, device)
    scorer = make_scorer(command, space)
    scorer.space, profile = with_profile(scorer.space, command, command.search.objectives, device)
    folder = RunFolder(command.out) if command.out else None
    job = ArchSearch(
        UntrainedEvaluator(scorer),
        command.budget(),
        command.search,
        command.seed,
        folder,
        command.data or None,
        profile,
        {"data": command.data},
        executor=command,
    )
    if folder is None:
        return job.summarise(job.run())
    folder.check_own("training-free")
    recording = folder.recording("training-free", command, scorer.space.name)
    with folder.lock(), recording, tracking(folder, command.track):
        result = job.summarise(job.run())
        publish(folder, result)
    return result


class ScoringCommand(Protocol):
    """A command that scores archs by proxies."""

    proxy: str
    data: str
    seed: int
    device: str
    probe_size: int

    def probing(self) -> Mapping[str, Any]: ...


def make_scorer(command: ScoringCommand, space: Space) -> Scorer:
    """The scorer that a command asks for; where data is named, the space is fitted to it."""
    device, batches = choose_device(command.device), None
    if command.data:
        # Images keep their size, unless another was asked for, by an option or in a table.
        img_size = command.img_size if isinstance(command, SpaceOptions) else space.options.get("img_size")
        batches = probe_batches(command, img_size, device)
        space = fit_to_data(space, batches, command)
    return Scorer(space, command.proxy, batches=batches, seed=command.seed, device=device, **command.probing())


def probe_batches(command: ScoringCommand, img_size: int | None, device: torch.device) -> BatchSource:
    """Plain training images, shuffled, without augmentation."""
    plain = Recipe(batch_size=command.probe_size, augment=AugmentOptions(crop="none", hflip=0.0, smoothing=0.0))
    options = DataOptions(data=command.data, seed=command.seed)
    if isinstance(command, DataOptions):
        options = replace(options, data_root=command.data_root, download=command.download, max_bad=command.max_bad)
    return load_batches(options, plain, World(), device, img_size, usual_size=USUAL_SIZE)


# The work of a run's stages in MACs, by which progress tells the remaining time of the whole run


def stages(
    run: Run,
    command: RunCommand,
    recipe: Recipe,
    finish: Mapping[str, Recipe],
    before: Mapping[str, float] | None = None,
) -> AbstractContextManager[None]:
    """Refuses a search or baselines that cannot be; within it, progress tells the time that all stages need.

    Args:
        recipe: The supernet's.
        finish: Recipes of the winner's training in the end, by name.
        before: Work of what is trained ahead of the supernet, by label.
    """
    usual = (objective_of(run.batches).score,)
    strategy = check_search(run.space, command.search, command.budget(), run.options.seed, usual)
    next(iter(run.batches.evaluation("holdout", 1)))  # without held-out images there is nothing to search by
    baselines = check_baselines(run, command.baseline)
    judged = run.batches.held_out + (run.options.calibration_images if has_batch_norm(run.space) else 0)
    work = supernet_work(recipe, run.batches, strategy, baselines, finish, judged)
    return run_stages({**(before or {}), **work})


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
    judged: int,
) -> dict[str, float]:
    """The stages from the supernet's training on, by the labels of their progress.

    Args:
        strategy: That of the search.
        baselines: Costs of the timm models that are trained beside it.
        finish: Recipes by which the winner is trained in the end.
        judged: Images that a candidate of the search sees: those held out, and those of its batch norm.
    """
    macs, winner_macs = typical_macs(strategy.problem)
    single, steps = next(iter(finish.values()), recipe), batches.steps_per_epoch
    return {
        "supernet": training_work(recipe, steps, macs),
        **{f"baseline {name}": training_work(single, steps, cost["macs"]) for name, cost in baselines.items()},
        "search": strategy.evaluations * judged * winner_macs,
        **{f"winner, {name}": training_work(last, steps, winner_macs) for name, last in finish.items()},
    }
