"""Retraining: one architecture from scratch, as an ordinary model, in a run folder of its own.

The folder is that of `pipeline.py` without supernet and search; its winner is the model that was trained. What
`finetuning.py` does alike, but from weights, is here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from nasformer.beside import train_baselines
from nasformer.config import FinetuneCommand, RetrainCommand
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
from nasformer.supernet.storage import retupled
from nasformer.train.evaluate import evaluate
from nasformer.train.models import train_model

Single = TypeVar("Single", RetrainCommand, FinetuneCommand)


def settled(command: RetrainCommand) -> RetrainCommand:
    """The command, in which what it leaves open is as in the search that it names."""
    check_out(command)
    if not command.run:
        return command
    run = Path(command.run)
    space = searched_space(run, command.space)
    return completed(command, space, searched_options(run), command.arch or winner(run).to_json())


def completed(command: Single, space: str, options: Mapping[str, Any], arch: str) -> Single:
    """The command with a space, options and an arch; but channels and classes are those of the data to train on now."""
    known = {name: value for name, value in options.items() if name not in ("num_classes", "in_chans")}
    known |= command.model_options()
    named = {name: known.pop(name, None) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
    return replace(command, space=space, arch=arch, model=known, **named)


def check_out(command: RetrainCommand | FinetuneCommand) -> None:
    """The result and the model of a search, or those to start from, must not be overwritten."""
    out = Path(command.out)
    same = bool(command.run and command.out) and out.resolve() == Path(str(command.run)).resolve()
    if same or (out / "search").exists() or (out / "supernet").exists():
        raise UserError(
            f"{out} is the folder of a search or of the weights to start from; train in another --out folder"
        )


def searched_space(run: Path, asked: str | None) -> str:
    found = read_json(run / "config.json").get("space") or asked
    if not found:
        raise UserError(f"{run / 'config.json'} names no space; name it with --space")
    if asked and asked != found:
        raise UserError(f"{run} searched {found}, not {asked}; ask for --space {found}")
    return str(found)


def searched_options(run: Path) -> dict[str, Any]:
    """The model options of a search. One by a proxy leaves no model behind: its options are those asked for."""
    model, config = run / "model" / MODEL_CONFIG, read_json(run / "config.json")
    asked = {name: config.get(name) for name in ("img_size", "patch_size")} | (config.get("model") or {})
    found = read_json(model).get("options", {}) if model.exists() else asked
    return retupled({name: value for name, value in found.items() if value is not None})


def retrain(run: Run, arch: Arch, recipe: Recipe, baseline: str = "") -> dict[str, Any]:
    """Trains the arch in a run folder and writes down what became of it; a finished one is left as it is.

    Args:
        baseline: Models of timm to train alike, such as "timm:resnet18".
    """
    model = fresh_model(run.space, arch, run.config.seed).to(run.device)
    return train_single(run, model, recipe, "retrained", baseline=baseline)


def train_single(
    run: Run, model: Backbone, recipe: Recipe, name: str, weights: str | None = None, baseline: str = ""
) -> dict[str, Any]:
    """Trains a model, from scratch or from the weights that are told apart by this text, and names the result so."""
    settings = {"space": run.space.name, **run.settings, "weights": weights}
    train_model(model, run.batches, recipe, folder=run.folder / "train", seed=run.config.seed, settings=settings)
    references = train_baselines(run, baseline, recipe)
    return summarise(run, model, name, references) if run.world.main else {}


def fresh_model(space: Space, arch: Arch, seed: int) -> Backbone:
    """The model with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return space.build(arch)


def summarise(run: Run, model: Backbone, name: str, references: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"name": name, "arch": model.arch.to_dict(), **run.space.costs(model.arch)}
    splits: list[Split] = ["holdout", "test"] if run.batches.held_out else ["test"]
    for split in splits:
        row[f"{split}_accuracy"] = evaluate(model, run.batches, split, precision=run.recipe.precision)["accuracy"]
    summary = {"space": run.space.name, "data": run.config.data, "winner": row, "references": references}
    run.publish(model, summary)
    return summary
