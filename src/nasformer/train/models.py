"""What one does with a single model: train it from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from nasformer.data import BatchSource, Data
from nasformer.families.backbone import Backbone
from nasformer.recipe import Recipe
from nasformer.supernet.supernet import COMPILE_OPTIONS
from nasformer.train.fit import fit


def train_model(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> float:
    """Trains an ordinary model in place, the whole of it in every step. Returns the last mean loss.

    With a folder it can be killed and started again. Under torchrun every process calls it alike, with the same
    weights. What a recipe says of supernets (`freeze`, `sampler`, `sandwich` ...) has no meaning here.
    """
    recipe = recipe or Recipe()
    if recipe.compile:
        model.compile(options=COMPILE_OPTIONS)  # in place, so that weights keep their names
    arch = model.arch.to_json() if isinstance(model, Backbone) else type(model).__name__
    settings = {"arch": arch, **(settings or {})}
    return fit(model, data, recipe, folder=folder, seed=seed, settings=settings, quiet=quiet)
