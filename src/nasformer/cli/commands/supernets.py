"""The commands that train a supernet and search it: train, search and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.cli.commands.common import print_finalists, print_json
from nasformer.cli.commands.proxies import search_by_proxy
from nasformer.cli.config import RunCommand, SearchCommand, TrainCommand
from nasformer.runs import run as pipeline
from nasformer.runs.beside import check_baselines, random_rivals, train_baselines
from nasformer.runs.ship import places, ship
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.utils.units import format_quantity


def train(command: TrainCommand, as_json: bool) -> None:
    with pipeline.open_run(command) as run:
        run.train(command.train)
        summary = {"supernet": str(run.supernet_folder), "loss": run.last_loss()}
    if run.world.main:
        print_json(summary) if as_json else print(f"trained: {summary['supernet']}, loss {summary['loss']:.3f}")


def search(command: SearchCommand, as_json: bool) -> None:
    if command.proxy:
        return search_by_proxy(command, as_json)
    command = replace(command, data=command.data or "digits")
    with pipeline.open_run(command) as run:
        if not run.world.main:
            return None
        run.use_profile(command, command.search.objectives)
        supernet = run.load_supernet(command.supernet)
        if command.compile:
            supernet.compile()
        summary = search_and_summarise(run, supernet, command)
    return print_json(summary) if as_json else print_summary(summary, run.folder)


def run(command: RunCommand, as_json: bool) -> None:
    with pipeline.open_run(command) as run:
        run.use_profile(command, command.search.objectives)
        run.check_search(command.search, command.budget())
        check_baselines(run, command.baseline)
        run.train(command.train)
        trained = train_baselines(run, command.baseline, command.train)
        if not run.world.main:
            return
        supernet = run.load_supernet()
        if command.train.compile:
            supernet.compile()
        summary = search_and_summarise(run, supernet, command, trained)
        if command.export:
            ship(run.folder)
    print_json(summary) if as_json else print_summary(summary, run.folder)


def search_and_summarise(
    run: pipeline.Run,
    supernet: Supernet,
    command: SearchCommand | RunCommand,
    trained: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The search, and what stands beside its winner."""
    budget = command.budget()
    result = run.search(supernet, command.search, budget)
    rivals = random_rivals(run, supernet, command.search, budget, result)
    return run.summarise(supernet, result, budget, rivals, trained)


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
    print_finalists(summary)
    health = summary["health"]
    low, high = health["random_range"]
    drawn, correlation = len(health["subnets"]) - 2, health["rank_correlation"] or 0
    print(
        f"supernet: smallest {health['smallest']:.2%}, largest {health['largest']:.2%}, "
        f"{drawn} random {low:.2%} to {high:.2%}, rank correlation with size {correlation:+.2f}"
    )
    print(f"winner: {Arch.from_dict(summary['winner']['arch']).to_json()}")
    print(places(folder))
