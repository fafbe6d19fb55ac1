"""Commands about spaces (spaces, cost, sample), recipes and shell completion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from nasformer.cli.main import COMMANDS, find_command, make_parser, print_json
from nasformer.cli.parser import COMMON_FLAGS, columns, find_recipe, list_recipes
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.search.options import BudgetOptions
from nasformer.tasks.options import TaskOptions
from nasformer.utils.units import OptionGroup, check_range, check_seed, format_quantity

if TYPE_CHECKING:
    from nasformer.models.space import Space


@dataclass
class SpacesCommand(SpaceOptions):
    """List the spaces, or describe one."""

    positional = ("name",)
    main = ("img_size", "patch_size", "num_classes")
    example = "nasformer spaces autoformer-tiny"

    name: str | None = None
    """the space to describe, perhaps with choices of your own: 'NAME[dimension=value,value;...]'"""


@dataclass
class CostCommand(TaskOptions, SpaceOptions):
    """Parameters and multiply-accumulates of an architecture, in closed form; with --task, including its head."""

    main = ("space", "arch", "img_size", "patch_size", "num_classes")
    example = "nasformer cost --space autoformer-tiny-mlp3 --arch autoformer-t"

    arch: str = ""
    """a JSON file, inline JSON, a preset's name, largest or smallest"""


@dataclass
class SampleCommand(TaskOptions, BudgetOptions, SpaceOptions):
    """Random architectures within a budget, one JSON a line."""

    main = ("space", "n", "min_params", "max_params", "max_macs", "max_latency", "seed")
    example = "nasformer sample --space autoformer-tiny -n 5 --max-params 6M"

    n: int = 1
    """how many"""
    seed: int = 0
    """seed of everything random"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "n", 1)
        check_seed(self)


def spaces(options: SpacesCommand, as_json: bool) -> None:
    if options.name is not None:
        options = replace(options, space=options.name)
    if options.space is not None or options.from_:
        return describe_space(options, as_json)
    from nasformer.models.registry import catalogue

    entries = catalogue()
    if as_json:
        return print_json([entry.name for entry in entries])
    for entry in entries:
        print(f"{entry.name:22} {float(entry.cardinality):8.2g} archs   {entry.about}")
    return None


def describe_space(options: SpacesCommand, as_json: bool) -> None:
    from nasformer.space.dimensions import format_values

    space = options.chosen_space()
    description = describe(space)
    if as_json:
        return print_json(description)
    print(f"{space.name}: {space.about}")
    print(f"  archs     {space.root.cardinality:,}")
    for end in ("smallest", "largest"):
        cost = description[end]
        print(f"  {end:9} {format_quantity(cost['params'])} parameters, {format_quantity(cost['macs'])} MACs")
    print(f"  choices   {space.root!r}")
    print(f"  dimensions, for choices of your own: {example_expression(space, bool(options.from_))}")
    for name, values in description["dimensions"].items():
        print(f"    {name:{max(map(len, description['dimensions']))}}  {format_values(values)}")
    for name in space.model.optional_dimensions(**space.options).keys() - description["dimensions"].keys():
        print(f"  {name} can be a dimension, too")
    if space.presets:
        print(f"  presets   {', '.join(space.presets)}")
    return None


def describe(space: Space) -> dict[str, Any]:
    from nasformer.space.dimensions import dimensions

    ends = {"smallest": space.root.smallest(), "largest": space.root.largest()}
    return {
        "name": space.name,
        "about": space.about,
        "cardinality": str(space.root.cardinality),
        "dimensions": {name: list(choice.values) for name, choice in dimensions(space.root).items()},
        **{name: {"arch": arch.to_dict(), **space.costs(arch)} for name, arch in ends.items()},
        "options": dict(space.options),
        "presets": {name: arch.to_dict() for name, arch in space.presets.items()},
    }


def example_expression(space: Space, pretrained: bool) -> str:
    """An example of a space expression: other values for the first dimension that has several."""
    from nasformer.models.space import expression
    from nasformer.space.dimensions import dimensions

    choices = dimensions(space.root).items()
    name, choice = next((item for item in choices if len(item[1].values) > 1), next(iter(choices)))
    flag, values = ("--from", choice.values[-2:]) if pretrained else ("--space", choice.values[:2])
    return f"{flag} '{expression((space.base or space).name, {name: values})}'"


def cost(options: CostCommand, as_json: bool) -> None:
    from nasformer.tasks.registry import space_for

    space = space_for(options.chosen_space(), options)
    if not options.arch:
        raise UserError("name an architecture with --arch: a JSON file, inline JSON or a preset's name")
    costs = space.costs(space.arch(options.arch))
    if as_json:
        return print_json(costs)
    print(f"{costs['params']:,} parameters, {costs['macs']:,} MACs (multiply-accumulates) per image")
    if costs["position_macs"]:
        print(f"relative positions: {costs['position_macs']:,} MACs more ({costs['position_macs_literal']:,} unfused)")
    return None


def sample(options: SampleCommand, as_json: bool) -> None:
    import random

    from nasformer.latency.search import with_profile
    from nasformer.space.budget import check_satisfiable, sample_feasible
    from nasformer.tasks.registry import space_for

    space = space_for(options.chosen_space(), options)
    options = options.with_shares(options.source_costs(space))
    windows = options.budget().windows()
    space, _ = with_profile(space, options)
    check_satisfiable(space.root, space.costs, windows)
    rng = random.Random(options.seed)
    for _ in range(options.n):
        print(sample_feasible(space.root, rng, space.costs, windows).to_json())


# Commands around the command line itself: recipes and completion.


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
    options = {name: [*command_flags(name), *COMMON_FLAGS] for name in COMMANDS}
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
class RecipesCommand(OptionGroup):
    """List the recipes that come with nasformer, or print one."""

    positional = ("name",)
    example = "nasformer recipes photos-small"

    name: str = ""
    """the recipe to print; `--config NAME` uses it from anywhere"""


@dataclass
class CompletionCommand(OptionGroup):
    """Print a script for completion in your shell."""

    positional = ("shell",)
    example = 'eval "$(nasformer completion bash)"'

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
