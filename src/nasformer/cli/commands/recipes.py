"""Commands around the command line itself: recipes and completion."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from nasformer.cli.tables import print_json
from nasformer.errors import UserError

# Recipes that travel with the package: YAML files of options, by name.


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


@dataclass
class RecipesCommand:
    """List the recipes that come with nasformer, or print one."""

    positional: ClassVar = ("name",)
    example: ClassVar = "nasformer recipes photos-small"

    name: str = ""
    """the recipe to print; `--config NAME` uses it from anywhere"""


@dataclass
class CompletionCommand:
    """Print a script for completion in your shell."""

    positional: ClassVar = ("shell",)
    example: ClassVar = 'eval "$(nasformer completion bash)"'

    shell: Literal["bash", "zsh", "fish"] = "bash"
    """bash, zsh or fish"""


def recipes(options: RecipesCommand, as_json: bool) -> None:
    pass

    if options.name:
        return print(find_recipe(options.name).read_text(encoding="utf-8"), end="")
    entries = list_recipes()
    if as_json:
        return print_json(entries)
    for name, about in entries.items():
        print(f"{name:28} {about}")
    return None


def completion(options: CompletionCommand, as_json: bool) -> None:
    from nasformer.cli.parser import completion_script

    print(completion_script(options.shell))
