"""Attention weights of single layers: recorded from fused attention, and laid on the layer's map.

The layers hand everything to `scaled_dot_product_attention`, which never shows its weights. While a layer runs once
more, a mode of torch records what that function is given, from which the weights follow; so training and inference
stay as they are.
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

from nasformer.layers.attention import RelativeAttention, SelfAttention, tiled
from nasformer.layers.resnet import ORDERS, AxisAttention, LocalOperator
from nasformer.layers.stem import Grid
from nasformer.layers.window import WindowAttention

# Calls of fused attention


class Call(NamedTuple):
    """One call of fused attention: its arguments and its output."""

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


class Recorder(TorchFunctionMode):
    """Records every call of fused attention while it is on.

    >>> with Recorder() as recorder:
    ...     output = F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))
    >>> (call,) = recorder.calls
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
def record_calls(model: nn.Module, layers: Sequence[nn.Module], images: Tensor) -> list[list[Call]]:
    """The calls of fused attention in each of the layers, for a batch of images. The model is as before afterwards."""
    calls: list[list[Call]] = []
    for layer, inputs in zip(layers, inputs_of(model, layers, images), strict=True):
        with evaluation_mode(layer), Recorder() as recorder:
            layer(*inputs)
        calls.append(recorder.calls)
    return calls


def inputs_of(model: nn.Module, layers: Sequence[nn.Module], images: Tensor) -> list[tuple[Any, ...]]:
    """What each of the layers is given when the model sees these images."""
    inputs: dict[nn.Module, tuple[Any, ...]] = {}
    handles = [layer.register_forward_pre_hook(inputs.__setitem__) for layer in layers]
    try:
        with evaluation_mode(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return [inputs[layer] for layer in layers]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Afterwards each module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# Positions. A layer cuts its map into windows, tiles or lines before it attends. Here a map of *numbers* is cut in the
# same way, so each query and each key tells its position: 1, 2, 3 ... row by row, and 0 for what lies on no map: the
# class token, or padding.


class GroupedWeights(NamedTuple):
    """Attention within groups (windows, tiles, lines of a map), with the positions of queries and keys.

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


def numbered_map(grid: Grid, device: torch.device) -> Tensor:
    """The numbers of all positions: [rows, columns], counted from 1."""
    return torch.arange(1, grid[0] * grid[1] + 1, device=device).unflatten(0, grid)


@singledispatch
def grouped_weights(layer: nn.Module, weights: Tensor, grid: Grid) -> GroupedWeights:
    """The weights of a layer's fused attention, in groups and with their positions on the layer's map.

    >>> layer = AxisAttention(in_dim=4, query_dim=4, value_dim=4, num_heads=2, axis="width")
    >>> found = grouped_weights(layer, torch.rand(6, 2, 3, 3), grid=(2, 3))
    >>> found.weights.shape, found.keys.tolist()  # 3 images of 2 rows
    (torch.Size([3, 2, 2, 3, 3]), [[1, 2, 3], [4, 5, 6]])
    """
    raise NotImplementedError(f"register {type(layer).__name__} with grouped_weights in attention/capture.py")


@grouped_weights.register
def _(layer: RelativeAttention, weights: Tensor, grid: Grid) -> GroupedWeights:
    tokens = torch.arange(grid[0] * grid[1] + 1, device=weights.device)[None]  # the class token comes first
    return GroupedWeights(weights[:, None], tokens, tokens)


@grouped_weights.register
def _(layer: SelfAttention, weights: Tensor, grid: Grid) -> GroupedWeights:
    tokens = numbered_map(grid, weights.device).view(1, -1)
    before = weights.shape[-1] - tokens.shape[-1]
    if before:  # the class token, number 0, and registers, which are nowhere on the map
        tokens = torch.cat([tokens.new_zeros(1, 1), tokens], 1)
        kept = torch.cat([torch.arange(1), torch.arange(before, weights.shape[-1])]).to(weights.device)
        weights = weights[..., kept, :][..., kept]
    return GroupedWeights(weights[:, None], tokens, tokens)


@grouped_weights.register
def _(layer: WindowAttention, weights: Tensor, grid: Grid) -> GroupedWeights:
    windows = layer.windows(numbered_map(grid, weights.device)[None, :, :, None])[0, :, :, 0]
    return GroupedWeights(weights.unflatten(1, (-1, layer.num_heads)), windows, windows)


@grouped_weights.register
def _(layer: LocalOperator, weights: Tensor, grid: Grid) -> GroupedWeights:
    both = tiled(numbered_map(grid, weights.device)[None, None, None], layer.window)
    queries, keys = (part[0, 0, :, :, 0] for part in both)
    return GroupedWeights(weights.unflatten(1, (layer.num_heads, -1)).transpose(1, 2), queries, keys)


@grouped_weights.register
def _(layer: AxisAttention, weights: Tensor, grid: Grid) -> GroupedWeights:
    lines = numbered_map(grid, weights.device)[None, None, None].permute(ORDERS[layer.axis])[0, :, 0, :, 0]
    return GroupedWeights(weights.unflatten(0, (-1, len(lines))), lines, lines)


ATTENTION_LAYERS = tuple(layer for layer in grouped_weights.registry if layer is not object)
