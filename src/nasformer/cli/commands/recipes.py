"""Commands around the command line itself: recipes and completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from nasformer.cli.tables import print_json


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
    from nasformer.cli.recipes import find_recipe, list_recipes

    if options.name:
        return print(find_recipe(options.name).read_text(encoding="utf-8"), end="")
    entries = list_recipes()
    if as_json:
        return print_json(entries)
    for name, about in entries.items():
        print(f"{name:28} {about}")
    return None


def completion(options: CompletionCommand, as_json: bool) -> None:
    from nasformer.cli.completion import completion_script

    print(completion_script(options.shell))
