"""Tables of architectures with known accuracies, to hold scores against.

A table is a JSON file::

    {
      "note": "where the numbers come from",
      "space": "autoformer-tiny",
      "model": {"head_dim": null, "relative_position": false},
      "rows": [
        {"arch": {"embed_dim": 192, "depth": 12, "num_heads": [3, ...], "mlp_ratio": [4.0, ...]},
         "accuracy": {"c100": 76.06, "flowers": 66.6}},
        ...
      ]
    }

- ``note`` (optional): where the numbers come from and what to beware of.
- ``space``: the name of a space; every arch must be a member of it.
- ``model`` (optional): options of the family's model that differ from its defaults.
- ``rows``: three or more. ``arch`` is written in any way that the space reads. ``accuracy`` holds numbers by column; a
  row that lacks a column (or has null there) is left out where that column is the target. Other keys are ignored, and
  the same arch may stand in several rows.

The folder of a run is a table, too: its candidates, and the scores that its search gave them as columns.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.models.base import Segment, options_from_json
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.search.journal import stream_journal
from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch, Value
from nasformer.utils.files import read_json, read_limited
from nasformer.utils.schema import from_json

MIN_ROWS = 3  # with fewer there is nothing to rank


@dataclass(frozen=True)
class Table:
    """Archs and their accuracies by column, NaN where a row lacks it. `source` is the name of the table in errors."""

    space: Space
    archs: list[Arch]
    accuracy: dict[str, list[float]]
    note: str = ""
    source: str = "the table"

    @property
    def columns(self) -> list[str]:
        return list(self.accuracy)

    def rows_with(self, target: str) -> list[int]:
        """The numbers of the rows that have the target."""
        if target not in self.accuracy:
            raise UserError(f"{self.source} has no column {target!r}; it has: {', '.join(self.columns) or 'none'}")
        rows = [row for row, value in enumerate(self.accuracy[target]) if math.isfinite(value)]
        if len(rows) < MIN_ROWS:
            raise UserError(f"{self.source} has {len(rows)} rows with {target!r}; ranking needs {MIN_ROWS} or more")
        return rows

    def select(self, target: str) -> Table:
        """The table without the rows that lack the target."""
        rows = self.rows_with(target)
        accuracy = {column: [values[row] for row in rows] for column, values in self.accuracy.items()}
        return replace(self, archs=[self.archs[row] for row in rows], accuracy=accuracy)


def read_table(path: str | Path) -> Table:
    """Reads a table file or a run folder (see the top of this module) and checks every row of it."""
    path = Path(path)
    try:
        return _parse(_load_run(path) if path.is_dir() else _load(path), str(path))
    except UserError as error:
        raise UserError(f"table {path}: {error}") from None


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(path))
    except RecursionError:
        raise UserError("is nested too deeply; expected an object with space and rows") from None
    except FileNotFoundError:
        raise UserError("no such file; give a JSON file with archs and accuracies") from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror}); give a JSON file with archs and accuracies") from None
    except ValueError as error:  # no JSON, or no text at all
        raise UserError(f"is not valid JSON ({error}); expected an object with space and rows") from None
    return _expect(content, dict, "the content")


def _load_run(folder: Path) -> dict[str, Any]:
    """The candidates of a run as the content of a table."""
    journal = folder / "search" / "journal.jsonl"
    if not journal.exists():
        raise UserError("cannot be read (a folder without a search); give a run folder with one, or a JSON file")
    settings, records = stream_journal(journal)
    candidates = [from_json(Candidate, record, f"{journal}, line {n}") for n, record in enumerate(records, 2)]
    costs = ("params", "macs", "position_", "latency_ms", "memory_bytes")
    rows = [
        {
            "arch": candidate.arch.to_dict(),
            "accuracy": {k: v for k, v in candidate.scores.items() if not k.startswith(costs)},
        }
        for candidate in candidates
    ]
    space = settings.get("space") or read_json(folder / "config.json").get("space")
    model = from_json(dict[str, Any], settings.get("model_options") or {}, f"{journal}, line 1, model_options")
    note, options = f"candidates of {folder}", options_from_json(model)
    return {"note": note, "space": space, "model": options, "rows": rows}


def _parse(content: dict[str, Any], source: str) -> Table:
    space = _space(content)
    rows = _expect(content.get("rows"), list, "rows")
    if len(rows) < MIN_ROWS:
        raise UserError(f"has {len(rows)} rows; ranking needs {MIN_ROWS} or more")
    read = [_row(space, number, row) for number, row in enumerate(rows, start=1)]
    archs = [arch for arch, _ in read]
    _try_model(space, archs[0])
    note = _expect(content.get("note", ""), str, "note")
    return Table(space, archs, _columns([accuracy for _, accuracy in read]), note, source)


def _space(content: Mapping[str, Any]) -> Space:
    name = _expect(content.get("space"), str, "space")
    return get_space(name).with_options(**_expect(content.get("model", {}), dict, "model"))


def _row(space: Space, number: int, row: Any) -> tuple[Arch, dict[str, float]]:
    try:
        row = _expect(row, dict, "the row")
        arch = space.arch(_expect(row.get("arch"), dict, "arch"))
        accuracy = _expect(row.get("accuracy"), dict, "accuracy")
        return arch, {column: _number(column, value) for column, value in accuracy.items()}
    except UserError as error:
        raise UserError(f"row {number}: {error}") from None


def _number(column: str, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"accuracy {column!r} is {str(value)[:40]!r}, expected a number")
    return float(value)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    names = dict.fromkeys(column for row in rows for column in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _try_model(space: Space, arch: Arch) -> None:
    """Plans one model: wrong options are found now, with the name of the file, and not later."""
    try:
        space.plan(arch)
    except (UserError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"model {dict(space.options)} does not suit {space.name}: {error}") from None


def _expect(value: Any, expected: type, what: str) -> Any:
    """The value; UserError where it is not of the expected type."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    if not isinstance(value, expected):
        shown = "missing" if value is None else json.dumps(value)[:40]
        raise UserError(f"{what} is {shown}, expected {names[expected]}")
    return value


