"""Tables as text: for a page, with every cell escaped, and for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_row(cells: Iterable[str], kind: str = "") -> str:
    """
    >>> html_row(["winner", "<b>"], kind="winner")
    '<tr class="winner"><td>winner</td><td>&lt;b&gt;</td></tr>'
    """
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{shown}</tr>' if kind else f"<tr>{shown}</tr>"


def html_table(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table in a card; the rows are those of `html_row`, or of one's own making."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join(rows)
    return f'<div class="card"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """
    >>> csv_text(["name", "value"], [("a, b", 1), ("c", None)])
    'name,value\\n"a, b",1\\nc,\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
