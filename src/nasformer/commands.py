"""What the commands do; heavy imports are fine here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from nasformer import folders, pipeline
from nasformer.config import (
    CostCommand,
    EvaluateCommand,
    ExtractCommand,
    RunCommand,
    SampleCommand,
    SearchCommand,
    SpaceConfig,
    SpacesCommand,
    TrainCommand,
)
from nasformer.errors import UserError
from nasformer.families import Space, get_space, list_spaces
from nasformer.search import format_quantity
from nasformer.space import Arch, check_satisfiable, sample_feasible


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
    print(f"  presets   {', '.join(space.presets)}")
    return None


def describe(space: Space) -> dict[str, Any]:
    ends = {"smallest": space.root.smallest(), "largest": space.root.largest()}
    return {
        "name": space.name,
        "about": space.about,
        "cardinality": str(space.root.cardinality),
        **{name: {"arch": arch.to_dict(), **space.costs(arch)} for name, arch in ends.items()},
        "options": dict(space.options),
        "presets": {name: arch.to_dict() for name, arch in space.presets.items()},
    }


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
    space, windows = chosen_space(command), command.budget().windows()
    check_satisfiable(space.root, space.costs, windows)
    rng = random.Random(command.seed)
    for _ in range(command.n):
        print(sample_feasible(space.root, rng, space.costs, windows).to_json())


def train(command: TrainCommand, as_json: bool) -> None:
    with pipeline.open_run(command) as run:
        run.train(command.train)
        summary = {"supernet": str(run.supernet_folder), "loss": run.last_loss()}
    if run.world.main:
        print_json(summary) if as_json else print(f"trained: {summary['supernet']}, loss {summary['loss']:.3f}")


def search(command: SearchCommand, as_json: bool) -> None:
    with pipeline.open_run(command) as run:
        if not run.world.main:
            return
        supernet = run.load_supernet(command.supernet)
        if command.compile:
            supernet.compile()
        result = run.search(supernet, command.search, command.budget())
        summary = run.summarise(supernet, result, command.budget())
    print_json(summary) if as_json else print_summary(summary, run.folder)


def run(command: RunCommand, as_json: bool) -> None:
    with pipeline.open_run(command) as run:
        run.check_search(command.search, command.budget())
        run.train(command.train)
        if not run.world.main:
            return
        supernet = run.load_supernet()
        if command.train.compile:
            supernet.compile()
        result = run.search(supernet, command.search, command.budget())
        summary = run.summarise(supernet, result, command.budget())
    print_json(summary) if as_json else print_summary(summary, run.folder)


def extract(command: ExtractCommand, as_json: bool) -> None:
    from nasformer.export import save_model

    if not command.run or not command.to:
        raise UserError("say what to extract from and where to: nasformer extract RUN --to FOLDER")
    space = chosen_space(command) if command.space else None
    supernet = folders.find_supernet(Path(command.run), space)
    arch = supernet.space.arch(command.arch) if command.arch else folders.winner(Path(command.run))
    facts = folders.normalisation_of(Path(command.run))
    save_model(folders.cut(supernet, arch), command.to, space=supernet.space.name, **facts)
    costs = supernet.space.costs(arch)
    if as_json:
        return print_json({"folder": command.to, "arch": arch.to_dict(), **costs})
    print(f"{command.to}: {format_quantity(costs['params'])} parameters, {format_quantity(costs['macs'])} MACs")
    return None


def evaluate(command: EvaluateCommand, as_json: bool) -> None:
    if not command.model:
        raise UserError("say which model: nasformer evaluate FOLDER --data DATA")
    scores = folders.evaluate_folder(command)
    if as_json:
        return print_json(scores)
    print(f"{command.split}: top-1 {scores['accuracy']:.2%}, top-5 {scores['top5']:.2%}")
    return None


def chosen_space(command: SpaceConfig) -> Space:
    if not command.space:
        raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
    return get_space(command.space, **command.model_options())


def print_json(content: Any) -> None:
    print(json.dumps(content))


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{summary['space']} on {summary['data']}, {summary['budget']}")
    for column in ("", "parameters", "MACs", "held-out", "test"):
        table.add_column(column, justify="left" if not column else "right")
    for row in [summary["winner"], *summary["references"]]:
        table.add_row(
            row["name"],
            format_quantity(row["params"]),
            format_quantity(row["macs"]),
            f"{row['holdout_accuracy']:.2%}",
            f"{row['test_accuracy']:.2%}",
        )
    Console().print(table)
    health = summary["health"]
    low, high = health["random_range"]
    drawn, correlation = len(health["subnets"]) - 2, health["rank_correlation"] or 0
    print(
        f"supernet: smallest {health['smallest']:.2%}, largest {health['largest']:.2%}, "
        f"{drawn} random {low:.2%} to {high:.2%}, rank correlation with size {correlation:+.2f}"
    )
    print(f"winner: {Arch.from_dict(summary['winner']['arch']).to_json()}")
    print(f"model: {folder / 'model'}   report: {folder / 'report.html'}")
