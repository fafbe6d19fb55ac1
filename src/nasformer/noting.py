"""RUN/config.json: what the commands were told that worked in a run folder, and the versions that did it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import timm
import torch

import nasformer
from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.files import read_json, write_json
from nasformer.options import BudgetConfig, DataConfig


@contextmanager
def noted_in(folder: Path, command: Any, space: Space) -> Iterator[None]:
    """Notes a command in the folder's config; one that is refused leaves no trace."""
    path = folder / "config.json"
    before = read_json(path) if path.exists() else {}
    write_json(path, noted(before, command, space))
    try:
        yield
    except UserError:
        if before:
            write_json(path, before)
        raise


def noted(config: dict[str, Any], command: Any, space: Space) -> dict[str, Any]:
    """The folder's config with what a command was told; what that leaves open stays as it was."""
    told = {name: value for name, value in asdict(command).items() if name != "out"}
    asked = {name: value for name, value in told.items() if value not in (None, {}) or name not in config}
    versions = {"nasformer": nasformer.__version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "timm": timm.__version__}
    if isinstance(command, BudgetConfig):
        limits = {limit.name: told[limit.name] for limit in fields(BudgetConfig)}
        asked |= limits | {"budget": command.limits()}
    return {**config, **asked, "space": space.name, "versions": versions}


def streamed_before(folder: Path, config: DataConfig) -> bool | Literal["auto"]:
    """Whether to stream: where that is left open, as when the run began, whatever memory is free now."""
    path = folder / "config.json"
    before = read_json(path) if config.stream == "auto" and path.exists() else {}
    same = before.get("data") == config.data and isinstance(before.get("stream"), bool)
    return before["stream"] if same else config.stream
