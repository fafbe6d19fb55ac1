"""A run as all of its stages see it: its folder, images, space and device.

`open_run` refuses what is wrong before anything is read or written, locks the folder and records the command.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from nasformer.data.decode import for_channels
from nasformer.data.files import USUAL_SIZE, ImageFiles, fits, memory_size
from nasformer.data.images import Data
from nasformer.data.loaders import Batches, BatchSource, Split
from nasformer.data.options import DataOptions
from nasformer.data.sources import open_data, open_files
from nasformer.data.streaming import StreamedData, stream_files
from nasformer.errors import UserError
from nasformer.latency.profile import Profile
from nasformer.latency.search import PREDICTED, check_profiled, measure_if_missing, with_profile
from nasformer.models.base import Backbone
from nasformer.models.dense import head_option_names
from nasformer.models.registry import SpaceOptions
from nasformer.models.space import Space
from nasformer.models.storage import WeightFacts, save_model
from nasformer.report.page import write_report
from nasformer.results.folder import Kind, RunFolder
from nasformer.results.result import AGREEMENT, RunResult
from nasformer.runs.options import (
    UNTRAINED,
    ExecutorOptions,
    JobOptions,
    RunCommand,
    RunOptions,
    SearchCommand,
    check_racing,
    timm_names,
)
from nasformer.runs.pools import check_ray
from nasformer.runs.tracking import check_service, tracking
from nasformer.search.options import BudgetOptions, SearchOptions
from nasformer.search.problem import Problem
from nasformer.search.strategy import complete_options, find_strategy
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.options import TaskOptions, find_task
from nasformer.tasks.registry import chosen_task, space_for, write_evaluation
from nasformer.train.evaluate import objective_of
from nasformer.train.loop import make_batches, train_supernet
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, choose_device, join_world
from nasformer.utils.progress import say
from nasformer.utils.schema import to_json

Command = TypeVar("Command", bound=RunOptions)


@contextmanager
def open_run(
    command: RunOptions, kind: Kind, answers: Sequence[str] | int | None = None, full_arch: Arch | None = None
) -> Iterator[Run]:
    """Context with the run of a command, whose folder no other process may use meanwhile.

    Args:
        answers: Classes of the net whose answers replace labels, or their number.
        full_arch: The net that shares such as 50% refer to; the options of the run have numbers in their place.
    """
    if not command.out:
        raise UserError("say where the run's folder shall be: --out runs/NAME")
    device = choose_device(command.device)
    folder, world = RunFolder(command.out), join_world(device)
    folder.check_own(kind)
    space = command_space(command, folder)
    check_before_images(resolve_shares(command, space, full_arch), space, device.type)
    with folder.lock(needed=world.main):
        run = Run(folder, command, space, command.train, world, answers)
        run.options = resolve_shares(run.options, run.space, full_arch)  # its head depends on the images
        if world.main:
            with folder.recording(kind, run.options, run.space.name), tracking(folder, command.tracker):
                yield run
        else:
            yield run


def command_space(command: RunOptions, folder: RunFolder | None = None) -> Space:
    """The space that a command names, or else that of the supernet that it searches."""
    named = command.supernet if isinstance(command, SearchCommand) else None
    supernet = named or (folder.supernet if folder else None)
    if not command.space and supernet and Path(supernet).is_dir():
        return load_supernet(supernet).space
    return command.chosen_space()


def resolve_shares(command: Command, space: Space, full_arch: Arch | None) -> Command:
    """The command with numbers in place of limits that are shares of a net, such as 50%."""
    if full_arch is None or not isinstance(command, BudgetOptions):
        return command
    return command.with_shares(space.costs(full_arch))


def check_before_images(command: RunOptions, space: Space, device: str) -> None:
    """Refuses what is wrong whatever the images are, since reading them may take minutes."""
    check_task(command)
    with_files = [name for name in timm_names(command.baseline) if ":" in name]
    if with_files and not command.from_:
        raise UserError(f"without --from, baselines have fresh weights; leave the file of timm:{with_files[0]} out")
    check_ray(command.executor_options)
    check_service(command.tracker)
    if isinstance(command, BudgetOptions):
        command.budget()
        if type(command) is not RunCommand or command.latency_profile:  # a run measures what is missing
            check_profiled(space, command, command.search.objectives if command.search else (), device)
    if command.search:
        check_search_options(command, command.search, space)


def check_task(command: RunOptions) -> None:
    """Refuses options that only classification supports."""
    if command.task == "classify":
        return
    if command.proxy and command.data:
        raise UserError(
            f"with --task {command.task}, proxies score backbones, which see noise; give --img-size and --num-classes "
            "in place of --data"
        )
    if command.no_training and chosen_task(command).objective.agreement is None:
        raise UserError(
            f"--no-training compares answers with the full net's, which --task {command.task} has no measure for; "
            "leave it out: with training, nets are cut for every task"
        )


COMMON_SCORES = dict.fromkeys(("loss", "params", "macs", *PREDICTED), 0.0)
"""Objectives that any search of a supernet can have, with values for a trial."""


def check_search_options(command: RunOptions, search: SearchOptions, space: Space) -> None:
    """Refuses options of a strategy, races and objectives that cannot be; says which options have no effect."""
    complete_options(find_strategy(search.strategy), search.for_strategy())
    for name in search.unused_options:
        say(f"--search.{name} has no effect: the strategy {search.strategy} does not have it")
    objectives, executor = tuple(search.objectives), command.executor_options.executor
    usual = next(iter(find_task(command.task).scores))
    check_racing(search, objectives or (usual,), trained=not command.proxy, executor=executor)
    if objectives and not command.proxy:
        scores = COMMON_SCORES | dict.fromkeys(find_task(command.task).scores, 0.0)
        scores |= {AGREEMENT: 0.0} if command.no_training else {}
        Problem(space.root, space.costs, Budget(), objectives, command.seed).point(scores)


class Run:
    """The folder, images, space and device that all stages of a run share.

    Args:
        options: Those of the command; images keep their size, unless it (or the supernet's training) says another.
        space: As the command names it; `self.space` is the same for the run's images.
        list_bad: Whether images that cannot be read are listed in the folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: RunOptions,
        space: Space,
        recipe: Recipe,
        world: World,
        answers: Sequence[str] | int | None = None,
        list_bad: bool = True,
    ) -> None:
        self.folder, self.recipe, self.world = folder, recipe, world
        if (task := space.model.task) != "classify" and options.task != task:
            raise UserError(f"the weights to start from are for another task; add --task {task}")
        self.device = choose_device(options.device)
        options = stream_as_before(folder, options)
        world.barrier()  # until all have read that, as the main process will write it
        trained = space.full_options
        self.batches = load_batches(
            options,
            recipe,
            world,
            self.device,
            # A command that names no space takes a supernet as it was trained, or a pretrained net as it is.
            img_size=options.img_size if options.space else trained["img_size"],
            in_chans=options.in_chans if options.space else trained["in_chans"],
            usual_size=trained["img_size"],
            bad_list=folder.bad_images if list_bad else None,
            answers=answers,
        )
        self.options = replace(options, stream=self.batches.streamed)
        self.space = fit_to_data(space, self.batches, options)
        self.trained_on = training_images(options)
        self.profile: Profile | None = None

    def adopt_words(self, model: Backbone, facts: Mapping[str, Any]) -> None:
        """Keeps the words of a model of questions to start from, as its weights stand for them."""
        adopt = getattr(self.batches, "adopt_words", None)
        if adopt and model.task == self.options.task and facts.get("words"):
            adopt(model.options, facts)
            self.space = fit_to_data(self.space, self.batches, self.options)

    def inside(self, name: str, space: Space) -> Run:
        """A run in a folder of this one, with the same images and another space."""
        other = copy(self)
        other.folder, other.space = self.folder / name, space
        return other

    def measure_profile(self, command: RunCommand) -> None:
        """Adds predicted costs as `use_profile` does, but measures first what was not profiled yet."""
        if self.world.main:
            measure_if_missing(self.space, command, command.search.objectives, self.device.type)
        self.world.wait_for_main()
        self.use_profile(command, command.search.objectives)

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

    @property
    def executor(self) -> ExecutorOptions:
        """Where independent work is done."""
        return self.options.executor_options

    @property
    def side_by_side(self) -> bool:
        """Whether trainings may run at the same time, in processes of this machine."""
        return self.world.size == 1 and isinstance(self.options, JobOptions) and self.options.jobs != 1

    def train(
        self, recipe: Recipe, supernet: Supernet | None = None, teacher: nn.Module | None = None, **settings: Any
    ) -> None:
        """Trains the supernet and saves it; a finished training is left as it is.

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

    def publish(self, model: Backbone | None, result: RunResult) -> None:
        """Writes the winning model, the result and the report."""
        if model is not None:
            self.save(model, result)
        publish(self.folder, result)

    def save(self, model: Backbone, result: RunResult) -> None:
        """Writes the winning model with its space, score and images."""
        name = f"test_{objective_of(self.batches).score}"
        score = result.shipped.get(name)
        facts: dict[str, Any] = {name: score} if math.isfinite(score) else {}
        facts |= {"space": self.space.name, **self.image_facts, "trained_on": self.trained_on}
        save_model(model, self.folder.model, **facts)
        split: Split = "holdout" if self.batches.held_out else "test"
        task = chosen_task(self.options)
        if task.name != "classify":
            evaluation = task.judge(model, self.batches, split, self.batches.classes)
            write_evaluation(evaluation, self.folder.pictures, split=split)
            task.draw(model, self.batches, split, self.folder.pictures, evaluation)

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


def publish(folder: RunFolder, result: RunResult) -> None:
    """Writes the result and the report."""
    result.save(folder.result)
    say(f"drawing the report: {folder.report}")
    write_report(folder.path)


# The images of a run: opened for its device and process, and checked against the space and the weights.
#
# A space is fitted to its images, weights only see images like those they were trained on, normalised as then, and a
# search never sees images that its supernet was trained on.

Images = TypeVar("Images", bound=DataOptions)


def load_batches(
    options: DataOptions,
    recipe: Recipe,
    world: World,
    device: torch.device,
    img_size: int | None,
    in_chans: int | None = None,
    usual_size: int = USUAL_SIZE,
    bad_list: Path | None = None,
    answers: Sequence[str] | int | None = None,
) -> Batches:
    """The images on this process's device; those that cannot be read are listed in the file `bad_list`.

    With img_size None images keep their size, but get `usual_size` where they differ. With in_chans None they are
    read in colour, unless all are grey. With `answers`, the classes of a net, images need no labels. Another task than
    classification opens its own.
    """
    loaded = chosen_task(options).load_batches(options, recipe, world, device, img_size, in_chans, usual_size, bad_list)
    if loaded is not None:
        return loaded
    sizes = {"img_size": img_size, "in_chans": in_chans, "usual_size": usual_size}
    opened, uncropped = open_images(options, world, sizes, bad_list, answers), recipe.augment.crop == "resized"
    data: Data | StreamedData
    if not isinstance(opened, ImageFiles):
        data = opened
    elif options.stream is True or (options.stream == "auto" and too_large(opened, uncropped, device, world)):
        opened.bad.log = bad_list  # from here on each process meets other files
        data = stream_files(opened, options.workers, world.size)
    else:
        data = opened.decode(uncropped)
    return make_batches(data, recipe, options.seed, world, device)


def open_images(
    options: DataOptions,
    world: World,
    sizes: Mapping[str, Any],
    bad_list: Path | None,
    answers: Sequence[str] | int | None,
) -> Data | ImageFiles:
    """The images of a classification; where they are to be downloaded, the main process does that for all."""
    if options.download and not world.main:
        world.wait_for_main()
    data = (open_files if options.stream is True else open_data)(
        options.data,
        holdout=options.holdout,
        train_images=options.train_images,
        seed=options.seed,
        root=options.data_root,
        download=options.download and world.main,
        max_bad=options.max_bad,
        bad_list=bad_list if world.main else None,
        quiet=not world.main,
        answers=answers,
        **sizes,
    )
    if options.download and world.main:
        world.wait_for_main()
    return data


def too_large(files: ImageFiles, uncropped: bool, device: torch.device, world: World) -> bool:
    """Whether the images must be streamed. The main process decides for all, and says so."""
    large = world.agree(not fits(files.memory(uncropped), device, world.size), device)
    if world.main:
        size = f"{len(files.splits)} images of {files.size} px, {memory_size(files.decoded_bytes)} when decoded"
        say(f"{files.name}: {size}: {'too large for memory, streamed from disk' if large else 'kept in memory'}")
    return large


def stream_as_before(folder: RunFolder, options: Images) -> Images:
    """The options, streaming as when the run began where they leave that open: free memory may differ now."""
    if options.stream != "auto" or not folder.config.exists():
        return options
    before = folder.read_config()
    return replace(options, stream=before.stream) if before.data == options.data else options


def image_options(batches: BatchSource) -> dict[str, int]:
    """The options of a model that the images decide."""
    of_images = {"img_size": batches.img_size, "in_chans": batches.in_chans, "num_classes": batches.num_classes}
    return of_images | getattr(batches, "head_options", {})


class NamesData(Protocol):
    """Options that name images."""

    data: str


def fit_to_data(space: Space, batches: BatchSource, options: NamesData) -> Space:
    """The space for these images: size, channels and classes are the data's; other ones are refused."""
    of_images = image_options(batches)
    named = options.model_options() if isinstance(options, SpaceOptions) else {}
    for name in ("in_chans", "num_classes"):
        if (value := named.get(name)) not in (None, of_images[name]):
            raise UserError(f"{options.data} has {name} {of_images[name]}, not {value}; leave --{name} out")
    return space_for(space, options).with_options(**of_images)


