"""What must agree: a space with its data, and a supernet with the data and the options it was trained with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import nn

from nasformer.data import BatchSource
from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.files import read_json
from nasformer.options import DataConfig
from nasformer.supernet.storage import CONFIG


def image_options(batches: BatchSource) -> dict[str, int]:
    return {"img_size": batches.img_size, "in_chans": batches.in_chans, "num_classes": batches.num_classes}


def fit_to_data(space: Space, batches: BatchSource, config: Any) -> Space:
    """The space for these images: size, channels and classes are the data's."""
    found = image_options(batches)
    for name in ("in_chans", "num_classes"):
        asked = getattr(config, name, None)
        if asked is not None and asked != found[name]:
            raise UserError(f"{config.data} has {name} {found[name]}, not {asked}; leave --{name} out")
    return space.with_options(**found)


def check_options(config: Any, batches: BatchSource, trained: Space) -> None:
    """A supernet runs on images like those it was trained on, and as the model it was trained as."""
    has = trained.full_options
    for name, value in {**config.model_options(), **image_options(batches)}.items():
        if has[name] != value:
            raise UserError(
                f"the supernet was trained with {name} {has[name]}, not {value}; ask for the same or train another"
            )


def training_images(config: DataConfig) -> dict[str, Any]:
    """What decides which images are trained on and which are held out."""
    return {"data": config.data, "holdout": config.holdout, "seed": config.seed}


def check_holdout(config: DataConfig, supernet: Path) -> None:
    """Another share or seed would hold out other images, some of which the supernet was trained on."""
    before = read_json(supernet / CONFIG).get("trained_on", {}) if supernet.is_dir() else {}
    if holds_out_others(config, before):
        raise UserError(
            f"{supernet} was trained with --holdout {before['holdout']} --seed {before['seed']}; "
            "give the same, or the search would see images that it was trained on"
        )


def holds_out_others(config: DataConfig, before: dict[str, Any]) -> bool:
    """Whether weights may have been trained on the images that are held out now."""
    return bool(before) and before["data"] == config.data and before != training_images(config)


def fingerprint(model: nn.Module) -> str:
    """Tells supernets or models apart, so that a journal never mixes the scores of two."""
    digest = hashlib.blake2b(digest_size=8)
    for weight in model.parameters():
        digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
