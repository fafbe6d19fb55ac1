"""Stochastic depth with its rate in a tensor, so that one compiled block serves every depth of the net."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Drops a residual branch for whole samples in training, and scales the others to keep the mean.

    The rate grows with depth, so blocks of the same shape differ in it. As a tensor it is an input of a compiled graph
    and not a constant in it: 14 blocks of 2 shapes stay 2 graphs.
    """

    rate: Tensor

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(float(rate)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.rate
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = (torch.rand(shape, device=x.device) < keep).to(x.dtype)
        return x * (mask / keep).to(x.dtype)


def set_drop_path(layer: nn.Module, rate: float) -> None:
    """Sets the rate of all residual branches of a layer."""
    for module in layer.modules():
        if isinstance(module, DropPath):
            module.rate.fill_(rate)
