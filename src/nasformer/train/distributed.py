"""Gradients of several processes that train one model.

With the same arch in all processes, which is how they sample unless asked otherwise, they have the same gradients: only
these are reduced, in one flat buffer, and no process waits for weights that the arch does not use.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from nasformer.utils.device import World, join_world

__all__ = ["World", "join_world", "reduce_gradients"]


def reduce_gradients(model: nn.Module, world: World, same: bool = True) -> None:
    """Replaces every gradient by its mean over the processes.

    Args:
        same: Whether all processes have gradients of the same weights. Otherwise one that a process lacks counts as 0,
            and weights without a gradient in any process stay so.
    """
    if world.size == 1:
        return
    if not same:
        fill_gradients(model)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= world.size
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))


def fill_gradients(model: nn.Module) -> None:
    """Gives weights that have a gradient in another process one of 0."""
    parameters = list(model.parameters())
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int64, device=parameters[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX)
    for parameter, anywhere in zip(parameters, used.tolist(), strict=True):
        if anywhere and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
