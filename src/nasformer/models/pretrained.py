"""What can be cut out of a pretrained net, by what users type behind `--from`; its weights are read elsewhere.

timm:NAME, timm:NAME:FILE    a model of timm
FOLDER                       a run, a supernet, or a model that this library trained
SPACE:FILE                   a supernet of that space in a file of weights, such as AutoFormer's published ones
NET[embed_dim=160,192]       any of them with other choices than are usual; brackets stand behind NAME or FOLDER
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.models.base import SUPPORTED, Backbone, options_from_json
from nasformer.models.dense import dense_space
from nasformer.models.registry import OF_PLUGINS, get_space, list_spaces
from nasformer.models.space import Space, parse_choices, parse_expression
from nasformer.models.storage import CONFIG, SUPERNET_CONFIG, load_model
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json

TRAIN_AGAIN = "restore it or train again"


def source_space(source: str) -> Space:
    """The space of what can be cut out of a source."""
    net, choices = split_source(source)
    return with_source_choices(net_space(net), choices)


def source_arch(source: str) -> Arch:
    """What the net itself is; where its blocks differ, it is smaller than the largest member of its space."""
    net, _ = split_source(source)
    in_folder = not net.startswith("timm:") and not is_file_of_space(net) and supernet_folder(Path(net)) is None
    return load_model(model_folder(net)).arch if in_folder else net_space(net).root.largest()


def net_space(net: str) -> Space:
    """The space of a net whose name has no choices in brackets."""
    if (space := net.partition(":")[0]) != "timm" and is_file_of_space(net):
        return get_space(space)
    if net.startswith("timm:"):
        return get_space(":".join(net.split(":")[:2]))
    if (folder := supernet_folder(Path(net))) is not None:
        return read_space(folder / SUPERNET_CONFIG)
    return space_of_model(load_model(model_folder(net)))


def is_file_of_space(net: str) -> bool:
    """Whether a source is SPACE:FILE, the weights of a supernet in a file."""
    space, _, file = net.partition(":")
    return bool(file) and space in list_spaces()


def split_source(source: str) -> tuple[str, dict[str, list[str]]]:
    """A source without its brackets, and the choices in them.

    >>> split_source("timm:deit_tiny_patch16_224[embed_dim=160,192]:weights.pth")
    ('timm:deit_tiny_patch16_224:weights.pth', {'embed_dim': ['160', '192']})
    """
    found = re.fullmatch(r"([^\[\]]*)(\[[^\[\]]*\])([^\[\]]*)", source)
    if not found:
        return source, {}
    return found[1] + found[3], parse_expression(f"net{found[2]}")[1]


def with_source_choices(space: Space, choices: Mapping[str, Sequence[str]]) -> Space:
    """The space with other values for some dimensions; the net itself must stay its largest member."""
    if not choices:
        return space
    root = space.root_with(choices)
    changed = space.with_choices(parse_choices(root, choices))
    if changed.root.largest() != root.largest():
        largest = {name: choice.values[-1] for name, choice in dimensions(root).items() if name in choices}
        wanted = " and ".join(f"{name}={value}" for name, value in largest.items())
        raise UserError(f"--from: the net itself must be among the choices, so they end with {wanted}")
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


def supernet_folder(path: Path) -> Path | None:
    """The folder of a supernet, which may be in a run folder; None where there is none."""
    return next((folder for folder in (path / "supernet", path) if (folder / SUPERNET_CONFIG).exists()), None)


def model_folder(source: str) -> Path:
    """The folder of a model, which may be in a run folder."""
    for folder in (Path(source) / "model", Path(source)):
        if (folder / CONFIG).exists():
            return folder
    raise UserError(
        f"--from {source}: expected timm:NAME, timm:NAME:FILE, or the folder of a run or a model (or "
        "SPACE:FILE, the weights of a supernet)"
    )


def space_of_model(model: Backbone) -> Space:
    """What can be cut out of a model of ours."""
    if (cuts := model.cuts()) is None:
        raise UserError(
            f"--from: a model folder of {model.family} cannot be cut, one of vit can; start from the run whose "
            f"supernet the model comes from, or train it as it is: nasformer finetune. Of timm, {SUPPORTED}"
        )
    name, root = cuts
    base = get_space(name)
    return with_values(dense_space(base, model.task) if model.task != "classify" else base, root, model.options)


def with_values(base: Space, root: Any, options: Mapping[str, Any]) -> Space:
    """A space of a base's form with other values, under the expression that rebuilds it."""
    choices = {name: choice.values for name, choice in dimensions(root).items()}
    return base.with_choices(choices).with_options(**options)
