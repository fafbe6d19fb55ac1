"""Attention maps of a block: the weights of all its heads on the map, and statistics of the heads.

Blocks are numbered as papers count them: "3.7" is block 7 of stage 3, "7" the seventh of a net without stages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nasformer.errors import UserError
from nasformer.layers.attention import RelativeAttention, SelfAttention
from nasformer.layers.resnet import ORDERS, AxisAttention, LocalOperator, tiled
from nasformer.layers.stem import Grid
from nasformer.layers.window import WindowAttention
from nasformer.models.base import Backbone, TokenBackbone
from nasformer.models.storage import input_shape
from nasformer.report.style import BLUES, GREY, INK, RED, new_figure, plain

# Attention weights of single layers: recorded from fused attention, and laid on the layer's map.
#
# The layers call `scaled_dot_product_attention`, which never returns its weights. While a layer runs once more, a mode
# of torch records the arguments of these calls, from which the weights follow; training and inference stay as they are.


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
    """The inputs of each of the layers when the model sees these images."""
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
    """Context with a module in evaluation mode; afterwards each of its parts has its own mode again."""
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
    raise NotImplementedError(f"register {type(layer).__name__} with grouped_weights in report/attention.py")


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


Query = tuple[int, int] | Literal["cls"]

# Blocks


def attention_blocks(model: Backbone) -> list[str]:
    """The blocks that have attention, in the order of the net.

    >>> import nasformer
    >>> space = nasformer.get_space("s3-micro")
    >>> attention_blocks(space.build(space.root.smallest()))
    ['1.1', '2.1', '3.1', '4.1']
    """
    return [block for block, name in numbered_blocks(model).items() if attention_layers(model.get_submodule(name))]


def numbered_blocks(model: Backbone) -> dict[str, str]:
    """All blocks: the name of the segment by the number of the block."""
    return {block_number(name): name for name in model.segment_names if re.search(r"\bblocks\.\d+$", name)}


def block_number(name: str) -> str:
    """The number that papers give a block.

    >>> block_number("stages.2.blocks.6"), block_number("blocks.6")
    ('3.7', '7')
    """
    return ".".join(str(int(part) + 1) for part in name.split(".") if part.isdigit())


def attention_layers(block: nn.Module) -> dict[str, nn.Module]:
    """The attention layers of a block by name: one, or two of axial attention."""
    layers = [(name, layer) for name, layer in block.named_modules() if isinstance(layer, ATTENTION_LAYERS)]
    return {name.rpartition(".")[2]: layer for name, layer in layers}


def find_block(model: Backbone, block: str) -> str:
    """The name of a block's segment; an error if there is no such block, or if it has no attention."""
    blocks, attending = numbered_blocks(model), attention_blocks(model)
    if block in attending:
        return blocks[block]
    if not attending:
        raise UserError("no block of this model has attention; give a model with attention")
    if block in blocks:
        raise UserError(f"block {block!r} has no attention; these have: {', '.join(attending)}")
    some = f"; with attention: {', '.join(attending)}" if len(attending) < len(blocks) else ""
    raise UserError(f"block {block!r} does not exist; there are: {', '.join(blocks)}{some}")


# Maps


class Head(NamedTuple):
    """A head by its number, from 1, and by its axis where a block attends along two."""

    number: int
    axis: str = ""

    def __str__(self) -> str:
        return f"{self.axis} {self.number}".strip()