def check_options(options: RunOptions, batches: BatchSource, trained: Space) -> None:
    """Refuses images and model options other than those that the supernet was trained with."""
    trained_with = trained.full_options
    for name, value in {**options.model_options(), **image_options(batches)}.items():
        if trained_with[name] != value:
            raise UserError(
                f"the supernet was trained with {name} {trained_with[name]}, not {value}; "
                "ask for the same or train another"
            )


def same_classes(batches: BatchSource, model: Backbone, names: Sequence[str] | None) -> bool:
    """Whether a model is for the classes of these images; where it has no names of classes, their number decides."""
    return model.num_classes == batches.num_classes and list(names or batches.classes) == list(batches.classes)


def training_images(options: DataOptions) -> dict[str, Any]:
    """The settings that decide which images are trained on and which are held out."""
    split = {"data": options.data, "holdout": options.holdout, "seed": options.seed}
    return split if options.train_images is None else {**split, "train_images": options.train_images}


def task_settings(options: object) -> dict[str, Any]:
    """Further settings that results depend on, for tasks other than classification."""
    if not isinstance(options, TaskOptions) or options.task == "classify":
        return {}
    return {"task": options.task, options.task: to_json(options.of_task)}


def check_holdout(options: DataOptions, supernet: Path) -> None:
    """Refuses held-out images that the supernet may have been trained on."""
    before = RunFolder(supernet).facts("trained_on").get("trained_on", {}) if supernet.is_dir() else {}
    if holds_out_others(options, before):
        raise UserError(
            f"{supernet} was trained with --holdout {before.get('holdout')} --seed {before.get('seed')}; "
            "give the same, or the search would see images that it was trained on"
        )


