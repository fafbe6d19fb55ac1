"""A run from start to end: open the folder and the images, train a supernet, search it, publish the winner.

`run_supernet` is `nasformer run`; `train_run`, `search_run` and `training_free_run` are its parts and its variant
without training. Each stage goes on where a killed run stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasformer.data.files import USUAL_SIZE
from nasformer.data.loaders import BatchSource, Split
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.errors import UserError
from nasformer.latency.lookup import PREDICTED, check_profiled, measure_if_missing, with_profile
from nasformer.latency.profile import Profile
from nasformer.models.base import Backbone
from nasformer.models.dense import head_option_names
from nasformer.models.options import SpaceOptions
from nasformer.models.space import Space
from nasformer.models.storage import save_model
from nasformer.proxies.scoring import Scorer
from nasformer.results.folder import Kind, RunFolder
from nasformer.results.result import RunResult
from nasformer.results.verdict import resolution_warning
from nasformer.runs.baselines import check_baselines, timm_names, train_baselines
from nasformer.runs.data import (
    UNTRAINED,
    check_holdout,
    check_options,
    fit_to_data,
    load_batches,
    normalize_as,
    streamed_before,
    task_settings,
    training_images,
)
from nasformer.runs.finish import finish_recipes, finish_winner, ship, supernet_starts
from nasformer.runs.options import ExecutorOptions, JobOptions, RunCommand, RunOptions, SearchCommand, TrainCommand
from nasformer.runs.ray_pool import check_ray
from nasformer.runs.search import (
    ArchSearch,
    Evaluator,
    InheritedEvaluator,
    UntrainedEvaluator,
    check_racing,
    check_search,
    publish,
)
from nasformer.runs.tracking import check_service, tracking
from nasformer.search.options import BudgetOptions, SearchOptions
from nasformer.search.problem import ModelResult, Problem
from nasformer.search.strategy import Strategy, complete_options, find_strategy
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.supernet.storage import load_supernet, save_supernet, supernet_folder
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.options import find_task
from nasformer.tasks.registry import chosen_task
from nasformer.train.evaluate import CLASSIFICATION, SubnetEvaluator, objective_of
from nasformer.train.log import TrainLog
from nasformer.train.loop import train_supernet
from nasformer.train.recipe import Recipe
from nasformer.train.speed import threads_of_training
from nasformer.utils.device import World, choose_device, join_world
from nasformer.utils.progress import run_stages, say
from nasformer.utils.schema import to_json


def run_supernet(command: RunCommand) -> RunResult | None:
    """Trains a supernet, searches it, finishes and exports the winner; the result, in the main process."""
    with open_run(command, "supernet") as run:
        run.measure_profile(command, command.search.objectives)
        with run.stages(command, command.train, finish_recipes(command.finish, command.train)):
            run.train(command.train)
            trained = train_baselines(run, command.baseline, command.train)
            if not run.world.main:
                return None
            supernet = run.load_supernet()
            result = run.search(supernet, command.search, command.budget(), trained, command.train.compile is True)
            result = finish_winner(run, result, supernet_starts(run, supernet, result, command.finish, command.train))
        if command.export:
            ship(run.folder)
    return result


def train_run(command: TrainCommand) -> tuple[Run, float]:
    """Trains a supernet; the run, and the last loss."""
    with open_run(command, "supernet") as run:
        run.train(command.train)
        return run, run.last_loss()


def search_run(command: SearchCommand) -> RunResult | None:
    """Searches the supernet that a run folder has, or another one; the result, in the main process."""
    command = replace(command, data=command.data or "digits")
    with open_run(command, "supernet") as run:
        if not run.world.main:
            return None
        run.use_profile(command, command.search.objectives)
        return run.search(run.load_supernet(command.supernet), command.search, command.budget(), (), command.compile)


def training_free_run(command: SearchCommand) -> RunResult:
    """Searches untrained archs by proxies; with a run folder it can be killed and goes on."""
    command = command.with_shares(command.source_costs())
    space, device = asked_space(command), choose_device(command.device).type
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


@contextmanager
def open_run(
    command: RunOptions, kind: Kind, answers: Sequence[str] | int | None = None, full_arch: Arch | None = None
) -> Iterator[Run]:
    """The run of a command, whose folder no other process may use meanwhile.

    Args:
        answers: The classes of a net whose answers stand for labels, or how many there are.
        full_arch: The net that shares in limits such as 50% are of; the options of the run have numbers in their place.
    """
    if not command.out:
        raise UserError("say where the run's folder shall be: --out runs/NAME")
    device = choose_device(command.device)
    folder, world = RunFolder(command.out), join_world(device)
    folder.check_own(kind)
    space = asked_space(command, folder)
    check_before_images(in_numbers(command, space, full_arch), space, device.type)
    with folder.lock(needed=world.main):
        run = Run(folder, command, space, getattr(command, "train", None) or UNTRAINED, world, answers)
        run.options = in_numbers(run.options, run.space, full_arch)  # its head depends on the images
        if world.main:
            with (
                folder.recording(kind, run.options, run.space.name),
                tracking(folder, getattr(command, "track", "none")),
            ):
                yield run
        else:
            yield run


def in_numbers(command: Any, space: Space, full_arch: Arch | None) -> Any:
    """The command with numbers in place of shares of a net."""
    return command.with_shares(space.costs(full_arch)) if full_arch is not None else command


KNOWN_SCORES = dict.fromkeys(("loss", "params", "macs", *PREDICTED), 0.0)
"""What a candidate of a supernet may be judged by beside the scores of its task, as far as it matters before."""


def check_before_images(command: Any, space: Space, device: str) -> None:
    """Refuses what is wrong whatever the images are, since reading them may take minutes."""
    check_task(command)
    with_files = [name for name in timm_names(getattr(command, "baseline", "")) if ":" in name]
    if with_files and not command.from_:
        raise UserError(f"without --from, baselines have fresh weights; leave the file of timm:{with_files[0]} out")
    check_ray(command)
    check_service(getattr(command, "track", "none"))
    search: SearchOptions | None = getattr(command, "search", None)
    objectives = search.objectives if search else []
    if isinstance(command, BudgetOptions):
        command.budget()
        if type(command) is not RunCommand or command.latency_profile:  # a run measures what is missing
            check_profiled(space, command, objectives, device)
    if search:
        complete_options(find_strategy(search.strategy), search.for_strategy())
        executor = getattr(command, "executor", "local")
        check_racing(search, objectives or InheritedEvaluator.objectives, not getattr(command, "proxy", ""), executor)
        if objectives and not getattr(command, "proxy", ""):
            scores = KNOWN_SCORES | dict.fromkeys(find_task(getattr(command, "task", "classify")).scores, 0.0)
            scores |= {"agreement": 0.0} if getattr(command, "no_training", False) else {}
            Problem(space.root, space.costs, Budget(), tuple(objectives), command.seed).point(scores)


def check_task(command: Any) -> None:
    """Refuses what only classification has so far."""
    if getattr(command, "task", "classify") == "classify":
        return
    flags = {"--proxy": getattr(command, "proxy", ""), "--no-training": getattr(command, "no_training", False)}
    for option, value in flags.items():
        if value:
            raise UserError(f"{option} is for --task classify only so far; leave it out with --task {command.task}")


def asked_space(command: SpaceOptions, folder: RunFolder | None = None) -> Space:
    """The space that was named, or the one that the folder's supernet has."""
    supernet = getattr(command, "supernet", None) or (folder.supernet if folder else None)
    if not command.space and supernet and Path(supernet).is_dir():
        return load_supernet(supernet).space
    return command.chosen_space()


