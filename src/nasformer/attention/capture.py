"""What fused attention was given while one layer ran, from which its weights are computed again.

Layers know nothing of it: a mode of torch listens to `scaled_dot_product_attention` while it is on, so training and
inference stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import singledispatch
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nasformer.layers.attention import RelativeAttention, SelfAttention
from nasformer.layers.local_attention import tiled
from nasformer.layers.resnet import ORDERS, AxisAttention, LocalOperator
from nasformer.layers.stem import Grid
from nasformer.layers.window import WindowAttention

# ----------------------------------------------------------------------------------------------------------------------
# Where on the map the queries and keys of an attention lie, whatever groups they were put in.
#
# A layer cuts its map into windows, tiles or lines before it attends. Here a map of *numbers* goes the same way, so
# each
# query and each key tells its place: positions have the numbers 1, 2, 3 ... row by row, and what lies on no map has the
# number 0: the class token, or padding.
# ----------------------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """Attention of groups (windows, tiles, lines of a map) with the places of those who take part.

    Attributes:
        weights: [images, groups, heads, queries, keys].
        queries: [groups, queries], the numbers of their positions.
        keys: [groups, keys], likewise.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor

    def on_map(self, grid: Grid) -> Tensor:
        """[images, heads, 1 + positions, 1 + positions], by the numbers of query and key."""
        side = grid[0] * grid[1] + 1
        pairs = self.queries[:, :, None] * side + self.keys[:, None, :]
        images, _, heads = self.weights.shape[:3]
        whole = self.weights.new_zeros(images, heads, side * side)
        return whole.index_add(2, pairs.flatten(), self.weights.transpose(1, 2).flatten(2)).unflatten(2, (side, side))


def numbers(grid: Grid, device: torch.device) -> Tensor:
    """[rows, columns], counted from 1."""
    return torch.arange(1, grid[0] * grid[1] + 1, device=device).unflatten(0, grid)


@singledispatch
def placed(layer: nn.Module, weights: Tensor, grid: Grid) -> Placed:
    """The weights of a layer's fused attention, in groups and with their places on the layer's map.

    >>> layer = AxisAttention(in_dim=4, query_dim=4, value_dim=4, num_heads=2, axis="width")
    >>> found = placed(layer, torch.rand(6, 2, 3, 3), grid=(2, 3))
    >>> found.weights.shape, found.keys.tolist()  # 3 images of 2 rows
    (torch.Size([3, 2, 2, 3, 3]), [[1, 2, 3], [4, 5, 6]])
    """
    raise NotImplementedError(f"add to attention/places.py where {type(layer).__name__} looks")


@placed.register
def _(layer: RelativeAttention, weights: Tensor, grid: Grid) -> Placed:
    tokens = torch.arange(grid[0] * grid[1] + 1, device=weights.device)[None]  # the class token comes first
    return Placed(weights[:, None], tokens, tokens)


@placed.register
def _(layer: SelfAttention, weights: Tensor, grid: Grid) -> Placed:
    tokens = numbers(grid, weights.device).view(1, -1)
    return Placed(weights[:, None], tokens, tokens)


@placed.register
def _(layer: WindowAttention, weights: Tensor, grid: Grid) -> Placed:
    windows = layer.windows(numbers(grid, weights.device)[None, :, :, None])[0, :, :, 0]
    return Placed(weights.unflatten(1, (-1, layer.num_heads)), windows, windows)


@placed.register
def _(layer: LocalOperator, weights: Tensor, grid: Grid) -> Placed:
    both = tiled(numbers(grid, weights.device)[None, None, None], layer.window)
    queries, keys = (part[0, 0, :, :, 0] for part in both)
    return Placed(weights.unflatten(1, (layer.num_heads, -1)).transpose(1, 2), queries, keys)


@placed.register
def _(layer: AxisAttention, weights: Tensor, grid: Grid) -> Placed:
    lines = numbers(grid, weights.device)[None, None, None].permute(ORDERS[layer.axis])[0, :, 0, :, 0]
    return Placed(weights.unflatten(0, (-1, len(lines))), lines, lines)


KINDS = tuple(kind for kind in placed.registry if kind is not object)
"""The layers that attend."""


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
