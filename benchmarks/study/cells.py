"""Cells of a study: a variant with a seed, whose commands run one after the other until the time is over.

A command that is done is not done again, and one that was stopped goes on by its own means. What another machine needs
to go on is in `Cell.begun`; `Cell.resume` takes it over.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.utils.files import write_text
from outcome import Figures, Study
from smoke import shortened

GRACE = 40.0
"""Seconds before the end of `--minutes` at which commands are told to stop, to write a checkpoint and the record."""
STOPPED: list[int] = []
"""Holds the signal by which this process was told to stop; a list, since workers are sent this module."""


class OutOfTime(Exception):
    """A cell is not finished; the next call goes on."""


@dataclass
class Cell:
    """A variant with a seed: its folder, and the commands that fill it.

    Args:
        words: What is filled into the steps.
        deadline: When to stop, in seconds since the epoch.
        processes: How many processes its steps run side by side at most.
        first: How many of the steps to do; None: all.
    """

    study: Study
    variant: str
    seed: int
    folder: Path
    words: dict[str, str]
    deadline: float
    processes: int = 1
    smoke: bool = False
    first: int | None = None

    @property
    def name(self) -> str:
        return f"{self.variant + ', ' if self.variant else ''}seed {self.seed}"

    @property
    def key(self) -> str:
        """What the figures depend on, whatever the machine: the words of the commands."""
        return digest("\n".join(map(self.anywhere, self.study.steps)))

    def anywhere(self, step: str) -> str:
        """A step without what differs between machines and calls: folders, and how much is done side by side."""
        return step.format_map(Open(self.study.words_of(self.variant) | {"seed": str(self.seed)}))

    def missing(self, folders: Sequence[Path]) -> list[str]:
        """Files in these folders that the steps name and that are not there: images or weights."""
        words = {part for command in self.commands() for word in command for part in word.split(":")}
        paths = {Path(word) for word in words if any(Path(word).is_relative_to(folder) for folder in folders)}
        return sorted(path.name for path in paths if not path.exists())

    def run(self) -> dict[str, Any] | None:
        """Does what is not done yet: figures, and seconds of each step, now or before; None where steps are left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.end_left_running()
        steps = zip(self.study.steps, self.commands(), strict=True)
        try:
            seconds = [self.step(*pair) for pair in islice(steps, self.first)]
        except OutOfTime:
            return None
        if len(seconds) < len(self.study.steps):
            return None
        return {"key": self.key, "seconds": seconds, "figures": self.figures(), "minutes": self.minutes(seconds)}

    def commands(self) -> Iterator[list[str]]:
        words = {**self.words, "seed": str(self.seed), "work": str(self.folder)}
        for step in self.study.steps:
            command = shlex.split(step.format(**words))
            yield shortened(command) if self.smoke else command

    def step(self, step: str, words: list[str]) -> float:
        """Runs a command unless it is done; the seconds that it took in all."""
        done, begun = (self.folder / f"{digest(self.anywhere(step))}.{state}" for state in ("done", "begun"))
        if done.exists():
            return float(done.read_text())
        before, start = float(begun.read_text()) if begun.exists() else 0.0, time.perf_counter()
        try:
            with (self.folder / "log.txt").open("a") as log:
                log.write(f"$ {shlex.join(words)}\n")
                log.flush()
                run_until(self.deadline, program(words), log, self.process_file)
        finally:
            seconds = before + time.perf_counter() - start
            begun.write_text(str(seconds))
        begun.rename(done)
        print(f"{self.name}: {seconds:.0f} s for {shlex.join(words[:2])}", flush=True)
        return seconds

    @property
    def process_file(self) -> Path:
        """Holds the process that runs a step."""
        return self.folder / "process"

    def end_left_running(self) -> None:
        """Ends a step that goes on although its study was killed: two would write the same files."""
        if self.process_file.exists():
            pid = int(self.process_file.read_text())
            if str(self.folder) in command_line(pid):
                end_group(pid, lambda: not command_line(pid))
            self.process_file.unlink()

    def begun(self) -> dict[str, Any]:
        """What another machine goes on by, once the last step alone is left: files, and seconds of the steps done."""
        needed, done = [self.folder / name for name in self.study.keep], sorted(self.folder.glob("*.done"))
        if not needed or len(done) < len(self.study.steps) - 1 or not all(path.exists() for path in needed):
            return {}
        paths = {*needed, *self.folder.glob("*.json")}
        files = {str(path.relative_to(self.folder)): contents(path) for path in sorted(paths)}
        return {"key": self.key, "seconds": {path.stem: float(path.read_text()) for path in done}, "files": files}

    def resume(self, begun: dict[str, Any]) -> None:
        """Takes over what another machine began, where this one has nothing and the commands are the same."""
        if begun.get("key") != self.key or list(self.folder.glob("*.done")):
            return
        for name, content in begun["files"].items():
            write_text(self.folder / name, json.dumps(content))
        for step, seconds in begun["seconds"].items():
            write_text(self.folder / f"{step}.done", str(seconds))

    def figures(self) -> Figures:
        """All figures; the optional ones where the files have them."""
        measured = {name: self.values(path) for name, path in self.study.figures.items()}
        if missing := [name for name, values in measured.items() if not values and name not in self.study.optional]:
            raise UserError(f"{self.folder} has no {missing[0]}: nothing at {self.study.figures[missing[0]]!r}")
        return {name: statistics.fmean(values) for name, values in measured.items() if values}

    def values(self, path: str) -> list[float]:
        """All numbers at a path: a file in the folder of the cell, and the keys in its JSON."""
        file, *keys = shlex.split(path.format(**self.words))
        return list(find(contents(self.folder / file), keys)) if (self.folder / file).exists() else []

    def minutes(self, seconds: Sequence[float]) -> float | None:
        """What a user would spend on the searched net, by the first line of evidence that says so."""
        parts = next((entry["minutes"] for entry in self.study.evidence if "minutes" in entry), None)
        if parts is None:
            return None
        times = [seconds[part] if isinstance(part, int) else sum(self.values(part)) for part in parts]
        return sum(times) / 60


