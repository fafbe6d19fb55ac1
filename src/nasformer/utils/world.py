"""Several processes that work together, as torchrun starts them: who am I, and what do the others have?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among the others; started by torchrun, or alone."""

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
        """What the main process has decided."""
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
        """This process's part of work that all share: its number, and how many there are."""
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
        """The mean over the processes, number by number, whichever numbers are asked for together."""
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
