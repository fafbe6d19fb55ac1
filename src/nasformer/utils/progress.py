"""Progress of long work: a bar with a time estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

LINE_SECONDS = 8.0  # least time between two plain lines; nobody shall wait for more than about ten seconds


def say(line: str) -> None:
    """Print one line for the user on standard error, apart from what a command prints as its result."""
    with suppress(OSError, ValueError):  # nobody listens any more, which is no reason to stop the work
        print(line, file=sys.stderr)


class Progress(Protocol):
    """Reports how much of the work is done."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function to call with how much is done and a note on it, such as the loss.

    Everything goes to standard error, so that it never mixes with what a command prints.
    """
    if quiet:
        yield lambda done, note="": None
    elif sys.stderr.isatty():
        yield from _bar(label, total)
    else:
        yield _lines(label, total)


def _bar(label: str, total: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)


def _lines(label: str, total: int) -> Progress:
    start = last = time.monotonic()

    def report(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < LINE_SECONDS:
            return
        last = now
        left = (now - start) / max(done, 1) * (total - done)
        say(f"{label}: {done}/{total}, {now - start:.0f} s, about {left:.0f} s left  {note}")

    return report
