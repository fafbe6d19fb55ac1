"""Recipes that travel with the package: YAML files of options, by name."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from nasformer.errors import UserError


def recipe_folder() -> Path:
    """The folder of the recipes: inside the package, or beside the sources of a clone."""
    return Path(str(files("nasformer"))) / "recipes"


def list_recipes() -> dict[str, str]:
    """What each recipe is for: the first line of its comment."""
    return {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        for path in sorted(recipe_folder().glob("*.yaml"))
    }


def find_recipe(name: str) -> Path:
    """A config file by its path, or a recipe that comes with nasformer by its name."""
    path = Path(name)
    if not name or path.exists():
        return path
    recipe = recipe_folder() / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.parent.name in ("", "recipes") and recipe.exists():
        return recipe
    close = difflib.get_close_matches(path.stem, list_recipes(), n=1)
    hint = f"did you mean {close[0]}?" if close else "`nasformer recipes` lists those that come with nasformer"
    raise UserError(f"there is no config file {name}; {hint}")
