"""Importance of a pretrained net's heads and neurons, and the net sorted by it, so that every prefix keeps the best.

Slices of a supernet are prefixes. In a pretrained net the order of heads and neurons means nothing, so they are
permuted: the outputs stay the same, and what a smaller member keeps are the most important ones. A measure of
importance is a function of the model and some batches; `register_importance` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet

Labelled = tuple[Any, Any]
"""Images and their targets: labels or soft targets (None where there are none), or those of another task."""
BatchLoss = Callable[[nn.Module, Any, Any], Tensor]
"""The loss of a model on a batch."""


@dataclass(frozen=True)
class Units:
    """The heads of an attention layer, or the neurons of an MLP.

    Args:
        name: The layer's name in the model.
        count: How many there are.
        width: How many inputs of `reader` each has: the width of a head, 1 for a neuron.
        writer: The linear layer whose outputs they are, `parts` for each (q, k and v; gate and value).
        reader: The linear layer whose inputs they are.
        tables: Further parameters with an entry for each of them.
    """

    name: str
    count: int
    width: int
    parts: int
    writer: nn.Linear
    reader: nn.Linear
    tables: tuple[nn.Parameter, ...] = ()

    def by_unit(self, inputs: Tensor) -> Tensor:
        """The inputs of the reader, [..., units, width]."""
        return inputs.unflatten(-1, (self.count, self.width))

    @torch.no_grad()
    def permute(self, order: Tensor) -> None:
        """Puts the units into another order, in all weights that write or read them."""
        for weight in (w for w in (self.writer.weight, self.writer.bias) if w is not None):
            units = weight.unflatten(0, (self.parts, self.count, self.width))
            weight.copy_(units[:, order].flatten(0, 2))
        columns = self.reader.weight.unflatten(1, (self.count, self.width))
        self.reader.weight.copy_(columns[:, order].flatten(1))
        for table in self.tables:
            table.copy_(table[order])


def find_units(model: nn.Module) -> list[Units]:
    """Every layer of heads or neurons in a model: those with `qkv` and `proj`, and those with `fc1` and `fc2`."""
    units = []
    for name, layer in model.named_modules():
        if hasattr(layer, "qkv") and hasattr(layer, "proj"):
            tables = (layer.positions,) if hasattr(layer, "positions") else ()  # Swin's: a table a head
            heads = layer.proj.in_features // layer.head_dim
            units.append(Units(name, heads, layer.head_dim, 3, layer.qkv, layer.proj, tables))
        elif isinstance(getattr(layer, "fc1", None), nn.Linear) and isinstance(getattr(layer, "fc2", None), nn.Linear):
            neurons = layer.fc2.in_features
            units.append(Units(name, neurons, 1, layer.fc1.out_features // neurons, layer.fc1, layer.fc2))
    return units


Measure = Callable[[nn.Module, Sequence[Units], Iterable[Labelled], BatchLoss], list[Tensor]]
"""From a model, its units, batches and their loss to the importance of each unit."""
_measures: dict[str, Measure] = {}


def register_importance(name: str) -> Callable[[Measure], Measure]:
    """Decorator that registers a measure of importance under a name."""

    def register(measure: Measure) -> Measure:
        if _measures.setdefault(name, measure) is not measure:
            raise UserError(f"there is another measure of importance named {name!r}; give yours another name")
        return measure

    return register


def list_importances() -> dict[str, str]:
    """The measures of importance by name, with the first line of their docstrings."""
    return {name: (measure.__doc__ or "").splitlines()[0] for name, measure in _measures.items()}


def find_importance(name: str) -> Measure:
    """The measure of this name."""
    if name not in _measures:
        raise UserError(f"unknown measure of importance {name!r}; there are: {', '.join(_measures)}")
    return _measures[name]


def sort_by_importance(
    model: nn.Module, batches: Iterable[Labelled], measure: str = "gate", loss: BatchLoss | None = None
) -> dict[str, Tensor]:
    """Sorts heads and neurons in place, the most important first; returns the importances, sorted, by layer.

    The model computes the same as before.

    Args:
        loss: Of the model's task; None: that of a classifier.
    """
    units, training = find_units(model), model.training
    scores = find_importance(measure)(model.eval(), units, batches, loss or class_loss)
    model.train(training)
    sorted_scores = {}
    for unit, score in zip(units, scores, strict=True):
        order = score.argsort(descending=True, stable=True)
        unit.permute(order)
        sorted_scores[unit.name] = score[order].cpu()
    return sorted_scores


# Channels of the embedding


def sort_channels(model: Backbone, batches: Iterable[Labelled], loss: BatchLoss | None = None) -> Tensor:
    """Sorts the channels of the embedding in place, the most important first; returns the importances, sorted.

    For spaces whose embedding is elastic. The model computes the same as before.
    """
    axes, training = embedding_axes(model), model.training
    scores = channel_importance(model.eval(), batches, loss or class_loss)
    model.train(training)
    order = scores.argsort(descending=True, stable=True)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, axis in axes.items():
            part = weights[name].narrow(axis, weights[name].shape[axis] - len(order), len(order))
            part.copy_(part.index_select(axis, order))
    return scores[order].cpu()


def embedding_axes(model: Backbone) -> dict[str, int]:
    """Which axis of each weight is the embedding: the one that is narrower in a narrower net.

    Other inputs may stand before it, such as the coordinates that the head for questions reads.
    """
    axes = dict[str, int]()
    narrow = Arch.from_dict({**model.arch.to_dict(), "embed_dim": model.arch.embed_dim - 1})
    with torch.device("meta"):
        other = dict(type(model)(narrow, **model.options).named_parameters())
    for name, weight in model.named_parameters():
        changed = [axis for axis, size in enumerate(weight.shape) if size != other[name].shape[axis]]
        if len(changed) > 1 or any(weight.shape[axis] - other[name].shape[axis] != 1 for axis in changed):
            raise UserError(f"the embedding of {model.family} cannot be sorted; leave its width as it is")
        if changed:
            axes[name] = changed[0]
    return axes


def channel_importance(model: Backbone, batches: Iterable[Labelled], loss: BatchLoss) -> Tensor:
    """How much the loss would change if a channel were scaled wherever it is read: the root mean square over images.

    Where there are no labels, the model's own top class stands for them.
    """
    readers = [unit.writer for unit in find_units(model)] + [getattr(model.head, "fc", nn.Identity())]
    layers = [layer for layer in readers if getattr(layer, "in_features", 0) == model.arch.embed_dim]
    total = torch.zeros(model.arch.embed_dim, device=next(model.parameters()).device)
    for images, products in gradient_products(model, layers, batches, loss):
        change = torch.zeros(images, len(total), device=total.device)
        for _, product in products:
            change += product.float().reshape(images, -1, len(total)).sum(1)
        total += change.square().sum(0)
    return total.sqrt()


def gradient_products(
    model: nn.Module, layers: Sequence[nn.Module], batches: Iterable[Labelled], loss: BatchLoss
) -> Iterator[tuple[int, Iterator[tuple[int, Tensor]]]]:
    """For each batch its images, and the products of each layer's input and its gradient, by the layer's number.

    A product summed over an image is what the loss changes by if the input is scaled. Layers that the loss does not
    depend on are left out.
    """
    for images, labels in batches:
        with recorded_inputs(layers, keep_gradients=True) as inputs, torch.enable_grad():
            loss(model, images, labels).backward()
        pairs = [(number, x, x.grad) for number, x in enumerate(inputs) if x is not None]
        yield len(images), ((number, x.detach() * grad) for number, x, grad in pairs if grad is not None)
        model.zero_grad(set_to_none=True)


def class_loss(model: nn.Module, images: Any, labels: Any) -> Tensor:
    """The cross-entropy summed over images; without labels, the model's own top classes stand for them."""
    logits = model(images)
    return F.cross_entropy(logits.float(), logits.detach().argmax(-1) if labels is None else labels, reduction="sum")