def holds_out_others(options: DataOptions, before: dict[str, Any]) -> bool:
    """Whether weights may have been trained on the images that are held out now."""
    split = ("holdout", "seed")
    now = training_images(options)
    return before.get("data") == options.data and any(before.get(name) != now[name] for name in split)


def load_as_trained(options: DataOptions, folder: RunFolder, trained: Mapping[str, Any]) -> Batches:
    """Images for the weights of a folder: of their size and channels, and normalised as in their training.

    Args:
        trained: The options of the model.
    """
    device = choose_device(options.device)
    batches = load_batches(options, UNTRAINED, World(), device, trained.get("img_size"), trained.get("in_chans"))
    normalize_as(batches, folder)
    return batches


def normalize_as(batches: BatchSource, folder: RunFolder) -> None:
    """Normalises images as the folder's weights saw them in training, whatever mean and deviation this data has."""
    for name, values in folder.facts("mean", "std").items():
        setattr(batches, name, for_channels(values, batches.in_chans))


def normalize_as_pretrained(batches: BatchSource, facts: WeightFacts) -> None:
    """Normalises images as the pretrained weights saw them, where facts say how and the channels are the same."""
    if facts.mean and facts.std and len(facts.mean) == len(facts.std) == batches.in_chans:
        batches.mean, batches.std = facts.mean, facts.std