class Run:
    """The folder, images, space and device that all stages of a run share.

    Args:
        options: What the command was asked; images keep their size, unless it (or the supernet's training) says
        another.
        space: As it was asked for; `self.space` is the same for the run's images.
        list_bad: Whether images that cannot be read are listed in the folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: Any,
        space: Space,
        recipe: Recipe,
        world: World,
        answers: Sequence[str] | int | None = None,
        list_bad: bool = True,
    ) -> None:
        self.folder, self.recipe, self.world = folder, recipe, world
        if (task := space.model.task) != "classify" and chosen_task(options).name != task:
            raise UserError(f"the supernet of {folder} is for another task; add --task {task}")
        self.device = choose_device(options.device)
        options = streamed_before(folder, options)
        world.barrier()  # until all have read that, as the main process will write it
        defaults = space.full_options
        named = {"img_size": options.img_size, "in_chans": options.in_chans} if options.space else defaults
        sizes = named["img_size"], named["in_chans"], defaults["img_size"]
        files: dict[str, Any] = {"bad_list": folder.bad_images if list_bad else None, "answers": answers}
        self.batches = load_batches(options, recipe, world, self.device, *sizes, **files)
        self.options = replace(options, stream=self.batches.streamed)
        self.space = fit_to_data(space, self.batches, options)
        self.trained_on = training_images(options)
        self.profile: Profile | None = None

    def inside(self, name: str, space: Space) -> Run:
        """A run in a folder of this one, with the same images and another space."""
        other = copy(self)
        other.folder, other.space = self.folder / name, space
        return other

    def measure_profile(self, command: RunCommand, objectives: Sequence[str] = ()) -> None:
        """Adds predicted costs as `use_profile` does, but measures first what was not profiled yet."""
        if self.world.main:
            measure_if_missing(self.space, command, objectives, self.device.type)
        self.world.wait_for_main()
        self.use_profile(command, objectives)

    def stages(
        self,
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
        usual = (objective_of(self.batches).score,)
        strategy = check_search(self.space, command.search, command.budget(), self.options.seed, usual)
        next(iter(self.batches.evaluation("holdout", 1)))  # without held-out images there is nothing to search by
        baselines = check_baselines(self, command.baseline)
        work = supernet_work(recipe, self.batches, strategy, baselines, finish)
        return run_stages({**(before or {}), **work})

    def use_profile(self, options: BudgetOptions, objectives: Sequence[str] = ()) -> None:
        """Adds predicted costs to the space, where options speak of latency or memory; refuses if unprofiled."""
        self.space, self.profile = with_profile(self.space, options, objectives, self.device.type)

    @property
    def settings(self) -> dict[str, Any]:
        """What every stage's result depends on."""
        split = {name: value for name, value in training_images(self.options).items() if name != "seed"}
        return {**split, "model_options": dict(self.space.options), **task_settings(self.options)}

    @property
    def train_settings(self) -> dict[str, Any]:
        """The same for checkpoints, which compare only what is named: so training on all images is named too."""
        return {**self.settings, "train_images": self.options.train_images}

    def train(
        self, recipe: Recipe, supernet: Supernet | None = None, teacher: nn.Module | None = None, **settings: Any
    ) -> None:
        """The supernet, trained; a finished one is left as it is.

        Args:
            supernet: One to start from, which is trained in place; None: a fresh one.
            teacher: A model whose answers it learns, in place of the recipe's.
            settings: What else the weights depend on, such as where those to start from come from.
        """
        supernet = (supernet or Supernet(self.space, self.options.seed)).to(self.device)
        train_supernet(
            supernet,
            self.batches,
            recipe,
            folder=self.folder.train,
            seed=self.options.seed,
            settings=self.train_settings | settings,
            teacher=teacher,
            calibration_images=self.options.calibration_images,
        )
        if self.world.main:
            save_supernet(supernet, self.folder.supernet, trained_on=self.trained_on, **self.image_facts)
        self.world.barrier()

    def search(
        self,
        supernet: Supernet,
        options: SearchOptions,
        budget: Budget,
        trained: Sequence[ModelResult] = (),
        compiled: bool = False,
    ) -> RunResult:
        """Searches the supernet."""
        if compiled:
            supernet.compile()
        job = self.search_job(supernet, options, budget)
        judged = (supernet, self.batches, self.recipe.precision, self.options.calibration_images)
        with threads_of_training(self.folder.train):
            return self.search_by(job, trained, lambda: warn_of_noise(*judged))

    def search_by(
        self, job: ArchSearch, trained: Sequence[ModelResult], on_open: Callable[[], None] | None = None
    ) -> RunResult:
        """Searches and publishes the winner beside its references."""
        result = job.summarise(job.run(on_open), trained)
        self.publish(job.evaluator.model(result.arch), result)
        return result

    def search_job(self, supernet: Supernet, options: SearchOptions, budget: Budget) -> ArchSearch:
        """The search of a supernet."""
        settings = (self.recipe.precision, self.options.calibration_images, self.options.seed)
        return self.job(InheritedEvaluator(supernet, self.batches, *settings), options, budget)

    def job(self, evaluator: Evaluator, options: SearchOptions, budget: Budget) -> ArchSearch:
        """A search by any evaluator, in the run's folder."""
        data = (self.options.seed, self.folder, self.options.data, self.profile, self.settings)
        return ArchSearch(evaluator, budget, options, *data, executor=self.executor)

    @property
    def executor(self) -> ExecutorOptions:
        """Where independent work is done; commands without such options do it here."""
        return self.options if isinstance(self.options, ExecutorOptions) else ExecutorOptions()

    @property
    def side_by_side(self) -> bool:
        """Whether trainings may run at the same time, in processes of this machine."""
        return self.world.size == 1 and isinstance(self.options, JobOptions) and self.options.jobs != 1

    def load_supernet(self, source: str | None = None) -> Supernet:
        """The supernet to search. What was not asked for, such as a patch size, is as it was trained."""
        path = supernet_folder(Path(source or self.folder.supernet))
        supernet = load_supernet(path, self.space).to(self.device)
        check_holdout(self.options, path)
        check_options(self.options, self.batches, supernet.space)
        normalize_as(self.batches, RunFolder(path))
        self.trained_on = RunFolder(path).facts("trained_on").get("trained_on", {})
        self.space = supernet.space = replace(supernet.space, predicted=self.space.predicted)
        return supernet

    def publish(self, model: Backbone | None, result: RunResult) -> None:
        """Writes the winning model, the result and the report."""
        if model is not None:
            self.save(model, result)
        publish(self.folder, result)

    def save(self, model: Backbone, result: RunResult) -> None:
        """Writes the winning model with what is known of it."""
        name = f"test_{objective_of(self.batches).score}"
        score = result.shipped.get(name)
        facts: dict[str, Any] = {name: score} if math.isfinite(score) else {}
        facts |= {"space": self.space.name, **self.image_facts, "trained_on": self.trained_on}
        save_model(model, self.folder.model, **facts)
        split: Split = "holdout" if self.batches.held_out else "test"
        chosen_task(self.options).draw(model, self.batches, split, self.folder.pictures)

    @property
    def image_shape(self) -> dict[str, Any]:
        """What a model is built for: images, classes, and the head of another task than classification."""
        options, model = self.space.full_options, self.space.model
        shape = {name: options[name] for name in ("img_size", "in_chans", "num_classes")}
        if model.task == "classify":
            return shape
        names = head_option_names() & options.keys()
        return {**shape, "task": model.task, "head": {name: options[name] for name in names}}

    @property
    def image_facts(self) -> dict[str, Any]:
        """What a model must know of its images: how they are prepared, and the names of their classes."""
        batches = self.batches
        facts = {"mean": list(batches.mean), "std": list(batches.std), "classes": list(batches.classes)}
        return {**facts, "preprocessing": to_json(batches.preprocessing), **getattr(batches, "facts", {})}

    def last_loss(self) -> float:
        return TrainLog.last_loss(self.folder.log)


