"""Watching layers at work: what went into them and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn


class Seen(NamedTuple):
    """One call of a layer; input and output are part of the autograd graph."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@contextmanager
def watch(model: nn.Module, wanted: Callable[[str, nn.Module], bool]) -> Iterator[list[Seen]]:
    """Yields a list that fills up with the calls of the wanted layers, in the order of execution.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with watch(net, lambda name, module: isinstance(module, nn.ReLU)) as seen:
    ...     _ = net(torch.ones(1, 2))
    >>> [call.name for call in seen], seen[0].output.shape
    (['1'], torch.Size([1, 3]))
    """
    seen: list[Seen] = []

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: seen.append(Seen(name, module, inputs[0], output))

    handles = [
        module.register_forward_hook(hook_for(name)) for name, module in model.named_modules() if wanted(name, module)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
