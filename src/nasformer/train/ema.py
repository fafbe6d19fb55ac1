"""A moving average of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MovingAverage:
    """Keeps ``average = decay * average + (1 - decay) * weight`` for every weight of a model, and for statistics.

    Early on the decay is lower, so that the random start is forgotten: (1 + step) / (10 + step) at most.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.clone() for name, tensor in averaged(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(averaged(model).values()), 1 - decay)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        for name, tensor in averaged(model).items():
            tensor.copy_(self.tensors[name])


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """Weights and the running statistics of batch norm; its count of batches is no number to average."""
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