def trivial_counts(space: Space, archs: Sequence[Arch]) -> dict[str, list[float]]:
    """What anyone can count without a proxy: parameters, MACs, depth, and the total of each number of an arch.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-tiny")
    >>> counts = trivial_counts(space, [space.root.smallest(), space.root.largest()])
    >>> {name: values for name, values in counts.items() if name not in ("params", "macs")}
    {'depth': [12.0, 14.0], 'embed_dim': [192.0, 240.0], 'num_heads': [36.0, 56.0], 'mlp_ratio': [42.0, 56.0]}
    """
    costs = [space.costs(arch) for arch in archs]
    counts = {name: [float(cost[name]) for cost in costs] for name in ("params", "macs")}
    depths = [float(depth_of(space.plan(arch))) for arch in archs]
    if any(depths):
        counts["depth"] = depths
    totals = [number_totals(arch) for arch in archs]
    for name in dict.fromkeys(name for total in totals for name in total):
        # A field named like a count of the plan is left out.
        counts.setdefault(name, [float(total[name]) for total in totals])
    return counts


def depth_of(plan: Sequence[Segment]) -> int:
    """The number of blocks in a plan."""
    return sum("blocks" in segment.name.split(".") for segment in plan)


def number_totals(arch: Arch) -> Counter[str]:
    """The sum of an arch's numbers by name, at any level.

    >>> number_totals(Arch(width=16, heads={"stage1": 2, "stage2": 4}, blocks=[{"conv": {"kernel": 3}}, {"mlp": {}}]))
    Counter({'width': 16, 'heads': 6, 'kernel': 3})
    """
    totals: Counter[str] = Counter()
    for path, number in _numbers(arch):
        totals[_name(path)] += number  # type: ignore[assignment]  # a Counter of floats is one as well
    return totals


def _numbers(value: Value, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """All numbers in an arch, each with the names from the root down to it."""
    if isinstance(value, Arch):
        for name, part in value.items():
            yield from _numbers(part, (*path, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _name(path: Sequence[str]) -> str:
    """The innermost name without a number at its end: "stage1" says where, "num_heads" says what.

    >>> _name(("num_heads", "stage1")), _name(("stage1", "num_heads")), _name(("heads2",))
    ('num_heads', 'num_heads', 'heads')
    """
    plain = [name for name in path if not re.search(r"\d$", name)]
    return plain[-1] if plain else re.sub(r"_?\d+$", "", path[-1]) or path[-1]