# The work of a run's stages in MACs, by which progress tells the remaining time of the whole run

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
        **{f"winner, {name}": training_work(last, steps, winner_macs) for name, last in finish.items()},
    }


def warn_of_noise(supernet: Supernet, batches: BatchSource, precision: str, calibration_images: int) -> None:
    """Says before a search that the held-out images cannot tell its candidates apart, where they are too few."""
    if objective_of(batches) is not CLASSIFICATION:  # its score is no share of images
        return
    if resolution_warning(0.5, batches.held_out):  # the largest error there can be: no need to measure otherwise
        subnets = SubnetEvaluator(supernet, batches, precision, calibration_images)
        accuracy = subnets.accuracy(supernet.space.root.largest(), "holdout")
        if warning := resolution_warning(accuracy, batches.held_out):
            say(f"warning: {warning}")


def make_scorer(command: Any, space: Space) -> Scorer:
    """The scorer that a command asks for; where data is named, the space is fitted to it."""
    device, batches = choose_device(command.device), None
    if command.data:
        # Images keep their size, unless another was asked for, by an option or in a table.
        img_size = command.img_size if hasattr(command, "img_size") else space.options.get("img_size")
        batches = probe_batches(command, img_size, device)
        space = fit_to_data(space, batches, command)
    return Scorer(space, command.proxy, batches=batches, seed=command.seed, device=device, **command.probing())


def probe_batches(command: Any, img_size: int | None, device: torch.device) -> BatchSource:
    """Plain training images, shuffled, without augmentation."""
    plain = Recipe(batch_size=command.probe_size, augment=AugmentOptions(crop="none", hflip=0.0, smoothing=0.0))
    shared = {name: getattr(command, name) for name in ("data_root", "download", "max_bad") if hasattr(command, name)}
    options = DataOptions(data=command.data, seed=command.seed, **shared)
    return load_batches(options, plain, World(), device, img_size, usual_size=USUAL_SIZE)
