"""The commands that look at a space without training anything: spaces, cost and sample."""

from __future__ import annotations

import random
from typing import Any

from nasformer.cli.commands.common import chosen_space, print_json
from nasformer.cli.config import CostCommand, SampleCommand, SpacesCommand
from nasformer.errors import UserError
from nasformer.families.registry import get_space, list_spaces
from nasformer.families.space import Space, expression
from nasformer.latency.lookup import with_profile
from nasformer.space.dimensions import dimensions, format_values
from nasformer.space.feasible import check_satisfiable, sample_feasible
from nasformer.utils.units import format_quantity


def spaces(command: SpacesCommand, as_json: bool) -> None:
    if command.name is None:
        found = list_spaces()
        if as_json:
            return print_json(list(found))
        for name, space in found.items():
            print(f"{name:22} {float(space.root.cardinality):8.2g} archs   {space.about}")
        return None
    space = get_space(command.name, **command.model_options())
    description = describe(space)
    if as_json:
        return print_json(description)
    print(f"{space.name}: {space.about}")
    print(f"  archs     {space.root.cardinality:,}")
    for end in ("smallest", "largest"):
        cost = description[end]
        print(f"  {end:9} {format_quantity(cost['params'])} parameters, {format_quantity(cost['macs'])} MACs")
    print(f"  choices   {space.root!r}")
    print(f"  dimensions, for choices of your own: {example(space)}")
    for name, values in description["dimensions"].items():
        print(f"    {name:{max(map(len, description['dimensions']))}}  {format_values(values)}")
    print(f"  presets   {', '.join(space.presets)}")
    return None


def describe(space: Space) -> dict[str, Any]:
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


def example(space: Space) -> str:
    """An expression that gives the first dimension other values."""
    name, choice = next(iter(dimensions(space.root).items()))
    return f"--space '{expression((space.base or space).name, {name: choice.values[:2]})}'"


def cost(command: CostCommand, as_json: bool) -> None:
    space = chosen_space(command)
    if not command.arch:
        raise UserError("name an architecture with --arch: a JSON file, inline JSON or a preset's name")
    costs = space.costs(space.arch(command.arch))
    if as_json:
        return print_json(costs)
    print(f"{costs['params']:,} parameters, {costs['macs']:,} MACs (multiply-accumulates) per image")
    if costs["position_macs"]:
        print(f"relative positions: {costs['position_macs']:,} MACs more ({costs['position_macs_literal']:,} unfused)")
    return None


def sample(command: SampleCommand, as_json: bool) -> None:
    space, _ = with_profile(chosen_space(command), command)
    windows = command.budget().windows()
    check_satisfiable(space.root, space.costs, windows)
    rng = random.Random(command.seed)
    for _ in range(command.n):
        print(sample_feasible(space.root, rng, space.costs, windows).to_json())
