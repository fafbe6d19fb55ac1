"""Supernets on disk: weights as safetensors, and beside them which space they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from nasformer.errors import UserError
from nasformer.families import Space, get_space
from nasformer.families.autoformer_official import from_official, is_official
from nasformer.families.sharing import rule_for
from nasformer.files import read_json, read_tensors, save_tensors, write_json
from nasformer.supernet.carry import copy_common
from nasformer.supernet.supernet import Supernet

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
    found = get_space(config["space"], **retupled(config["options"]))
    if expected is not None and expected.name != found.name:
        raise UserError(
            f"{path} holds a supernet of {found.name}, not of {expected.name}; ask for --space {quote(found.name)}"
        )
    supernet = Supernet(found)
    fill(supernet, read_tensors(path / WEIGHTS), path)
    return supernet


def load_file(path: Path, expected: Space | None) -> Supernet:
    if not path.exists():
        raise UserError(f"no supernet at {path}; train one first, or name a folder or a file of weights")
    if expected is None:
        raise UserError(f"{path} does not say which space it belongs to; name it with --space")
    state = read_tensors(path)
    if is_official(state):
        expected, state = expected.with_options(qkv_bias_sharing="contiguous"), from_official(state)
    supernet = Supernet(expected)
    fill(supernet, state, path)
    return supernet


@torch.no_grad()
def fill(supernet: Supernet, state: Mapping[str, Tensor], source: Path) -> None:
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
        copy_common(state[name], weight, rule_for(name, supernet.rules), weight.shape)


def fits(given: torch.Size, needed: torch.Size, smallest: torch.Size | None) -> bool:
    """Whether a weight can be cut to the needed shape: wider only where small members are narrower."""
    if len(given) != len(needed):
        return False
    elastic = [a < b for a, b in zip(smallest or [0] * len(needed), needed, strict=True)]
    return all(g == n or (g > n and free) for g, n, free in zip(given, needed, elastic, strict=True))


def retupled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were before JSON turned their tuples into lists, which are not hashable."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