# Measures


@register_importance("gate")
def gate_gradient(
    model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled], loss: BatchLoss = class_loss
) -> list[Tensor]:
    """How much the loss would change if a unit were scaled: the root mean square over images of that gradient.

    Where there are no labels, the model's own top class stands for them.
    """
    totals = [torch.zeros(unit.count, device=unit.reader.weight.device) for unit in units]
    readers = [unit.reader for unit in units]
    for images, products in gradient_products(model, readers, batches, loss):
        for number, product in products:
            change = units[number].by_unit(product).sum(-1).reshape(images, -1, units[number].count)
            totals[number] += change.sum(1).float().square().sum(0)
    return [total.sqrt() for total in totals]


@register_importance("activation")
def activation_norm(
    model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled], loss: BatchLoss
) -> list[Tensor]:
    """How large the outputs of a unit are, in the root mean square over tokens; no labels are needed."""
    return [norms.square().sum(-1).sqrt() for norms in input_norms(model, units, batches)]


@register_importance("wanda")
def weighted_activation(
    model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled], loss: BatchLoss
) -> list[Tensor]:
    """Outputs of a unit times the weights that read them (Sun et al. 2024, summed by unit); no labels are needed."""
    norms = input_norms(model, units, batches)
    read = [unit.by_unit(unit.reader.weight.detach().abs()) for unit in units]
    return [(weights.sum(0) * norm).sum(-1) for weights, norm in zip(read, norms, strict=True)]


