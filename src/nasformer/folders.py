"""What lies in the folders of runs, supernets and models, and how to use it from another command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nasformer.agreement import image_options
from nasformer.config import DataConfig, EvaluateCommand
from nasformer.data import Batches, BatchSource, StreamingFolder, load_data
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.export import load_model
from nasformer.export.model_folder import CONFIG as MODEL_CONFIG
from nasformer.families import Space
from nasformer.families.backbone import Backbone
from nasformer.files import read_json
from nasformer.recipe import AugmentConfig, Recipe
from nasformer.space import Arch
from nasformer.supernet import Supernet, load_supernet
from nasformer.supernet.statistics import recalibrate
from nasformer.supernet.storage import CONFIG as SUPERNET_CONFIG
from nasformer.train.distributed import World
from nasformer.train.evaluate import evaluate

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
    config: DataConfig, recipe: Recipe, world: World, device: torch.device, img_size: int | None
) -> BatchSource:
    """The data on this process's device; img_size None keeps the images as large as they are."""
    place: dict[str, Any] = {"rank": world.rank, "world": world.size, "device": device, "repeats": recipe.repeats}
    holdout = int(config.holdout) if config.holdout > 1 else config.holdout
    if config.stream:
        return StreamingFolder(
            config.data,
            recipe.augment,
            recipe.batch_size,
            config.seed,
            **place,
            img_size=img_size or 224,
            holdout=holdout,
            workers=config.workers,
        )
    data = load_data(config.data, holdout=holdout, seed=config.seed, img_size=img_size)
    return Batches(data, recipe.augment, recipe.batch_size, config.seed, **place)


def normalisation_of(folder: Path) -> dict[str, Any]:
    """The mean and deviation with which the weights of a run, supernet or model folder were trained."""
    places = (folder / "supernet" / SUPERNET_CONFIG, folder / SUPERNET_CONFIG, folder / MODEL_CONFIG)
    found = next((read_json(place) for place in places if place.exists()), {})
    return {name: found[name] for name in ("mean", "std") if name in found}


def normalise_as(batches: BatchSource, folder: Path) -> None:
    """Images as the weights saw them in training, whatever mean and deviation this data has."""
    for name, values in normalisation_of(folder).items():
        setattr(batches, name, tuple(values))


def model_folder(path: Path) -> Path:
    """The folder of a model, which may be in the run of a retraining."""
    if (path / "model").is_dir():
        return path / "model"
    if (path / "result.json").exists():
        raise UserError(f"{path} has no trained model; make one: nasformer retrain {path} --data DATA --out NEW")
    return path


def evaluate_folder(command: EvaluateCommand) -> dict[str, float]:
    device, path = choose_device(command.device), Path(command.model)
    inherited = bool(command.arch) or (path / "supernet").is_dir()
    if inherited:
        supernet = find_supernet(path)
        model = cut(supernet, supernet.space.arch(command.arch) if command.arch else winner(path))
    else:
        path = model_folder(path)
        model = load_model(path)
    batches = load_batches(command, UNTRAINED, World(), device, model.options["img_size"])
    normalise_as(batches, path)
    for name, value in image_options(batches).items():
        if model.options[name] != value:
            raise UserError(f"{path} is for {name} {model.options[name]}, but {command.data} has {value}")
    model = model.to(device)
    if inherited:
        recalibrate(model, batches)
    return evaluate(model, batches, command.split)
