"""The command that puts runs side by side: compare."""

from __future__ import annotations

import math
from pathlib import Path

from nasformer.cli.commands.common import print_json
from nasformer.cli.config import CompareCommand
from nasformer.report.compare import Comparison, compare_runs, write_comparison
from nasformer.report.labels import figure_of, is_share, label
from nasformer.report.page import in_words


def compare(command: CompareCommand, as_json: bool) -> None:
    comparison = compare_runs(command.runs)
    page = write_comparison(comparison, Path(command.out)) if command.out else None
    if as_json:
        return print_json(comparison.to_dict())
    print_comparison(comparison)
    if page:
        print(f"report: {page}")
    return None


def print_comparison(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    winners, efforts = comparison.winners(), comparison.efforts()
    found = dict.fromkeys(name for one in winners for name in one.scores if not name.startswith("position_"))
    names = sorted(found, key=is_share)
    table = Table(title="winners")
    for column in ("", "seed", "candidates", *map(label, names)):
        table.add_column(column, justify="left" if not column else "right")
    for one in winners:
        effort = efforts[one.name]
        scores = (figure_of(name, one.scores.get(name, math.nan)) for name in names)
        table.add_row(one.name, in_words(effort["seed"]), f"{effort['candidates']:,}", *scores)
    Console().print(table)
    for name, values in comparison.differences().items():
        print(f"{name}: {' | '.join(map(in_words, values))}")
