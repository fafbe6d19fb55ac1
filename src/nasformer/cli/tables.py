"""Tables and verdicts on the terminal, and results as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(content: Any) -> None:
    print(json.dumps(content))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> None:
    """A table whose first column is on the left and whose others, numbers, are on the right."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) if title else None, **options)  # a space may have brackets in its name
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def print_verdict(run: str) -> None:
    """What the run comes to, and what would help."""
    from nasformer.results.contents import read_run
    from nasformer.results.verdict import judge

    verdict = judge(read_run(run))
    if verdict is None:
        return
    print("\n".join(verdict.sentences))
    for advice in verdict.advice:
        print(f"advice: {advice}")
