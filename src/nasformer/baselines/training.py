"""timm models trained by the recipe of a run, on its images and for as many steps: what a search has to beat.

RUN/baselines/NAME/    log.jsonl, checkpoints/ of each; killed, it goes on
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasformer.baselines.timm_models import PREFIX, build_timm, count
from nasformer.data import BatchSource, Split
from nasformer.errors import UserError
from nasformer.recipe import Recipe
from nasformer.train.evaluate import evaluate
from nasformer.train.models import train_model


def timm_costs(names: Sequence[str], shape: dict[str, int]) -> dict[str, dict[str, int]]:
    """Parameters and MACs of timm models for images of this shape; refuses, before anything long, one that is not."""
    found = {}
    for name in names:
        try:
            found[name] = count(build_timm(name, **shape, device="meta"), shape["img_size"], shape["in_chans"])
        except Exception as error:  # sizes that do not divide, windows that do not fit: timm raises a dozen kinds
            reason = " ".join(str(error).split())[:160]
            size = shape["img_size"]
            raise UserError(f"timm:{name} does not take images of {size} px ({reason}); choose another one") from error
    return found


def fresh_timm(name: str, shape: dict[str, int], seed: int, drop_path_rate: float = 0.0) -> nn.Module:
    """A timm model with weights that depend on the seed alone; stochastic depth is part of the recipe."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_timm(name, shape["img_size"], shape["in_chans"], shape["num_classes"], drop_path_rate)


def train_timm(
    name: str,
    batches: BatchSource,
    recipe: Recipe,
    shape: dict[str, int],
    *,
    device: torch.device,
    seed: int = 0,
    folder: Path | None = None,
    settings: dict[str, Any] | None = None,
    drop_path_rate: float = 0.0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Trains a timm model as any of ours and evaluates it: a row of the results."""
    costs = timm_costs([name], shape)[name]
    model = fresh_timm(name, shape, seed, drop_path_rate).to(device)
    known = {**(settings or {}), "arch": f"{PREFIX}{name}"}
    train_model(model, batches, recipe, folder=folder, seed=seed, settings=known, quiet=quiet)
    row: dict[str, Any] = {"name": f"{PREFIX}{name}", "arch": {}, **costs}
    splits: list[Split] = ["holdout", "test"] if batches.held_out else ["test"]
    for split in splits:
        row[f"{split}_accuracy"] = evaluate(model, batches, split, precision=recipe.precision)["accuracy"]
    return row
