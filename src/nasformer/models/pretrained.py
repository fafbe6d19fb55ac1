"""Spaces of what can be cut out of a pretrained net, from what users type after `--from`.

timm:NAME, timm:NAME:FILE    a model of timm
FOLDER                       a run, a supernet, or a model that this library trained
SPACE:FILE                   a supernet of that space in a file of weights, such as AutoFormer's published ones
NET[embed_dim=160,192]       any of them with other choices than the usual ones; brackets follow NAME or FOLDER

`supernet/storage.py` reads the weights.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasformer.errors import UserError
from nasformer.models.base import Backbone, options_from_json
from nasformer.models.dense import dense_space
from nasformer.models.registry import OF_PLUGINS, get_space, list_families, list_spaces
from nasformer.models.space import Space, parse_choices, parse_expression
from nasformer.models.storage import CONFIG, SUPERNET_CONFIG, load_model
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.space.nodes import Struct
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json

TRAIN_AGAIN = "restore it or train again"
SUPPORTED = (
    "supported are timm's plain ViTs (vit_*, deit_*, deit3_*, DINOv2, CLIP and SigLIP image towers), Swin (swin_*, "
    "swin_s3_*) and PiT (pit_*)"
)
"""Models of timm that can be cut, in words for errors."""


def source_space(source: str) -> Space:
    """The space of what can be cut out of a source."""
    net, choices = split_source(source)
    return with_source_choices(net_space(net), choices)


def source_arch(source: str) -> Arch:
    """The arch of the net itself; where its blocks differ, it is smaller than the largest member of its space."""
    net, _ = split_source(source)
    in_folder = not net.startswith("timm:") and not is_file_of_space(net) and find_supernet(Path(net)) is None
    return load_model(source_model_folder(net)).arch if in_folder else net_space(net).root.largest()


def net_space(net: str) -> Space:
    """The space of a net whose name has no choices in brackets."""
    if (space := net.partition(":")[0]) != "timm" and is_file_of_space(net):
        return get_space(space)
    if net.startswith("timm:"):
        return get_space(":".join(net.split(":")[:2]))
    if (folder := find_supernet(Path(net))) is not None:
        return read_space(folder / SUPERNET_CONFIG)
    return space_of_model(load_model(source_model_folder(net)))


def is_file_of_space(net: str) -> bool:
    """Whether a source is SPACE:FILE, the weights of a supernet in a file."""
    space, _, file = net.partition(":")
    return bool(file) and space in list_spaces()


def split_source(source: str) -> tuple[str, dict[str, list[str]]]:
    """A source without its brackets, and the choices in them.

    >>> split_source("timm:deit_tiny_patch16_224[embed_dim=160,192]:weights.pth")
    ('timm:deit_tiny_patch16_224:weights.pth', {'embed_dim': ['160', '192']})
    """
    match = re.fullmatch(r"([^\[\]]*)(\[[^\[\]]*\])([^\[\]]*)", source)
    if not match:
        return source, {}
    return match[1] + match[3], parse_expression(f"net{match[2]}")[1]


def with_source_choices(space: Space, choices: Mapping[str, Sequence[str]]) -> Space:
    """The space with other values for some dimensions; the net itself must stay its largest member."""
    if not choices:
        return space
    root = space.root_with(choices)
    changed = space.with_choices(parse_choices(root, choices))
    if changed.root.largest() != root.largest():
        largest = {name: choice.values[-1] for name, choice in dimensions(root).items() if name in choices}
        ends = " and ".join(f"{name}={value}" for name, value in largest.items())
        raise UserError(f"--from: the net itself must be among the choices, so they end with {ends}")
    return changed


@dataclass(frozen=True)
class SupernetConfig:
    """The space of a supernet, and the options of its model."""

    space: str
    options: dict[str, Any]
    task: str = "classify"


def read_space(path: Path) -> Space:
    """The space that the config of a supernet names."""
    config = from_json(SupernetConfig, read_json(path), path, TRAIN_AGAIN)
    options = options_from_json(config.options)
    try:
        if config.task != "classify":
            return dense_space(get_space(config.space), config.task).with_options(**options)
        return get_space(config.space, **options)
    except UserError as error:
        if str(error).startswith("unknown space"):
            raise UserError(f"{path}: {error}; {OF_PLUGINS}") from None
        raise UserError(f"{path} is damaged ({error}); {TRAIN_AGAIN}") from None


def find_supernet(path: Path) -> Path | None:
    """The folder of a supernet, which may be in a run folder; None where there is none."""
    return next((folder for folder in (path / "supernet", path) if (folder / SUPERNET_CONFIG).exists()), None)


def is_supernet(source: str) -> bool:
    """Whether a source is a trained supernet, and not a net that becomes one."""
    net, _ = split_source(source)
    return is_file_of_space(net) or (not net.startswith("timm:") and find_supernet(Path(net)) is not None)


def source_model_folder(source: str) -> Path:
    """The folder of a model, which may be in a run folder."""
    for folder in (Path(source) / "model", Path(source)):
        if (folder / CONFIG).exists():
            return folder
    raise UserError(
        f"--from {source}: expected timm:NAME, timm:NAME:FILE, or the folder of a run or a model (or "
        "SPACE:FILE, the weights of a supernet)"
    )


def space_of_model(model: Backbone) -> Space:
    """The space of what can be cut out of a model of ours."""
    if (cuts := model.cuts()) is None:
        raise UserError(
            f"--from: a model folder of {model.family} cannot be cut, one of vit can; start from the run whose "
            f"supernet the model comes from, or train it as it is: nasformer finetune. Of timm, {SUPPORTED}"
        )
    name, root = cuts
    base = get_space(name)
    return with_values(dense_space(base, model.task) if model.task != "classify" else base, root, model.options)


def with_values(base: Space, root: Struct, options: Mapping[str, Any]) -> Space:
    """A space of a base's form with other values, under the expression that rebuilds it."""
    choices = {name: choice.values for name, choice in dimensions(root).items()}
    return base.with_choices(choices).with_options(**options)


