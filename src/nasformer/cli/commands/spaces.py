"""Commands that look at a space without training anything: spaces, cost and sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nasformer.cli.tables import print_json
from nasformer.errors import UserError
from nasformer.families.options import SpaceOptions
from nasformer.search.options import BudgetOptions
from nasformer.utils.units import check_range, check_seed, format_quantity

if TYPE_CHECKING:
    from nasformer.families.space import Space


@dataclass
class SpacesCommand(SpaceOptions):
    """List the spaces, or describe one."""

    positional: ClassVar = ("name",)
    main: ClassVar = ("img_size", "patch_size", "num_classes")
    example: ClassVar = "nasformer spaces autoformer-tiny"

    name: str | None = None
    """the space to describe, perhaps with choices of your own: 'NAME[dimension=value,value;...]'"""


@dataclass
class CostCommand(SpaceOptions):
    """Parameters and multiply-accumulates of an architecture, in closed form."""

    main: ClassVar = ("space", "arch", "img_size", "patch_size", "num_classes")
    example: ClassVar = "nasformer cost --space autoformer-tiny-mlp3 --arch autoformer-t"

    arch: str = ""
    """a JSON file, inline JSON, a preset's name, largest or smallest"""


@dataclass
class SampleCommand(BudgetOptions, SpaceOptions):
    """Random architectures within a budget, one JSON a line."""

    main: ClassVar = ("space", "n", "min_params", "max_params", "max_macs", "max_latency", "seed")
    example: ClassVar = "nasformer sample --space autoformer-tiny -n 5 --max-params 6M"

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
        return describe_space(options, as_json)
    from nasformer.families.catalogue import catalogue

    entries = catalogue()
    if as_json:
        return print_json([entry.name for entry in entries])
    for entry in entries:
        print(f"{entry.name:22} {float(entry.cardinality):8.2g} archs   {entry.about}")
    return None


def describe_space(options: SpacesCommand, as_json: bool) -> None:
    from nasformer.families.registry import get_space
    from nasformer.space.dimensions import format_values

    space = get_space(options.name or "", **options.model_options())
    description = describe(space)
    if as_json:
        return print_json(description)
    print(f"{space.name}: {space.about}")
    print(f"  archs     {space.root.cardinality:,}")
    for end in ("smallest", "largest"):
        cost = description[end]
        print(f"  {end:9} {format_quantity(cost['params'])} parameters, {format_quantity(cost['macs'])} MACs")
    print(f"  choices   {space.root!r}")
    print(f"  dimensions, for choices of your own: {example_expression(space)}")
    for name, values in description["dimensions"].items():
        print(f"    {name:{max(map(len, description['dimensions']))}}  {format_values(values)}")
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


def example_expression(space: Space) -> str:
    """An expression that gives the first dimension other values."""
    from nasformer.families.space import expression
    from nasformer.space.dimensions import dimensions

    name, choice = next(iter(dimensions(space.root).items()))
    return f"--space '{expression((space.base or space).name, {name: choice.values[:2]})}'"


def cost(options: CostCommand, as_json: bool) -> None:
    space = options.chosen_space()
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

    from nasformer.latency.lookup import with_profile
    from nasformer.space.feasible import check_satisfiable, sample_feasible

    windows = options.budget().windows()
    space, _ = with_profile(options.chosen_space(), options)
    check_satisfiable(space.root, space.costs, windows)
    rng = random.Random(options.seed)
    for _ in range(options.n):
        print(sample_feasible(space.root, rng, space.costs, windows).to_json())
