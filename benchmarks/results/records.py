"""Records as pages show them: reading, the line that says where figures come from, Markdown, and blocks by name."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"
Record = dict[str, Any]
Render = Callable[..., str]


@dataclass(frozen=True)
class Block:
    """A part of a page that is written from records.

    Args:
        records: Names of the records, which are given to `render` in this order.
        sourced: Whether a line below says where the figures come from.
        command: What writes the records, where they are not there yet.
    """

    render: Render
    records: tuple[str, ...]
    sourced: bool
    command: str = ""

    def text(self) -> str:
        missing = [name for name in self.records if not (RECORDS / f"{name}.json").exists()]
        if missing:
            return f"*No record yet: `{self.command}` writes `{missing[0]}.json`.*"
        found = [load(name) for name in self.records]
        lines = [self.render(*found)]
        if self.sourced:
            lines.append(sources(self.records, found))
        return "\n\n".join(lines)


BLOCKS: dict[str, Block] = {}


def table_of(*records: str, command: str = "") -> Callable[[Render], Render]:
    """Registers a table of these records, under the name of the function; its source is written below it."""
    return register(records, True, command)


def text_of(*records: str, command: str = "") -> Callable[[Render], Render]:
    """Registers words from these records, under the name of the function, to stand within a sentence."""
    return register(records, False, command)


def register(records: tuple[str, ...], sourced: bool, command: str) -> Callable[[Render], Render]:
    def add(render: Render) -> Render:
        BLOCKS[render.__name__.replace("_", "-")] = Block(render, records, sourced, command)
        return render

    return add


def load(name: str) -> Record:
    """A record; a profile of `nasformer profile` has the same facts under other names."""
    record: Record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    if "profile" not in record:
        return record
    setup, machine = record["setup"], record["machine"]
    hardware = {"gpu": machine["gpu"], "cpu": machine["processor"], "cores": machine["cores"], "threads": 1}
    facts = {"benchmark": "nasformer profile", "date": record["date"], "versions": machine["versions"]}
    return {**facts, "settings": setup | {"space": record["space"]}, "hardware": hardware, "results": record["holdout"]}


def sources(names: Sequence[str], records: Sequence[Record]) -> str:
    """The line below a table; records of the same origin together."""
    origins: dict[str, list[str]] = {}
    for name, record in zip(names, records, strict=True):
        origins.setdefault(origin(record), []).append(f"`{name}.json`")
    parts = [f"{', '.join(files)} by {words}" for words, files in origins.items()]
    return f"*{'; '.join(parts)}.*"


def origin(record: Record) -> str:
    """What wrote a record, on what hardware, with which versions, when and with how many seeds."""
    benchmark, hardware, versions = record["benchmark"], record["hardware"], record["versions"]
    scripts = [f"benchmarks/{benchmark}.py", f"benchmarks/study/{benchmark}.py"]
    program = next((script for script in scripts if (ROOT / script).exists()), benchmark)
    threads = hardware.get("threads")
    machine = hardware.get("gpu") or f"{hardware['cpu']}, {'one thread' if threads == 1 else f'{threads} threads'}"
    facts = [machine, f"torch {versions['torch'].split('+')[0]}", f"Python {versions['python']}"]
    facts += [fact for fact in (record.get("date"), seeds_in_words(record)) if fact]
    return f"`{program}`: {', '.join(facts)}"


def seeds_in_words(record: Record) -> str:
    """What was trained, or else what was asked for; nothing where there are no seeds."""
    runs, settings = record["results"].get("runs"), record["settings"]
    if "seeds" not in settings:
        return f"seed {settings['seed']}" if "seed" in settings else ""
    count = len(settings["seeds"]) if isinstance(settings["seeds"], list) else settings["seeds"]
    if isinstance(runs, dict):
        count = max(map(len, runs.values()))
    return "one seed" if count == 1 else f"{count} seeds"


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float, digits: int = 1) -> str:
    """
    >>> percent(0.865)
    '86.5'
    """
    return f"{100 * share:.{digits}f}"


def mean_and_std(shares: Sequence[float]) -> str:
    """In percent; of one seed there is no spread.

    >>> mean_and_std([0.86, 0.87]), mean_and_std([0.86])
    ('86.5 ± 0.7', '86.0')
    """
    spread = f" ± {percent(statistics.stdev(shares))}" if len(shares) > 1 else ""
    return f"{percent(statistics.fmean(shares))}{spread}"


def short(value: float | None) -> str:
    """A correlation as papers print it.

    >>> short(0.61), short(-0.07), short(None)
    ('.61', '-.07', '–')
    """
    return "–" if value is None else f"{value:.2f}".replace("0.", ".", 1)


def millions(number: float) -> str:
    return f"{number / 1e6:.2f} M"