# Models of timm as spaces.


@lru_cache
def timm_space(name: str) -> Space:
    """The space `timm:NAME` of what can be cut out of a model of timm, with all its classes and its image size.

    >>> timm_space("deit_tiny_patch16_224").cost(timm_space("deit_tiny_patch16_224").root.largest()).params
    5717416
    """
    import timm  # late: it takes longer to import than torch

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), 3, 0.5)
        raise UserError(f"timm has no model {name!r}; {'near it: ' + ', '.join(close) if close else SUPPORTED}")
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that initial values have no effect on the meta device
        model = timm.create_model(name)
    family, root, options = declare_timm(model, name)
    return Space(f"timm:{name}", family, root, options, {}, f"what can be cut out of timm's {name}")


def declare_timm(model: nn.Module, name: str) -> tuple[type[Backbone], Struct, dict[str, Any]]:
    """What can be cut out of a model of timm: its family, the declaration, and our options for it."""
    for family in list_families().values():
        declared = family.space_of(model)
        if declared is not None:
            return family, *declared
    raise UserError(f"timm's {name} is a {type(model).__name__}, from which we can cut nothing; {SUPPORTED}")


def space_of(model: nn.Module) -> Space:
    """The space of what can be cut out of a model that timm made, perhaps with other sizes than its name says.

    Its name rebuilds it: that of the model, with an expression for what differs.
    """
    import timm

    config: Any = getattr(model, "pretrained_cfg", None) or {}
    name = config.get("architecture") or type(model).__name__
    family, root, options = declare_timm(model, name)
    named = [timm_space(name)] if timm.is_model(name) else []
    bases = [space for space in (*named, *list_spaces().values()) if space.model is family]
    return with_values(bases[0], root, options)
