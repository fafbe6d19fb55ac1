"""Patterns in the terminal: a table by stage, winners beside random archs, and one sentence for each verdict."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nasformer.report.anatomy import is_number
from nasformer.report.patterns import Patterns
from nasformer.report.stages import Reading, shares, values


def print_patterns(patterns: Patterns, console: Console | None = None) -> None:
    console = console or Console()
    console.print(patterns_table(patterns))
    told = [verdict.sentence for verdict in patterns.verdicts]
    if patterns.repaired:
        told.append(
            f"the budget is narrow: {patterns.repaired} of {patterns.draws} random archs were led into it step by "
            "step, so they are not quite a fair sample"
        )
    for sentence in told:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def patterns_table(patterns: Patterns) -> Table:
    count = f"{patterns.winners} winner{'s' * (patterns.winners > 1)}"
    title = f"{count} of {patterns.space}, budget: {patterns.budget}"
    caption = f"shares and means; in brackets those of {patterns.draws} random archs"
    table = Table(title=escape(title), caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for stage in patterns.together:
        table.add_column(stage, justify="right", no_wrap=True)
    for label, cells in rows(patterns):
        table.add_row(escape(label), *cells)
    return table


def names(reading: Reading) -> list[str]:
    """What is decided in any stage, kinds before numbers."""
    known = {name: found for row in reading.values() for name, found in row.items()}
    return sorted(known, key=lambda name: is_number(known[name][0]))


def rows(patterns: Patterns) -> Iterator[tuple[str, list[str]]]:
    """A row for each option of a kind, and one for each number."""
    both, together = (patterns.found, patterns.random), patterns.together
    for name in names(together):
        known = [value for stage in together for value in values(together, stage, name)]
        if all(map(is_number, known)):
            yield name, [_cell(name, stage, both, None) for stage in together]
            continue
        for pick in shares(known):
            yield f"{name}: {pick}", [_cell(name, stage, both, pick) for stage in together]


def _cell(name: str, stage: str, both: tuple[Reading, Reading], pick: Any) -> str:
    if not any(values(reading, stage, name) for reading in both):
        return ""
    ours, theirs = (_figure(values(reading, stage, name), pick) for reading in both)
    return f"{ours} ({theirs})"


def _figure(found: list[Any], pick: Any) -> str:
    if not found:
        return "–"
    return f"{fmean(found):.3g}" if pick is None else f"{100 * shares(found).get(pick, 0.0):.0f} %"
