"""Choice of the device to compute on."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

import torch

from nasformer.errors import UserError
from nasformer.utils.units import check_number

TRIALS = 3
"""How often work is timed with each number of threads; the first time does not count ..."""
TRIAL_SECONDS = 5.0
"""... unless it took so long that nothing follows."""
GAIN = 0.9
"""All threads are taken where their time is below this share of one thread's: they cost other programs theirs."""
_threads_are_fixed = False


def choose_device(name: str = "auto") -> torch.device:
    """The device by name; "auto" takes a GPU where there is one. Under torchrun each process has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for but torch sees no GPU; use --device cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"there is no device {name}; torch sees {torch.cuda.device_count()} GPUs, the first is cuda:0")
    return device


def keep_compiled_code() -> None:
    """Has torch.compile keep its code in the user's cache folder, where a restart of the machine leaves it.

    By default it is in the folder for temporary files, which torch writes into TORCHINDUCTOR_CACHE_DIR itself; what a
    user has put there counts.
    """
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if chosen and not chosen.startswith(os.path.join(tempfile.gettempdir(), "torchinductor_")):
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nasformer" / "inductor"
    with suppress(OSError, RuntimeError):  # no home, or one that cannot be written
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Runs each operation on the CPU on so many threads, without trials of other numbers; then as before."""
    global _threads_are_fixed
    before = torch.get_num_threads(), _threads_are_fixed
    torch.set_num_threads(count)
    _threads_are_fixed = True
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _threads_are_fixed = before[1]


def asked_threads(threads: int | Literal["auto"]) -> AbstractContextManager[None]:
    """So many threads as a user asks for; auto leaves it to trials."""
    if threads == "auto":
        return nullcontext()
    check_number("threads", threads, 1, whole=True)
    return cpu_threads(threads)


def threads_are_fixed() -> bool:
    """Whether the number of threads was asked for, or chosen already."""
    return _threads_are_fixed


def fastest_threads(work: Callable[[], object]) -> int:
    """One thread, or all that torch has, whichever does some work faster now; on a busy machine one often does."""
    available = torch.get_num_threads()
    if available == 1:
        return 1
    seconds: dict[int, list[float]] = {1: [], available: []}
    for _ in range(TRIALS):
        for count, times in seconds.items():
            with cpu_threads(count):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
        if sum(map(sum, seconds.values())) > TRIAL_SECONDS:
            break
    best = {count: min(times[1:] or times) for count, times in seconds.items()}
    return available if best[available] < GAIN * best[1] else 1
