"""Several processes that train one model: who am I, and the mean of the gradients that exist.

All processes sample the same arch by construction, so they have the same gradients: only these are reduced, in one
flat buffer, and no process waits for weights that the arch does not use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn


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
        """A barrier behind work that the main process does alone; an ordinary one gives up after some minutes."""
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
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size())


def reduce_gradients(model: nn.Module, world: World) -> None:
    """Replaces every gradient by its mean over the processes."""
    if world.size == 1:
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= world.size
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
