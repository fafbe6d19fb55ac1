"""CPU threads of a training: chosen by a short trial, and recorded.

On resume they are the same, since sums over other threads are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from nasformer.utils.device import cpu_threads, fastest_threads, threads_are_fixed
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json
from nasformer.utils.units import check_range

FILE = "threads.json"
MOST_THREADS = 2**16
FEW_STEPS = 20
"""A training of fewer steps is over before a trial pays."""


@dataclass(frozen=True)
class Threads:
    """The content of threads.json."""

    threads: int

    def __post_init__(self) -> None:
        check_range(self, "threads", 1, MOST_THREADS)


def recorded_threads(folder: Path | None) -> int | None:
    """The threads that a training began with."""
    path = folder / FILE if folder else None
    return from_json(Threads, read_json(path), path).threads if path and path.exists() else None


def training_threads(folder: Path | None, steps: int, work: Callable[[], object], label: str, quiet: bool) -> int:
    """The threads for a training: those asked for, those that it began with, or what a trial of its steps shows."""
    count = torch.get_num_threads() if threads_are_fixed() else recorded_threads(folder)
    if count is None:
        available = torch.get_num_threads()
        announce = available > 1 and steps >= FEW_STEPS and not quiet
        if announce:  # on a busy machine all threads can be very slow
            say(f"{label}: trying a step on 1 and on {available} threads of the CPU")
        count = fastest_threads(work) if steps >= FEW_STEPS else available
        if announce:
            words = "one thread is" if count == 1 else f"{count} threads are"
            say(f"{label}: {words} the fastest here, by this trial (--threads)")
    if folder and recorded_threads(folder) != count:
        write_json(folder / FILE, {"threads": count})
    return count


def threads_of_training(folder: Path) -> AbstractContextManager[None]:
    """Computes on the threads that were chosen for a training, unless others were asked for."""
    count = recorded_threads(folder)
    return nullcontext() if count is None or threads_are_fixed() else cpu_threads(count)
