"""The images of a run: opened for its device and process, and checked against the space and the weights.

Images, space and weights must agree: a space is fitted to its images, weights only see images like those they were
trained on, normalised as then, and a search never sees images that its supernet was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from nasformer.data.decode import for_channels
from nasformer.data.files import USUAL_SIZE, ImageFiles, fits, memory_size
from nasformer.data.images import Data
from nasformer.data.loaders import Batches, BatchSource
from nasformer.data.options import DataOptions
from nasformer.data.sources import open_data, open_files
from nasformer.data.streaming import stream_files
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.models.space import Space
from nasformer.models.storage import WeightFacts
from nasformer.results.folder import RunFolder
from nasformer.runs.options import RunOptions
from nasformer.tasks.options import TaskOptions
from nasformer.tasks.registry import chosen_task, space_for
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.progress import say
from nasformer.utils.schema import to_json

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
    data = open_images(options, world, sizes, bad_list, answers)
    process: dict[str, Any] = {"rank": world.rank, "world": world.size, "device": device, "repeats": recipe.repeats}
    order, uncropped = (recipe.augment, recipe.batch_size, options.seed), recipe.augment.crop == "resized"
    if not isinstance(data, ImageFiles):
        return Batches(data, *order, **process)
    if options.stream is True or (options.stream == "auto" and too_large(data, uncropped, device, world)):
        data.bad.log = bad_list  # from here on each process meets other files
        return Batches(stream_files(data, options.workers, world.size), *order, **process)
    return Batches(data.decode(uncropped), *order, **process)


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
    """Whether the images must be streamed, which is said. The main process decides for all."""
    large = world.agree(not fits(files.memory(uncropped), device, world.size), device)
    if world.main:
        size = f"{len(files.splits)} images of {files.size} px, {memory_size(files.decoded_bytes)} when decoded"
        say(f"{files.name}: {size}: {'too large for memory, streamed from disk' if large else 'kept in memory'}")
    return large


def streamed_before(folder: RunFolder, options: Images) -> Images:
    """The options; where they leave open whether to stream, it is as when the run began, whatever memory is free."""
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
    """A supernet runs on images like those it was trained on, and as the model it was trained as."""
    trained_with = trained.full_options
    for name, value in {**options.model_options(), **image_options(batches)}.items():
        if trained_with[name] != value:
            raise UserError(
                f"the supernet was trained with {name} {trained_with[name]}, not {value}; "
                "ask for the same or train another"
            )


def training_images(options: DataOptions) -> dict[str, Any]:
    """What decides which images are trained on and which are held out."""
    split = {"data": options.data, "holdout": options.holdout, "seed": options.seed}
    return split if options.train_images is None else {**split, "train_images": options.train_images}


def task_settings(options: object) -> dict[str, Any]:
    """What else decides a result where another task than classification is learned."""
    if not isinstance(options, TaskOptions) or options.task == "classify":
        return {}
    return {"task": options.task, options.task: to_json(options.of_task)}


def check_holdout(options: DataOptions, supernet: Path) -> None:
    """Another share or seed would hold out other images, some of which the supernet was trained on."""
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


def normalize_as(batches: BatchSource, folder: RunFolder) -> None:
    """Normalises images as the folder's weights saw them in training, whatever mean and deviation this data has."""
    for name, values in folder.facts("mean", "std").items():
        setattr(batches, name, for_channels(values, batches.in_chans))


def normalize_images(batches: BatchSource, facts: WeightFacts) -> None:
    """Normalises images as the pretrained weights saw them, where facts say how and the channels are the same."""
    if facts.mean and facts.std and len(facts.mean) == len(facts.std) == batches.in_chans:
        batches.mean, batches.std = facts.mean, facts.std
