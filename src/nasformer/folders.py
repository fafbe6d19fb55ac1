"""What lies in the folders of runs, supernets and models, and how to use it from another command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nasformer.agreement import image_options
from nasformer.config_results import EvaluateCommand
from nasformer.data import Batches, BatchSource, ImageFiles, StreamingFolder, find_files, open_data
from nasformer.data.image_files import USUAL_SIZE, memory_size
from nasformer.data.memory import fits
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.export import load_model
from nasformer.export.model_folder import CONFIG as MODEL_CONFIG
from nasformer.families import Space
from nasformer.families.backbone import Backbone
from nasformer.files import read_json
from nasformer.options import DataConfig
from nasformer.progress import say
from nasformer.recipe import AugmentConfig, Recipe
from nasformer.space import Arch
from nasformer.supernet import Supernet, load_supernet
from nasformer.supernet.statistics import recalibrate
from nasformer.supernet.storage import CONFIG as SUPERNET_CONFIG
from nasformer.train.confusion import Confusion, find_confusion
from nasformer.train.distributed import World

BAD_IMAGES = "bad_images.txt"

UNTRAINED = Recipe(augment=AugmentConfig(crop="resized"))
"""For commands that do not train: it augments nothing, and images can be streamed with no other crop."""


def find_supernet(path: Path, space: Space | None = None) -> Supernet:
    """The supernet of a run folder, of a supernet folder, or in a file of weights."""
    return load_supernet(path / "supernet" if (path / "supernet").is_dir() else path, space)


def winner(folder: Path) -> Arch:
    if not (folder / "result.json").exists():
        raise UserError(f"{folder} has no search result yet; search it first, or name an architecture with --arch")
    found = read_json(folder / "result.json").get("winner")
    if not isinstance(found, dict) or not isinstance(found.get("arch"), dict):
        raise UserError(f"{folder / 'result.json'} is damaged (no winner); search again")
    return Arch.from_dict(found["arch"])


def cut(supernet: Supernet, arch: Arch) -> Backbone:
    """The arch out of the supernet. A preset may be of another space and too large for it."""
    try:
        return supernet.extract(arch)
    except (KeyError, RuntimeError):
        raise UserError(f"the arch does not fit into a supernet of {supernet.space.name}: {arch.to_json()}") from None


def load_batches(
    config: DataConfig,
    recipe: Recipe,
    world: World,
    device: torch.device,
    img_size: int | None,
    in_chans: int | None = None,
    usual_size: int = USUAL_SIZE,
    folder: Path | None = None,
) -> BatchSource:
    """The data on this process's device; images that cannot be read are listed in the run's folder.

    With img_size None images keep their size, but get `usual_size` where they differ. With in_chans None they are
    read in colour, unless all are grey.
    """
    bad_list = folder / BAD_IMAGES if folder else None
    if config.download and not world.main:
        world.barrier()  # until the main process has it
    data = (find_files if config.stream is True else open_data)(
        config.data,
        holdout=int(config.holdout) if config.holdout > 1 else config.holdout,
        seed=config.seed,
        img_size=img_size,
        in_chans=in_chans,
        usual_size=usual_size,
        root=config.data_root,
        download=config.download and world.main,
        max_bad=config.max_bad,
        bad_list=bad_list if world.main else None,
        quiet=not world.main,
    )
    if config.download and world.main:
        world.barrier()
    place: dict[str, Any] = {"rank": world.rank, "world": world.size, "device": device, "repeats": recipe.repeats}
    what = (recipe.augment, recipe.batch_size, config.seed)
    if not isinstance(data, ImageFiles):
        return Batches(data, *what, **place)
    if config.stream is True or (config.stream == "auto" and too_large(data, device, world)):
        data.bad.log = bad_list  # from here on each process meets other files
        return StreamingFolder(data, *what, **place, workers=config.workers)
    return Batches(data.decode(), *what, **place)


def too_large(files: ImageFiles, device: torch.device, world: World) -> bool:
    """Whether the images must be streamed, which is said. The main process decides for all."""
    large = world.agree(not fits(files.decoded_bytes, device, world.size), device)
    if world.main:
        told = f"{len(files.splits)} images of {files.size} px, {memory_size(files.decoded_bytes)} when decoded"
        where = "too large for memory, streamed from disk" if large else "kept in memory"
        say(f"{files.name}: {told}: {where}")
    return large


def facts_of(folder: Path, *names: str) -> dict[str, Any]:
    """What is known of the weights of a run, supernet or model folder, such as the names of their classes."""
    places = (folder / "supernet" / SUPERNET_CONFIG, folder / SUPERNET_CONFIG, folder / MODEL_CONFIG)
    found = next((read_json(place) for place in places if place.exists()), {})
    return {name: found[name] for name in names if name in found}


def normalisation_of(folder: Path) -> dict[str, Any]:
    """The mean and deviation with which the weights of a run, supernet or model folder were trained."""
    return facts_of(folder, "mean", "std")


def normalise_as(batches: BatchSource, folder: Path) -> None:
    """Images as the weights saw them in training, whatever mean and deviation this data has."""
    for name, values in normalisation_of(folder).items():
        setattr(batches, name, for_channels(values, batches.in_chans))


def for_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """A mean or deviation for images of other channels than it was measured on: their average in grey, else in turn.

    >>> for_channels([0.25, 0.5, 0.75], 1), for_channels([0.5], 3)
    ((0.5,), (0.5, 0.5, 0.5))
    """
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[place % len(values)] for place in range(channels))


def model_folder(path: Path) -> Path:
    """The folder of a model, which may be in the run of a retraining."""
    if (path / "model").is_dir():
        return path / "model"
    if (path / "result.json").exists():
        raise UserError(f"{path} has no trained model; make one: nasformer retrain {path} --data DATA --out NEW")
    return path


def evaluate_folder(command: EvaluateCommand) -> Confusion:
    device, path = choose_device(command.device), Path(command.model)
    inherited = bool(command.arch) or (path / "supernet").is_dir()
    if inherited:
        supernet = find_supernet(path)
        model = cut(supernet, supernet.space.arch(command.arch) if command.arch else winner(path))
    else:
        path = model_folder(path)
        model = load_model(path)
    sizes = model.options["img_size"], model.options["in_chans"]
    batches = load_batches(command, UNTRAINED, World(), device, *sizes)
    normalise_as(batches, path)
    for name, value in image_options(batches).items():
        if model.options[name] != value:
            raise UserError(f"{path} is for {name} {model.options[name]}, but {command.data} has {value}")
    model = model.to(device)
    if inherited:
        recalibrate(model, batches, command.calibration_images)
    names = facts_of(path, "classes").get("classes") or batches.classes
    return find_confusion(model, batches, command.split, names)
