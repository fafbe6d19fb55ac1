"""Plugins: modules with a user's own families, spaces, proxies and strategies; and our version.

A plugin is a module that registers what it has when it is imported (`nasformer.register_space` and so on). It is named
by `--import MODULE`, or by an entry point of its package in the group `nasformer.plugins`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from nasformer.errors import UserError

try:
    __version__ = version("nasformer")
except PackageNotFoundError:  # the sources alone, on a machine where nothing can be installed
    __version__ = "0+unknown"


GROUP = "nasformer.plugins"
_loaded: set[str] = set()


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Imports the modules that are named and those of installed packages, each once."""
    for name in modules:
        _load(name, f"--import {name}")
    for point in entry_points(group=GROUP):
        _load(
            point.value.partition(":")[0], f"the plugin {point.name} ({point.dist.name if point.dist else point.value})"
        )


def loaded_plugins() -> list[str]:
    """The names of the imported modules, for child processes that need the same."""
    return sorted(_loaded)


def _load(name: str, origin: str) -> None:
    if name in _loaded:
        return
    folder = str(Path.cwd())
    if folder not in sys.path:  # as `python -m` does: a file in the current folder is a module
        sys.path.insert(0, folder)
    try:
        import_module(name.removesuffix(".py"))
    except UserError:
        raise
    except Exception as error:
        advice = "name one module at a time: --import A --import B" if "," in name else "fix it or leave it out"
        raise UserError(f"{origin} cannot be imported ({type(error).__name__}: {error}); {advice}") from error
    _loaded.add(name)