class HeadPair(NamedTuple):
    """The similarity of two heads."""

    first: Head
    second: Head
    similarity: float


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of a block's heads on each of a batch of images.

    Attributes:
        block: Its number, such as "3.7".
        grid: Rows and columns of the map on which it attends.
        heads: Its heads; of axial attention those along the height, then those along the width.
        class_token: Whether number 0 of `weights` is a class token. Otherwise it is padding, which has no query.
        weights: [images, heads, queries, keys]. Position (row, column) of the map has the number
            ``1 + row * columns + column``; over the keys, the weights of a query add up to 1.
    """

    block: str
    grid: Grid
    heads: tuple[Head, ...]
    class_token: bool
    weights: Tensor

    @property
    def queries(self) -> Tensor:
        """The weights of all queries: those of the class token first, if there is one."""
        return self.weights if self.class_token else self.weights[:, :, 1:]

    def of(self, query: Query) -> Tensor:
        """The map of each head for one query, a position or "cls": [images, heads, rows, columns]."""
        return self.weights[:, :, self.query_number(query), 1:].unflatten(2, self.grid)

    def query_number(self, query: Query) -> int:
        rows, columns = self.grid
        if query == "cls":
            if not self.class_token:
                raise UserError("this model has no class token; give the query as row,column")
            return 0
        row, column = query
        if not (0 <= row < rows and 0 <= column < columns):
            ends = f"rows 0 to {rows - 1} and columns 0 to {columns - 1}"
            raise UserError(f"the query {row},{column} is outside the map of block {self.block}, which has {ends}")
        return 1 + row * columns + column

    def entropy(self) -> Tensor:
        """Entropy of each head in bits: 0 for attention to one position, log2(n) to n alike; mean of all queries."""
        return -torch.xlogy(self.queries, self.queries).sum(-1).mean((0, 2)) / math.log(2)

    def distance(self) -> Tensor:
        """How far away each head attends: the mean distance on the map in positions, weighted by attention."""
        rows, columns = (torch.arange(side, dtype=torch.float, device=self.weights.device) for side in self.grid)
        positions = torch.cartesian_prod(rows, columns)
        weights = self.weights[:, :, 1:, 1:]
        means = (weights * torch.cdist(positions, positions)).sum(-1) / weights.sum(-1).clamp(min=1e-12)
        return means.mean((0, 2))

    def elsewhere(self) -> Tensor:
        """The share of each head's attention on the class token, or on padding."""
        return self.queries[..., 0].mean((0, 2))

    def similarity(self) -> Tensor:
        """Cosine of the attention of two heads for a query, mean over queries and images: [heads, heads]."""
        directions = F.normalize(self.queries, dim=-1)
        count = self.queries.shape[0] * self.queries.shape[2]
        return torch.einsum("nhqk,ngqk->hg", directions, directions) / count

    def pairs(self) -> list[HeadPair]:
        """All pairs of heads, the most similar first; without those along different axes, which can hardly be alike."""
        matrix = self.similarity().tolist()
        pairs = [
            HeadPair(self.heads[i], self.heads[j], matrix[i][j])
            for i, j in combinations(range(len(self.heads)), 2)
            if self.heads[i].axis == self.heads[j].axis
        ]
        return sorted(pairs, key=lambda pair: -pair.similarity)

    def mean_similarity(self) -> float | None:
        """Mean of all pairs; None where there is one head."""
        pairs = self.pairs()
        return sum(pair.similarity for pair in pairs) / len(pairs) if pairs else None


@torch.no_grad()
def attention_maps(model: Backbone, images: Tensor, block: str) -> AttentionMaps:
    """The attention of a block's heads on a batch of images, exactly as the model computes it.

    The weights are [images, heads, positions, positions], so mind the memory on large maps.

    Args:
        images: As the model wants them: [images, channels, rows, columns], normalised.
        block: "3.7" is block 7 of stage 3; "7" is the seventh of a net without stages.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> maps = nasformer.attention_maps(space.build(space.root.smallest()), torch.randn(1, 3, 32, 32), block="2")
    >>> maps.of((0, 0)).shape, maps.of("cls").shape  # 2 heads on a map of 8 x 8
    (torch.Size([1, 2, 8, 8]), torch.Size([1, 2, 8, 8]))
    >>> [str(head) for head in maps.heads], maps.similarity().shape
    (['1', '2'], torch.Size([2, 2]))
    """
    name, shape = find_block(model, block), input_shape(model)
    if images.shape[1:] != shape:
        wanted = " x ".join(map(str, shape))
        raise UserError(f"images are {tuple(images.shape)}, but this model wants a batch of {wanted} (channels first)")
    grid, layers = grid_of(model, name), attention_layers(model.get_submodule(name))
    calls = record_calls(model, list(layers.values()), images.to(next(model.parameters()).device))
    parts = []
    for layer, made in zip(layers.values(), calls, strict=True):
        weights = torch.cat([call.weights for call in made])  # local attention takes few images at a time
        parts.append(grouped_weights(layer, weights, grid).on_map(grid))
    axes = layers if len(layers) > 1 else [""]
    heads = [Head(number + 1, axis) for axis, part in zip(axes, parts, strict=True) for number in range(part.shape[1])]
    weights = torch.cat(parts, 1)
    class_token = isinstance(model, TokenBackbone) and model.options.get("class_token", True)
    if not class_token:
        weights[:, :, 0] = 0  # padding has queries as well, but their output is cut off
    return AttentionMaps(block, grid, tuple(heads), class_token, weights)


