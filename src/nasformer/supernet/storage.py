"""Supernets on disk: weights as safetensors, and a config that says which space they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Size, Tensor

from nasformer.errors import UserError
from nasformer.families.autoformer import from_official, is_official
from nasformer.families.base import options_from_json
from nasformer.families.registry import get_space
from nasformer.families.sharing import rule_for
from nasformer.families.space import Space
from nasformer.supernet.carry import copy_slice
from nasformer.supernet.supernet import Supernet
from nasformer.utils.files import read_json, read_tensors, save_tensors, write_json

WEIGHTS, CONFIG = "supernet.safetensors", "supernet.json"


def save_supernet(supernet: Supernet, folder: Path, **facts: Any) -> None:
    """Writes the weights and their space, with any facts about them, such as what they were trained on."""
    save_tensors(folder / WEIGHTS, supernet.weights.state_dict())
    write_json(folder / CONFIG, {"space": supernet.space.name, "options": dict(supernet.space.options), **facts})


def load_supernet(path: str | Path, expected: Space | None = None) -> Supernet:
    """A supernet from a folder of ours, or from a file of weights (ours or AutoFormer's published layout).

    Args:
        path: The folder, or a .safetensors or .pth file.
        expected: The space it should be of; needed for a file, which does not say.
    """
    path = Path(path)
    if not path.is_dir():
        return load_file(path, expected)
    config = read_json(path / CONFIG)
    if not isinstance(config.get("space"), str) or not isinstance(config.get("options"), dict):
        raise UserError(f"{path / CONFIG} is damaged (no space and options); restore it or train again")
    space = get_space(config["space"], **options_from_json(config["options"]))
    if expected is not None and expected.name != space.name:
        raise UserError(
            f"{path} holds a supernet of {space.name}, not of {expected.name}; ask for --space {quote(space.name)}"
        )
    supernet = Supernet(space)
    load_weights(supernet, read_tensors(path / WEIGHTS), path)
    return supernet


def load_file(path: Path, space: Space | None) -> Supernet:
    """A supernet from a file of weights alone."""
    if not path.exists():
        raise UserError(f"no supernet at {path}; train one first, or name a folder or a file of weights")
    if space is None:
        raise UserError(f"{path} does not say which space it belongs to; name it with --space")
    state = read_tensors(path)
    if is_official(state):
        space, state = space.with_options(qkv_bias_sharing="contiguous"), from_official(state)
    supernet = Supernet(space)
    load_weights(supernet, state, path)
    return supernet


@torch.no_grad()
def load_weights(supernet: Supernet, state: Mapping[str, Tensor], source: Path) -> None:
    """Copies weights in. Where the space varies a dimension, wider weights are cut by the sharing rules."""
    smallest = {name: weight.shape for name, weight in supernet.slices(supernet.space.root.smallest()).items()}
    for name, weight in supernet.shared().items():
        if name not in state:
            raise UserError(f"{source} has no weight {name}: it is not a supernet of {supernet.space.name}")
        if not fits(state[name].shape, weight.shape, smallest.get(name)):
            raise UserError(
                f"{source}: {name} is {list(state[name].shape)}, {supernet.space.name} needs {list(weight.shape)}; "
                "it is of another space or of other model options (img_size, num_classes ...)"
            )
        copy_slice(state[name], weight, rule_for(name, supernet.rules), weight.shape)


def fits(given: Size, needed: Size, smallest: Size | None) -> bool:
    """Whether a weight can be cut to the needed shape: wider only where small members are narrower."""
    if len(given) != len(needed):
        return False
    elastic = [a < b for a, b in zip(smallest or [0] * len(needed), needed, strict=True)]
    return all(g == n or (g > n and varies) for g, n, varies in zip(given, needed, elastic, strict=True))
