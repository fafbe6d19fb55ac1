"""Tables on the terminal, as HTML, as Markdown and as CSV, every cell escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nasformer.utils.files import open_atomic


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> None:
    """Prints a table whose first column is left-aligned; the others, numbers, are right-aligned."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) if title else None, **options)  # a space may have brackets in its name
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def html_row(cells: Iterable[str], kind: str = "", head: Sequence[str] = ()) -> str:
    """A row of a table; `kind` is its CSS class, and cells carry the names in `head` as labels for narrow screens.

    >>> html_row(["winner", "<b>"], kind="winner")
    '<tr class="winner"><td>winner</td><td>&lt;b&gt;</td></tr>'
    >>> html_row(["3"], head=["depth"])
    '<tr><td data-label="depth">3</td></tr>'
    """
    labels = [f' data-label="{escape(name)}"' if name else "" for name in head]
    shown = "".join(f"<td{label}>{escape(cell)}</td>" for cell, label in zip_longest(cells, labels, fillvalue=""))
    return f'<tr class="{kind}">{shown}</tr>' if kind else f"<tr>{shown}</tr>"


def html_table(head: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """A table of rows as `html_row` makes them; `kind` is its CSS class."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    table, body = f'<table class="{kind}">' if kind else "<table>", "\n".join(rows)
    return f'<div class="card">{table}\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def escape_markdown(text: str) -> str:
    r"""Escapes text for a cell of a Markdown table.

    >>> escape_markdown("a|b <b>`x`</b>\n# _c_")
    'a\\|b &lt;b&gt;\\`x\\`&lt;/b&gt; \\# \\_c\\_'
    """
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return escape(re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", line), quote=False)


def markdown_table(rows: Mapping[str, str]) -> str:
    """Two columns without a head, every cell escaped."""
    cells = [f"| {escape_markdown(name)} | {escape_markdown(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *cells])


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a CSV file row by row, so that it may be larger than the memory.

    Text that a spreadsheet would run as a formula gets a quote before it.
    """
    with open_atomic(path) as file:
        text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_safe_cell, head))
        writer.writerows(map(_safe_cell, row) for row in rows)
        text.detach()  # flushed, and still open


def _safe_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r\n", "\n").replace("\r", "\n")  # which csv quotes; before Python 3.13 not the others
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\n")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