def contents(path: Path) -> Any:
    return json.loads(path.read_text())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Open(dict[str, str]):
    """Words of which those that are missing stay open."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def find(tree: Any, keys: Sequence[str]) -> Iterator[float]:
    """All numbers under the keys, which may be patterns; those of a list are names of its items, or else positions.

    >>> list(find({"random 1": {"top1": 0.5}, "random 2": {"top1": 0.7}, "winner": {}}, ["random*", "top1"]))
    [0.5, 0.7]
    >>> list(find([{"name": "random", "top1": 0.5}, {"name": "smallest", "top1": 0.7}], ["random*", "top1"]))
    [0.5]
    """
    if not keys:
        if isinstance(tree, int | float):
            yield float(tree)
        return
    if isinstance(tree, list):
        tree = {item.get("name", index) if isinstance(item, dict) else index: item for index, item in enumerate(tree)}
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if fnmatch.fnmatchcase(str(key), keys[0]):
            yield from find(value, keys[1:])


# Processes


def program(words: Sequence[str]) -> list[str]:
    """The command with this Python, in which nasformer need not be installed."""
    first = {"python": [sys.executable], "nasformer": [sys.executable, "-m", "nasformer.cli"]}
    return [*first.get(words[0], words[:1]), *words[1:]]


def run_until(deadline: float, words: Sequence[str], log: Any, process_file: Path) -> None:
    """Runs a command; at the deadline, or when this process is told to stop, it ends with all that it started."""
    if STOPPED or time.time() >= deadline:
        raise OutOfTime
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}  # plugins of studies are here
    process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
    process_file.write_text(str(process.pid))
    while process.poll() is None:
        if STOPPED or time.time() >= deadline:
            end_group(process.pid, lambda: process.poll() is not None)
            raise OutOfTime
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    process_file.unlink()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))


def end_group(pid: int, has_ended: Callable[[], bool]) -> None:
    """Asks a process and all that it started to end, and ends them after a while."""
    signal_group(pid, signal.SIGTERM)
    last = time.monotonic() + 0.7 * GRACE
    while not has_ended():
        if time.monotonic() > last:
            signal_group(pid, signal.SIGKILL)
            return
        time.sleep(0.2)


def signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(pid, number)


def command_line(pid: int) -> str:
    """The words of a running process, where the system tells them; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
