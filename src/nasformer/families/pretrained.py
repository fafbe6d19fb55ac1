"""What can be cut out of a pretrained net, by what users type behind `--from`; its weights are read elsewhere.

timm:NAME, timm:NAME:FILE    a model of timm
FOLDER                       a run, a supernet, or a model that this library trained
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.families.base import Backbone, options_from_json
from nasformer.families.registry import OF_PLUGINS, get_space
from nasformer.families.space import Space
from nasformer.families.storage import CONFIG, SUPERNET_CONFIG, load_model
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json

TRAIN_AGAIN = "restore it or train again"


def source_space(source: str) -> Space:
    """The space of what can be cut out of a source."""
    if source.startswith("timm:"):
        return get_space(":".join(source.split(":")[:2]))
    if (folder := supernet_folder(Path(source))) is not None:
        return read_space(folder / SUPERNET_CONFIG)
    return space_of_model(load_model(model_folder(source)))


@dataclass(frozen=True)
class SupernetConfig:
    """The space of a supernet, and the options of its model."""

    space: str
    options: dict[str, Any]


def read_space(path: Path) -> Space:
    """The space that the config of a supernet names."""
    config = from_json(SupernetConfig, read_json(path), path, TRAIN_AGAIN)
    try:
        return get_space(config.space, **options_from_json(config.options))
    except UserError as error:
        if str(error).startswith("unknown space"):
            raise UserError(f"{path}: {error}; {OF_PLUGINS}") from None
        raise UserError(f"{path} is damaged ({error}); {TRAIN_AGAIN}") from None


def supernet_folder(path: Path) -> Path | None:
    """The folder of a supernet, which may be in a run folder; None where there is none."""
    return next((folder for folder in (path / "supernet", path) if (folder / SUPERNET_CONFIG).exists()), None)


def model_folder(source: str) -> Path:
    """The folder of a model, which may be in a run folder."""
    for folder in (Path(source) / "model", Path(source)):
        if (folder / CONFIG).exists():
            return folder
    raise UserError(f"--from {source}: expected timm:NAME, timm:NAME:FILE, or the folder of a run or a model")


def space_of_model(model: Backbone) -> Space:
    """What can be cut out of a model of ours: of a ViT whose blocks are all alike."""
    from nasformer.families.vit import ViT, declare_cuts

    blocks: set[Arch] = set(model.arch.blocks) if isinstance(model, ViT) else set()
    if len(blocks) != 1:
        raise UserError(
            "--from: only a ViT whose blocks are all alike can be cut; start from the run whose supernet the model "
            "comes from, from a model of timm, or train it as it is: nasformer finetune"
        )
    (block,) = blocks
    root = declare_cuts(model.arch.embed_dim, block.num_heads, block.hidden_dim, len(model.arch.blocks))
    return with_values(get_space("vit-cuts"), root, model.options)


def with_values(base: Space, root: Any, options: Mapping[str, Any]) -> Space:
    """A space of a base's form with other values, under the expression that rebuilds it."""
    choices = {name: choice.values for name, choice in dimensions(root).items()}
    return base.with_choices(choices).with_options(**options)
