"""Retraining: one architecture from scratch, as an ordinary model, in a run folder of its own.

The folder is that of `pipeline.py` without supernet and search; its winner is the model that was trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nasformer.config import RetrainCommand
from nasformer.data import Split
from nasformer.errors import UserError
from nasformer.export.model_folder import CONFIG as MODEL_CONFIG
from nasformer.families import Space
from nasformer.families.backbone import Backbone
from nasformer.files import read_json
from nasformer.folders import winner
from nasformer.pipeline import Run
from nasformer.recipe import Recipe
from nasformer.space import Arch
from nasformer.supernet.storage import retuple
from nasformer.train.evaluate import evaluate
from nasformer.train.models import train_model


def settled(command: RetrainCommand) -> RetrainCommand:
    """The command, in which what it leaves open is as in the search that it names."""
    check_out(command)
    if not command.run:
        return command
    run = Path(command.run)
    space = searched_space(run, command.space)
    options = searched_options(run) | command.model_options()
    named = {name: options.pop(name, None) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
    arch = command.arch or winner(run).to_json()
    return replace(command, space=space, arch=arch, model=options, **named)


def check_out(command: RetrainCommand) -> None:
    """A search's result and model must not be overwritten."""
    out = Path(command.out)
    same = bool(command.run and command.out) and out.resolve() == Path(str(command.run)).resolve()
    if same or (out / "search").exists() or (out / "supernet").exists():
        raise UserError(f"{out} is the folder of a search; retrain in another --out folder")


def searched_space(run: Path, asked: str | None) -> str:
    found = read_json(run / "config.json").get("space") or asked
    if not found:
        raise UserError(f"{run / 'config.json'} names no space; name it with --space")
    if asked and asked != found:
        raise UserError(f"{run} searched {found}, not {asked}; ask for --space {found}")
    return str(found)


def searched_options(run: Path) -> dict[str, Any]:
    """The model options of a search; but channels and classes are those of the data to train on now.

    A search by a proxy leaves no model behind: its options are those that were asked for.
    """
    model, config = run / "model" / MODEL_CONFIG, read_json(run / "config.json")
    asked = {name: config.get(name) for name in ("img_size", "patch_size")} | (config.get("model") or {})
    found = read_json(model).get("options", {}) if model.exists() else asked
    fresh = ("num_classes", "in_chans")
    return {name: retuple(value) for name, value in found.items() if value is not None and name not in fresh}


def retrain(run: Run, arch: Arch, recipe: Recipe) -> dict[str, Any]:
    """Trains the arch in a run folder and writes down what became of it; a finished one is left as it is."""
    seed, settings = run.config.seed, {"space": run.space.name, **run.settings}
    model = fresh_model(run.space, arch, seed).to(run.device)
    train_model(model, run.batches, recipe, folder=run.folder / "train", seed=seed, settings=settings)
    return summarise(run, model) if run.world.main else {}


def fresh_model(space: Space, arch: Arch, seed: int) -> Backbone:
    """The model with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return space.build(arch)


def summarise(run: Run, model: Backbone) -> dict[str, Any]:
    row = {"name": "retrained", "arch": model.arch.to_dict(), **run.space.costs(model.arch)}
    splits: list[Split] = ["holdout", "test"] if run.batches.held_out else ["test"]
    for split in splits:
        row[f"{split}_accuracy"] = evaluate(model, run.batches, split, precision=run.recipe.precision)["accuracy"]
    summary = {"space": run.space.name, "data": run.config.data, "winner": row, "references": []}
    run.publish(model, summary)
    return summary
