"""Where to compute: the device, threads of the CPU, and the processes that torchrun starts."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nasformer.errors import UserError

TRIALS = 3
"""How often work is timed with each number of threads; the first time does not count ..."""
TRIAL_SECONDS = 5.0
"""... unless it took so long that nothing follows."""
GAIN = 0.9
"""All threads are used only where they need less than this share of one thread's time: other programs need cores."""
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
    """Makes torch.compile store its code in the user's cache folder, which outlives a restart of the machine.

    By default torch takes the folder for temporary files, and sets TORCHINDUCTOR_CACHE_DIR to it; what a user has set
    there counts.
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
    """Context in which each operation on the CPU has `count` threads, without trials of other numbers."""
    global _threads_are_fixed
    before = torch.get_num_threads(), _threads_are_fixed
    torch.set_num_threads(count)
    _threads_are_fixed = True
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _threads_are_fixed = before[1]


def threads_are_fixed() -> bool:
    """Whether the number of threads is fixed, by the user or by trials."""
    return _threads_are_fixed


def computes_in_bf16() -> bool:
    """Whether the CPU multiplies matrices of 16-bit floats by instructions of its own."""
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public ones
    return any(getattr(torch.cpu, query, lambda: False)() for query in queries)


def fastest_threads(work: Callable[[], object]) -> int:
    """Times some work with one thread and with all that torch has; on a busy machine one is often faster."""
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


# Several processes that work together, as torchrun starts them.

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes that torchrun started, and the place of this one among them; a single one without torchrun."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def wait_for_main(self) -> None:
        """A barrier behind work that the main process does alone; an ordinary one gives up after ten minutes (NCCL)."""
        if self.size > 1:
            patient: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(days=30))  # type: ignore[assignment]
            dist.barrier(patient)

    def agree(self, decision: bool, device: torch.device) -> bool:
        """The decision of the main process."""
        return self.any(decision and self.main, device=device)[0]

    def any(self, *flags: bool, device: torch.device) -> list[bool]:
        """For each flag, whether any process has set it."""
        if self.size == 1:
            return list(flags)
        together = torch.tensor(flags, dtype=torch.int64, device=device)
        dist.all_reduce(together, dist.ReduceOp.MAX)
        return [bool(flag) for flag in together.tolist()]

    @property
    def part(self) -> tuple[int, int]:
        """The share of this process in common work: its number, and the number of processes."""
        return self.rank, self.size

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, those of the first one first."""
        if self.size == 1:
            return items
        parts = [list[T]() for _ in range(self.size)]
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def mean(self, values: Tensor) -> Tensor:
        """The elementwise mean over the processes; it does not depend on which values are reduced together."""
        if self.size == 1:
            return values
        rows = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(rows, values)
        return torch.stack(rows).mean(0)


def join_world(device: torch.device) -> World:
    """Joins the processes that torchrun started; alone where it did not."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    if not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
            # torchrun keeps its store when it restarts processes, and with it the addresses of those that died. On
            # several nodes its count of restarts differs (pytorch issue 135712), so there docs/scale.md has a setting.
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        facts: dict[str, Any] = {"store": store, "rank": rank, "world_size": size}
        if device.type == "cuda":
            # A barrier before any other collective must know the GPU, or all processes take the first one for it.
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device, **facts)
        else:
            dist.init_process_group("gloo", **facts)
    return World(dist.get_rank(), dist.get_world_size())
