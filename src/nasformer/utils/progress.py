"""Progress of long work: a bar with a time estimate on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Protocol

LINE_SECONDS = 8.0  # least time between two plain lines, so that none is more than about ten seconds away
NOTEBOOK_SECONDS = 0.5  # the same between two states of a bar in a notebook
REPORT_SECONDS = 0.5  # the same between two reports to another process
_stages: dict[str, float] = {}


@dataclass(frozen=True)
class Report:
    """Progress that a process sends to the one that shows it."""

    label: str
    done: int
    total: int
    note: str

    def __str__(self) -> str:
        return f"{self.label} {self.done}/{self.total} {self.note}"


_listener: Callable[[Report | str], None] | None = None


@contextmanager
def progress_to(listener: Callable[[Report | str], None]) -> Iterator[None]:
    """Sends progress and lines for the user to a listener instead of standard error."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def say(line: str) -> None:
    """Print one line for the user on standard error, apart from what a command prints as its result."""
    if _listener:
        return _listener(line)
    with suppress(OSError, ValueError):  # standard error is closed, which is no reason to stop the work
        print(line, file=sys.stderr)
    return None


@contextmanager
def repeating(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Context in which a thread calls a function at intervals of `seconds`."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Progress(Protocol):
    """Reports how much of the work is done."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def run_stages(amounts: Mapping[str, float]) -> Iterator[None]:
    """Context in which progress also tells how long the whole run takes.

    Args:
        amounts: Work of each stage by its label, in order and in any unit; other work is left out of the estimate.
    """
    global _stages
    before, _stages = _stages, dict(amounts)
    try:
        yield
    finally:
        _stages = before


class TimeEstimate:
    """Time left in a stage and in the run that it belongs to, judging by the work done so far."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.start, self.first, self.done = time.monotonic(), 0, 0

    def update(self, done: int) -> None:
        """Counts work as done; where the first report skips some, an earlier process did that."""
        if self.done == 0 and done > 1:
            self.start, self.first = time.monotonic(), done
        self.done = done

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        return self.seconds / max(self.done - self.first, 1) * (self.total - self.done)

    @property
    def run_left(self) -> float | None:
        """Seconds left in the whole run; None outside the stages of a run and in the last of them."""
        names = list(_stages)
        if self.label not in _stages or self.label == names[-1]:
            return None
        share = (self.done - self.first) / max(self.total, 1)
        later = sum(_stages[name] for name in names[names.index(self.label) + 1 :])
        return self.left + self.seconds / max(share, 1e-9) * later / _stages[self.label]

    def describe_run(self) -> str:
        """What is left of the run, in words; empty where that is not known yet."""
        left = self.run_left if self.done > self.first else None
        return f", {in_hours(left)} of the run" if left is not None else ""


def in_hours(seconds: float) -> str:
    """A time as people say it.

    >>> in_hours(40), in_hours(600), in_hours(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function to call with how much is done and a note on it, such as the loss.

    Everything goes to standard error, so that it never mixes with what a command prints.
    """
    if quiet:
        yield lambda done, note="": None
    elif _listener:
        yield _reports(label, total, _listener)
    elif sys.stderr.isatty():
        yield from _bar(label, total)
    else:
        yield _notebook_bar(label, total) if in_notebook() else _lines(label, total)


def _bar(label: str, total: int) -> Iterator[Progress]:
    from rich import progress as rich
    from rich.console import Console

    name, count, note = rich.TextColumn("{task.description:8}"), rich.MofNCompleteColumn(), "{task.fields[note]}"
    times = (rich.TimeElapsedColumn(), rich.TextColumn("left"), rich.TimeRemainingColumn())
    columns = (name, rich.BarColumn(), count, *times, rich.TextColumn(note))
    estimate = TimeEstimate(label, total)
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")

        def report(done: int, note: str = "") -> None:
            estimate.update(done)
            bar.update(task, completed=done, note=f"{note}{estimate.describe_run()}".removeprefix(", "))

        yield report


def _lines(label: str, total: int) -> Progress:
    estimate, last = TimeEstimate(label, total), time.monotonic()

    def report(done: int, note: str = "") -> None:
        nonlocal last
        estimate.update(done)
        now = time.monotonic()
        if done < total and now - last < LINE_SECONDS:
            return
        last = now
        left = f"about {in_hours(estimate.left)} left{estimate.describe_run()}" if done else "begun"
        say(f"{label}: {done}/{total}, {in_hours(estimate.seconds)}, {left}  {note}")

    return report


def _reports(label: str, total: int, listener: Callable[[Report | str], None]) -> Progress:
    last = time.monotonic()
    listener(Report(label, 0, total, ""))

    def report(done: int, note: str = "") -> None:
        nonlocal last
        if done == total or time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            listener(Report(label, done, total, note))

    return report


# In a notebook


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _notebook_bar(label: str, total: int) -> Progress:
    from IPython.display import HTML, display

    estimate, last, shown = TimeEstimate(label, total), -1.0, None

    def report(done: int, note: str = "") -> None:
        nonlocal last, shown
        estimate.update(done)
        now = time.monotonic()
        if shown and done < total and now - last < NOTEBOOK_SECONDS:
            return
        last = now
        times = f"{in_hours(estimate.seconds)}, about {in_hours(estimate.left)} left{estimate.describe_run()}"
        bar = f'<progress value="{done}" max="{total}"></progress>'
        html = HTML(f"<div>{escape(label)} {bar} {done}/{total}, {times} {escape(note)}</div>")
        if shown is None:
            shown = display(html, display_id=True)
        else:
            shown.update(html)

    return report
