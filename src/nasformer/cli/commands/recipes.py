"""Commands around the command line itself: recipes and completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from nasformer.cli.main import COMMANDS, find_command, make_parser
from nasformer.cli.parser import COMMON_FLAGS, columns, find_recipe, list_recipes
from nasformer.cli.tables import print_json

# Shell completion: commands, and the options of each, as a script for bash, zsh or fish.

BASH = """_nasformer() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; fi
  if [[ "$current" == -* || "$COMP_CWORD" -eq 1 ]]; then
    COMPREPLY=( $(compgen -W "$words" -- "$current") )
  else
    COMPREPLY=( $(compgen -f -- "$current") )
  fi
}}
complete -o filenames -F _nasformer nasformer"""


def completion_script(shell: str) -> str:
    options = {name: [*command_flags(name), *COMMON_FLAGS.values()] for name in COMMANDS}
    if shell == "fish":
        return "\n".join(fish_lines(options))
    cases = "\n".join(f'    {name}) words="{" ".join(flags)}" ;;' for name, flags in options.items())
    script = BASH.format(cases=cases, commands=" ".join(COMMANDS))
    return script if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def command_flags(name: str) -> list[str]:
    parser = make_parser(find_command(name))
    return [option.flag for option in parser.options.values() if option.name not in parser.positional]


def fish_lines(options: dict[str, list[str]]) -> list[str]:
    lines = [f"complete -c nasformer -n __fish_use_subcommand -a '{' '.join(options)}'"]
    for name, flags in options.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c nasformer {condition} -l {flag[2:]}" for flag in flags]
    return lines


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
    if options.name:
        return print(find_recipe(options.name).read_text(encoding="utf-8"), end="")
    entries = list_recipes()
    if as_json:
        return print_json(entries)
    return print("\n".join(line for name, about in entries.items() for line in columns(name, about)))


def completion(options: CompletionCommand, as_json: bool) -> None:
    print(completion_script(options.shell))
