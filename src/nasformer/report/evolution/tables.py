"""The spaces and their dimensions as tables for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nasformer.report.evolution.contents import Evolution
from nasformer.report.evolution.words import letter, notices
from nasformer.report.tables import csv_text

SPACES = ("name", "space", "cardinality", "samples", "expected", "top", "et", "whole", "part", "fresh", "notices")
DIMENSIONS = ("name", "dimension", "values", "counts", "et", "slope", "stderr", "intercept", "step", "shift", "next")


def spaces_csv(evolution: Evolution) -> str:
    """A line for each space: errors in %, and how many tensors came whole, in part or not at all."""
    rows = []
    for number, (step, carried) in enumerate(zip(evolution.steps, evolution.carried, strict=True)):
        came = (carried.whole, carried.part, carried.fresh) if carried else (None,) * 3
        judged = step.quality.expected, step.quality.top, round(step.quality.et, 6)
        told = "; ".join(notices(step))
        rows.append((letter(number), step.space, step.cardinality, len(step.errors), *judged, *came, told))
    return csv_text(SPACES, rows)


def dimensions_csv(evolution: Evolution) -> str:
    """A line for each dimension of each space; where a cell has several numbers, they go with the values."""
    rows = []
    for number, step in enumerate(evolution.steps):
        for name, one in step.dimensions.items():
            lists = (_several(each) for each in (one.values, one.counts, one.et))
            line = (one.slope, one.stderr, one.intercept, one.step)
            rows.append((letter(number), name, *lists, *line, one.shift, _several(one.next), one.notice))
    return csv_text((*DIMENSIONS, "notice"), rows)


def _several(values: Sequence[Any]) -> str:
    return " ".join(
        "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values
    )