@register_importance("magnitude")
def weight_magnitude(
    model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled], loss: BatchLoss
) -> list[Tensor]:
    """Norms of the weights that write and read a unit, multiplied; neither labels nor images are needed."""
    scores = []
    for unit in units:
        written = unit.writer.weight.detach().unflatten(0, (unit.parts, unit.count, unit.width))
        read = unit.by_unit(unit.reader.weight.detach())
        scores.append(written.square().sum((0, 2, 3)).sqrt() * read.square().sum((0, 2)).sqrt())
    return scores


@register_importance("surgeon")
def surgeon_loss(
    model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled], loss: BatchLoss
) -> list[Tensor]:
    """What a layer's output loses without a unit, the others refitted (Optimal Brain Surgeon); no labels are needed.

    For cuts without training, where the others make up for it as well as they can.
    """
    moments = input_moments(model, units, (images for images, _ in batches))
    return [unit_losses(unit, read.regular()) for unit, read in zip(units, moments, strict=True)]


def unit_losses(unit: Units, covariance: Tensor) -> Tensor:
    """The squared error of the reader's output without each unit, its weights refitted to the others."""
    inverse = torch.linalg.inv(covariance).unflatten(0, (unit.count, unit.width)).unflatten(2, (unit.count, unit.width))
    own = torch.linalg.inv(inverse.diagonal(dim1=0, dim2=2).permute(2, 0, 1))  # what others cannot tell of a unit
    read = unit.by_unit(unit.reader.weight.detach())
    return torch.einsum("ouw,uwv,ouv->u", read, own, read)


RIDGE = 1e-2
"""Added to the diagonal of a covariance, as a share of its mean, so that it can be inverted even with few images."""


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of the inputs of a linear map."""

    mean: Tensor
    covariance: Tensor

    def regular(self) -> Tensor:
        """The covariance, made invertible."""
        ridge = RIDGE * self.covariance.diagonal().mean() + torch.finfo(self.covariance.dtype).tiny
        return self.covariance + ridge * torch.eye(len(self.mean), device=self.mean.device)


@torch.no_grad()
def input_moments(model: nn.Module, units: Sequence[Units], images: Iterable[Tensor]) -> list[Moments]:
    """The moments of the inputs of each layer's reader, over all tokens of the images."""
    sums = [torch.zeros(unit.reader.in_features, device=unit.reader.weight.device).double() for unit in units]
    squares, counts = [torch.zeros_like(total).outer(total) for total in sums], [0] * len(units)
    for index, read in reader_inputs(model, units, images):
        sums[index] += read.sum(0)
        squares[index] += read.T @ read
        counts[index] += len(read)
    means = [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]
    seconds = [square / max(count, 1) for square, count in zip(squares, counts, strict=True)]
    return [Moments(m.float(), (s - m.outer(m)).float()) for m, s in zip(means, seconds, strict=True)]


