"""Tables as text: HTML with every cell escaped, Markdown, and CSV for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def html_row(cells: Iterable[str], kind: str = "") -> str:
    """A row of a table; `kind` is its CSS class.

    >>> html_row(["winner", "<b>"], kind="winner")
    '<tr class="winner"><td>winner</td><td>&lt;b&gt;</td></tr>'
    """
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{shown}</tr>' if kind else f"<tr>{shown}</tr>"


def html_table(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table of rows as `html_row` makes them."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join(rows)
    return f'<div class="card"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line; it can end neither a cell nor a row.

    >>> escape_markdown("a|b <b>`x`</b>\n# _c_")
    'a\\|b &lt;b&gt;\\`x\\`&lt;/b&gt; \\# \\_c\\_'
    """
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return escape(re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", line), quote=False)


def markdown_table(rows: Mapping[str, str]) -> str:
    """Two columns without a head, every cell escaped."""
    cells = [f"| {escape_markdown(name)} | {escape_markdown(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *cells])


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    r"""A CSV file. Text that a spreadsheet would run as a formula gets a quote before it.

    >>> csv_text(["name", "value"], [("a, b", 1), ("=1+1", -2.5), ("c", None)])
    'name,value\n"a, b",1\n\'=1+1,-2.5\nc,\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_safe_cell, head))
    writer.writerows(map(_safe_cell, row) for row in rows)
    return text.getvalue()


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
