"""A model as a folder: weights as safetensors, and the arch and options that rebuild it, for us and for timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nasformer
from nasformer.errors import UserError
from nasformer.export.timm_config import TIMM_KEYS, input_shape, timm_config
from nasformer.families import list_spaces
from nasformer.families.backbone import Backbone
from nasformer.files import read_json, read_tensors, save_tensors, write_json
from nasformer.layers.grid import both_sides
from nasformer.space import Arch
from nasformer.supernet.storage import retupled

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save_model(model: Backbone, folder: str | Path, **facts: Any) -> Path:
    """Writes a model's weights and what rebuilds it, with any facts about it (accuracy, recipe ...)."""
    folder = Path(folder)
    save_tensors(folder / WEIGHTS, model.state_dict())
    config = {"family": model.family, "arch": model.arch.to_dict(), "options": model.options, **facts}
    write_json(folder / CONFIG, {**config, "nasformer": nasformer.__version__, **timm_config(model, facts)})
    return folder


def facts_in(folder: str | Path) -> dict[str, Any]:
    """The facts that a model was saved with."""
    config = read_json(Path(folder) / CONFIG)
    ours = ("family", "arch", "options", "nasformer", *TIMM_KEYS)
    return {name: value for name, value in config.items() if name not in ours}


def load_model(
    folder: str | Path, *, img_size: int | tuple[int, int] | None = None, num_classes: int | None = None
) -> Backbone:
    """The model that `save_model` or `nasformer extract` wrote, ready for evaluation.

    Args:
        img_size: Another image size: absolute positions are resampled.
        num_classes: Another number of classes: the classifier is fresh then, and to be trained.
    """
    model: Any = saved_model(Path(folder))
    if img_size is not None and input_shape(model)[1:] != both_sides(img_size):
        model.set_input_size(img_size)
    if num_classes is not None and num_classes != model.num_classes:
        model.reset_classifier(num_classes)
    return model


def saved_model(folder: Path) -> Backbone:
    if not folder.is_dir():
        raise UserError(f"no model folder at {folder}; `nasformer extract` makes one")
    config = read_json(folder / CONFIG)
    families = {space.model.family: space.model for space in list_spaces().values()}
    if config.get("family") not in families:
        raise UserError(f"{folder / CONFIG} names the family {config.get('family')!r}; known: {', '.join(families)}")
    try:
        options = retupled(config["options"])
        model = families[config["family"]](Arch.from_dict(config["arch"]), **options)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / CONFIG} is damaged ({error}); extract the model again") from None
    state = read_tensors(folder / WEIGHTS)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{folder / WEIGHTS} does not fit its config ({str(error).splitlines()[-1].strip()})") from None
    return model.eval()
