"""The command that searches the space itself: evolve."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nasformer.cli.commands.common import print_json
from nasformer.cli.config import EvolveCommand
from nasformer.cli.options import BudgetConfig, DataConfig
from nasformer.runs import run as pipeline
from nasformer.runs.evolve import EVOLUTION, evolve_run
from nasformer.space.dimensions import format_value
from nasformer.supernet.storage import Carried
from nasformer.utils.files import read_json


def evolve(command: EvolveCommand, as_json: bool) -> None:
    number = -1
    with pipeline.open_run(command) as run:
        for number, record in enumerate(evolve_run(run, command)):
            if run.world.main and not as_json:
                print_step(number, record)
    if not run.world.main:
        return None
    if as_json:
        return print_json(read_json(run.folder / EVOLUTION))
    if number < command.evolve.steps:
        print(f"nothing shifted in step {number}: the evolution ends here, {command.evolve.steps - number} short")
    print(f"all of it: {run.folder / EVOLUTION}   report: {run.folder / 'report.html'}")
    print(f"search the last space: {search_command(command, run.folder, number)}")
    return None


def print_step(number: int, record: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    error = record["error"]
    size = f"{record['cardinality']:.3g} architectures, {record['samples']} of them judged"
    print(f"space {number}: {record['space']}\n  {size}")
    if record["carried"]:
        print(f"  weights of the space before: {Carried(**record['carried'])}")
    print(f"  E-T error {error['et']:.2f} %: {error['expected']:.2f} % expected, {error['top']:.2f} % at the top")
    table = Table(box=SIMPLE, padding=(0, 1))
    for column in ("dimension", "values", "slope", "next", "notice"):
        table.add_column(column, justify="right" if column == "slope" else "left", no_wrap=column != "notice")
    for name, one in record["dimensions"].items():
        slope = "–" if one["slope"] is None else f"{one['slope']:+.2f} ± {one['stderr']:.2f}"
        moved = listed(one["next"]) if one["shift"] else ""
        table.add_row(name, listed(one["values"]), slope, moved, escape(one["notice"]))
    Console().print(table)


def listed(values: list[Any]) -> str:
    return " ".join(map(format_value, values))


def search_command(command: EvolveCommand, folder: Path, number: int) -> str:
    """What to type next: S3's search, on the same images and within the same budget."""
    words = ["nasformer", "search", "--supernet", str(folder / "steps" / str(number) / "supernet")]
    for group in (DataConfig, BudgetConfig):
        given = {one.name: getattr(command, one.name) for one in fields(group)}
        usual = group()
        for name, value in given.items():
            if value != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--search.mutation", "paper", "--search.population", "50", "--out", str(folder / "searched")]
    return shlex.join(words)
