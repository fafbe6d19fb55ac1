"""What fused attention was given while one layer ran, from which its weights are computed again.

Layers know nothing of it: a mode of torch listens to `scaled_dot_product_attention` while it is on, so training and
inference stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Call(NamedTuple):
    """One call of fused attention: its arguments and what it gave."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    output: Tensor

    @property
    def weights(self) -> Tensor:
        """How much each query attends to each key: [..., queries, keys]; ``weights @ value`` is the output."""
        products = self.query.float() @ self.key.float().mT * self.scale
        return (products if self.mask is None else products + self.mask).softmax(-1)


class Listener(TorchFunctionMode):
    """While it is on, keeps every call of fused attention.

    >>> with Listener() as listener:
    ...     output = F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))
    >>> (call,) = listener.calls
    >>> call.weights.shape, torch.allclose(call.weights @ call.value, output, atol=1e-6)
    (torch.Size([1, 2, 4, 4]), True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.calls.append(as_call(output, *args, **(kwargs or {})))
        return output


def as_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Call:
    """The arguments of fused attention by name; dropout is none, since models are evaluated here."""
    return Call(query, key, value, attn_mask, query.shape[-1] ** -0.5 if scale is None else scale, output)


@torch.no_grad()
def captured(model: nn.Module, layers: Sequence[nn.Module], images: Tensor) -> list[list[Call]]:
    """The calls of fused attention in each of the layers, for a batch of images. The model is as before afterwards."""
    calls: list[list[Call]] = []
    for layer, inputs in zip(layers, inputs_of(model, layers, images), strict=True):
        with evaluated(layer), Listener() as listener:
            layer(*inputs)
        calls.append(listener.calls)
    return calls


def inputs_of(model: nn.Module, layers: Sequence[nn.Module], images: Tensor) -> list[tuple[Any, ...]]:
    """What each of the layers is given when the model sees these images."""
    found: dict[nn.Module, tuple[Any, ...]] = {}
    handles = [layer.register_forward_pre_hook(found.__setitem__) for layer in layers]
    try:
        with evaluated(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return [found[layer] for layer in layers]


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards each module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
