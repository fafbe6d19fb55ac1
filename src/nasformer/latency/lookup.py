"""Which profile a budget goes by: the one that was named, or the one in profiles/ that fits; with none, no search."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.cli.options import BudgetConfig
from nasformer.errors import UserError
from nasformer.families.registry import get_space, list_spaces
from nasformer.families.space import Space
from nasformer.latency.profile import Profile

FOLDER = Path("profiles")
PREDICTED = ("latency_ms", "memory_bytes")
UNTIMED = frozenset(
    {"num_classes", "drop_path_rate", "super_depth", "qkv_bias_sharing", "last_gamma", "layer_scale", "drop_rate"}
)
"""Options of models that change the time of a forward pass not at all, or (the number of classes) next to nothing."""


def default_path(space: Space, device: str, backend: str, batch_size: int) -> Path:
    """Where the profile of a space is kept, below the current folder."""
    size = timed_options(space)["img_size"]
    pixels = size if isinstance(size, int) else "x".join(map(str, size))
    return FOLDER / f"{file_name(space)}-{pixels}px-{device}-{backend}-b{batch_size}.json"


def file_name(space: Space) -> str:
    """The name of a space; for an expression, which may be longer than file names can be, its base and a digest."""
    if space.base is None:
        return space.name
    return f"{space.base.name}-{hashlib.sha256(space.name.encode()).hexdigest()[:8]}"


def with_profile(
    space: Space, command: BudgetConfig, objectives: Sequence[str] = (), device: str = "cpu"
) -> tuple[Space, Profile | None]:
    """The space with predicted costs, and their profile, where a command speaks of latency or memory."""
    budget = command.budget()
    asked = {f"-{name}" for name in PREDICTED} & set(objectives)
    if not asked and (budget.max_latency_ms, budget.max_memory_bytes, command.latency_profile) == (None, None, None):
        return space, None
    profile = find_profile(space, command.latency_profile, device)
    if budget.max_memory_bytes is not None and not profile.knows_memory:
        raise UserError(
            f"memory was not measured with backend {profile.setup['backend']}; give --latency-profile a profile of "
            "backend eager, or leave --max-memory out"
        )
    return replace(space, predicted=profile.costs), profile


def find_profile(space: Space, path: str | None, device: str = "cpu") -> Profile:
    """The profile in a file, or the only one in the folder of profiles that fits the space."""
    if path:
        profile = Profile.load(path)
        if why := mismatch(profile, space):
            raise UserError(f"{path} does not fit: {why}; measure this one: {profile_command(space, device)}")
        return profile
    known = {file: Profile.load(file) for file in sorted(FOLDER.glob("*.json"))}
    fitting = {file: profile for file, profile in known.items() if not mismatch(profile, space)}
    if not fitting:
        raise UserError(
            f"nothing was profiled for {space.name} with {in_words(timed_options(space))} (looked in {FOLDER}/); "
            f"measure it first: {profile_command(space, device)}"
        )
    if len(fitting) > 1:
        raise UserError(f"several profiles fit; name one with --latency-profile: {', '.join(map(str, fitting))}")
    return next(iter(fitting.values()))


def mismatch(profile: Profile, space: Space) -> str:
    """What a profile was measured for that this space is not; nothing where it fits."""
    if profile.space != space.name:
        return f"it is of {profile.space}, not of {space.name}"
    wanted, measured = timed_options(space), profile.options
    for name, value in wanted.items():
        if measured.get(name) != value:
            return f"it was measured with {name} {measured.get(name)}, not {value}"
    return ""


def timed_options(space: Space) -> dict[str, Any]:
    """The options of the model that decide how long it runs, as JSON has them."""
    options = space.full_options
    return json.loads(json.dumps({name: value for name, value in options.items() if name not in UNTIMED}))


def profile_command(space: Space, device: str) -> str:
    """What to type, to measure this space as it is."""
    base = (space.base or space).name
    usual = timed_options(get_space(base)) if base in list_spaces() else {}
    changed = {name: value for name, value in timed_options(space).items() if usual.get(name) != value}
    flags = [f"--{name.replace('_', '-')} {changed.pop(name)}" for name in FLAGS if isinstance(changed.get(name), int)]
    rest = [f"--model {shlex.quote(json.dumps(changed))}"] if changed else []
    return " ".join([f"nasformer profile --space {shlex.quote(space.name)}", *flags, *rest, f"--device {device}"])


FLAGS = ("img_size", "patch_size", "in_chans")


def in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {options[name]}" for name in FLAGS if name in options)