@torch.no_grad()
def input_norms(model: nn.Module, units: Sequence[Units], batches: Iterable[Labelled]) -> list[Tensor]:
    """The root mean square of each input of the units' readers: [units, width]."""
    totals: list[Tensor] = [torch.zeros(unit.count, unit.width, device=unit.reader.weight.device) for unit in units]
    seen = [0] * len(units)
    for index, read in reader_inputs(model, units, (images for images, _ in batches)):
        totals[index] += units[index].by_unit(read.square().sum(0))
        seen[index] += len(read)
    return [(total / max(count, 1)).sqrt() for total, count in zip(totals, seen, strict=True)]


def reader_inputs(model: nn.Module, units: Sequence[Units], batches: Iterable[Any]) -> Iterator[tuple[int, Tensor]]:
    """The inputs of the units' readers, [tokens, inputs], batch by batch, each with the index of its units."""
    for images in batches:
        with recorded_inputs([unit.reader for unit in units]) as inputs:
            model(images)
        yield from ((index, x.float().flatten(0, -2)) for index, x in enumerate(inputs) if x is not None)


@contextmanager
def recorded_inputs(layers: Sequence[nn.Module], keep_gradients: bool = False) -> Iterator[list[Tensor | None]]:
    """The last input of each layer, with its gradient if `keep_gradients`; None where the layer did not run."""
    inputs: list[Tensor | None] = [None] * len(layers)

    def record(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if keep_gradients:
                arguments[0].retain_grad()
            inputs[index] = arguments[0]

        return hook

    handles = [layer.register_forward_pre_hook(record(index)) for index, layer in enumerate(layers)]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


# Compensation for what is cut, without training: the weights that read what is kept are fitted anew.
#
# A layer of heads or neurons (`Units`) ends in a linear map of their outputs. Where some of them are cut, the map of
# the rest is fitted to the whole layer's output over some images, by least squares. The moments are measured once, on
# the full net; then an arch costs a few small linear solves, each of which is made once. Images need no labels.


class Compensation:
    """Cuts archs out of a full net and fits the rest to its outputs.

    Args:
        supernet: Its largest member is the full net, sorted by importance.
        images: Those on which outputs are compared.
    """

    def __init__(self, supernet: Supernet, images: Iterable[Tensor]) -> None:
        self.supernet = supernet
        full = supernet.extract(supernet.space.root.largest()).eval()
        units = find_units(full)
        moments = input_moments(full, units, images)
        self.layers = {unit.name: (unit, read) for unit, read in zip(units, moments, strict=True)}
        self.fit = lru_cache(None)(self._fit)

    @torch.no_grad()
    def extract(self, arch: Arch) -> Backbone:
        """The arch as an ordinary model whose linear maps compensate for what is cut."""
        model = self.supernet.extract(arch).eval()
        for unit in find_units(model):
            whole, _ = self.layers[unit.name]
            if unit.count < whole.count:
                weight, bias = self.fit(unit.name, unit.count)
                unit.reader.weight.copy_(weight[: unit.reader.out_features])
                unit.reader.bias.copy_(bias[: unit.reader.out_features])
        return model

    def _fit(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """Weight and bias of the best fit to the layer's output from its first `count` units."""
        unit, moments = self.layers[name]
        weight, covariance, kept = unit.reader.weight, moments.regular(), count * unit.width
        regression = torch.linalg.solve(covariance[:kept, :kept], covariance[:kept, kept:])  # of the lost on the kept
        fitted = weight[:, :kept] + weight[:, kept:] @ regression.T
        return fitted, unit.reader.bias + weight @ moments.mean - fitted @ moments.mean[:kept]