def grid_of(model: Backbone, name: str) -> Grid:
    """Rows and columns of the map that a block attends on."""
    segment = next(segment for segment in model.plan(model.arch, **model.options) if segment.name == name)
    grid: Grid = dict(segment.options)["grid"]  # type: ignore[assignment]
    return grid


# A figure of a block's attention: the image, the attention of each head on it, and the similarity of the heads.

COLUMNS = 5  # most maps beside each other
PANEL = 1.5  # inches of a map, its title included
NUMBERED = 12  # heads up to which the similarities stand in the cells
MAX_OPACITY = 0.85  # of the colour over the image, at the largest weight


def attention_figure(maps: AttentionMaps, image: Tensor, query: Query) -> Figure:
    """The maps of the first image for a query, marked with +, each on its own scale; beside them the similarities.

    Args:
        image: [channels, rows, columns] in 0..1.
    """
    heads = maps.of(query)[0].cpu().numpy()
    columns = min(COLUMNS, len(heads) + 1)
    rows = -(-(len(heads) + 1) // columns)
    matrix = min(0.28 * len(heads) + 1.2, 5.0)
    figure = new_figure(PANEL * columns + matrix + 0.3, max(PANEL * rows * 1.15, matrix) + 0.7)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(PANEL * columns, matrix + 0.3)).flat
    panels = left.subplots(rows, columns, squeeze=False).flat
    draw_image(panels[0], grey(image), maps.grid, query, "image")
    for axes, head, weights in zip(panels[1:], maps.heads, heads, strict=False):
        draw_image(axes, grey(image), maps.grid, query, f"{head} · {weights.max():.2f}")
        axes.imshow(tinted(weights), extent=extent(maps.grid), interpolation="nearest", zorder=2)
    for axes in panels:
        axes.set_axis_off()
    draw_similarity(right.subplots(), maps)
    figure.suptitle(plain(title(maps, query)), color=INK, fontsize=11)
    return figure


def title(maps: AttentionMaps, query: Query) -> str:
    source = "the class token" if query == "cls" else f"row {query[0]}, column {query[1]}"
    return f"block {maps.block}: where each head looks from {source} (head · its largest weight)"


def draw_image(axes: Axes, image: np.ndarray, grid: Grid, query: Query, name: str) -> None:
    """The image in grey with a + at the query."""
    axes.imshow(image, extent=extent(grid), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(plain(name), color=INK, fontsize=9, pad=3)
    if query != "cls":
        row, column = query
        rim = [withStroke(linewidth=3.2, foreground="white")]
        axes.plot([column], [row], "+", ms=9, mew=1.6, color=INK, path_effects=rim, zorder=3, clip_on=False)


def extent(grid: Grid) -> tuple[float, float, float, float]:
    """Left, right, bottom and top: the middle of a position is at its column and row."""
    return -0.5, grid[1] - 0.5, grid[0] - 0.5, -0.5


def grey(image: Tensor) -> np.ndarray:
    """The image in pale grey, so that colour means attention."""
    colours = image[:3] if image.shape[0] > 2 else image[:1]
    return 0.35 + 0.65 * colours.mean(0).cpu().numpy()


def tinted(weights: np.ndarray) -> np.ndarray:
    """A colour whose opacity goes by the weight."""
    layer = np.empty((*weights.shape, 4))
    layer[..., :3] = to_rgb(RED)
    layer[..., 3] = MAX_OPACITY * weights / max(weights.max(), 1e-12)
    return layer


def draw_similarity(axes: Axes, maps: AttentionMaps) -> None:
    matrix, size = maps.similarity().cpu().numpy(), len(maps.heads)
    axes.imshow(matrix, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    names = [plain(str(head)) for head in maps.heads]
    axes.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(range(size), names)
    axes.tick_params(colors=GREY, labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    mean = maps.mean_similarity()
    title = "similarity of heads" + ("" if mean is None else f", mean {mean:.2f}")
    axes.set_title(title, color=INK, fontsize=9, pad=6)
    if size <= NUMBERED:
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.4 else INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
