"""Text of others in tables: no cell can break out of its table, nor run as a formula."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from nasformer.utils.tables import html_row, html_table, markdown_table, write_csv

NASTY = "<script>alert(1)</script>| `rm` *b* _i_ [x](y) ![z](w)\n| new | row |\r\n# head"


def test_html_escapes_every_cell_and_heading() -> None:
    text = html_table([NASTY], [html_row([NASTY, '" onclick="x'])])
    assert "<script>" not in text
    assert text.count("<td>") == 2
    assert '" onclick' not in text


def test_markdown_keeps_every_cell_in_its_row() -> None:
    *head, row = markdown_table({NASTY: NASTY}).splitlines()
    assert head == ["| | |", "| --- | --- |"]
    assert row.replace(r"\|", "").count("|") == 3
    for special in ("<", ">", " *b*", " _i_", " [x]", " `rm`", " # "):
        assert special not in row, special


def test_markdown_takes_names_of_files_that_are_no_unicode() -> None:
    markdown_table({"class": "caf\udce9"}).encode("utf-8")


@pytest.mark.parametrize("cell", ["=1+1", "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "- a list"])
def test_csv_has_no_formulas(cell: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", [cell], [[cell]])
    with open(tmp_path / "table.csv", newline="") as file:
        ((head,), (found,)) = csv.reader(file)
    assert head == found == f"'{cell}".replace("\r", "\n")


@pytest.mark.parametrize("cell", [-0.5, "-0.5", "+1e-3", "a=b", "", "'quoted'"])
def test_csv_keeps_numbers_and_other_text(cell: object, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", ["first, head", "second"], [["first", cell], ["c", None]])
    assert (tmp_path / "table.csv").read_text() == f'"first, head",second\nfirst,{cell}\nc,\n'
