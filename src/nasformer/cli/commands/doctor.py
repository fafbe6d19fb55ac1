"""The command that looks after a supernet's health: doctor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nasformer.cli.commands.common import print_json
from nasformer.cli.config import DoctorCommand
from nasformer.errors import UserError
from nasformer.utils.units import format_quantity

if TYPE_CHECKING:
    from nasformer.runs.doctor import Finding


def doctor(command: DoctorCommand, as_json: bool) -> int:
    """Prints what was found; 1 where there is an alarm, so that scripts can tell."""
    from nasformer.runs.doctor import examine

    if not command.run:
        raise UserError("say which run: nasformer doctor RUN")
    found = examine(Path(command.run), command.data, command.device)
    print_json(asdict(found)) if as_json else print_finding(found, Path(command.run))
    return 1 if found.alarms else 0


def print_finding(found: Finding, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len(found.subnets)} fixed subnets on {found.images}, at step {found.step}")
    for column in ("", "parameters", "layers", "width", "accuracy"):
        table.add_column(column, justify="right" if column else "left")
    for row in found.subnets:
        costs = format_quantity(row["params"]), str(row["depth"]), f"{row['width']:.2f}"
        table.add_row(row["name"], *costs, f"{row['accuracy']:.2%}")
    Console().print(table)
    ranks = [f"with {name} {signed(rank)}" for name, rank in found.correlations.items()]
    print(f"rank correlation of accuracy {', '.join(ranks)}")
    if found.taus:
        print(f"ranks from look to look (Kendall's tau): {' '.join(map(signed, found.taus))}")
    for alarm in found.alarms:
        print(f"alarm: {alarm.finding}\n       {alarm.advice}")
    print(f"{'healthy' if not found.alarms else f'{len(found.alarms)} to look at'}: {folder / 'plots' / 'health.png'}")


def signed(number: float | None) -> str:
    return "–" if number is None else f"{number:+.2f}"
