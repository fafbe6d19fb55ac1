"""Entropic Score (Cavagnero et al., ICCV Workshops 2023): the entropy of a network's activations, meant for topology.

The paper calls it the aggregated element-wise entropy of activations; its formula, its input and its code are not
public. Here are six readings of these words, each a mean over the outputs of all non-linearities and over three
initialisations. The default, `entropic`, is the plainest: Shannon's entropy of the values of a layer, by a histogram.
The others are `entropic-<reading>`. What speaks for and against each is measured by `benchmarks/entropic_readings.py`
and `benchmarks/readings_of_trained.py` (numbers in docs/results.md): width hardly moves the default; depth and the seed
do, less than topology. `gap`, `sigmoid` and `softmax` are steadier, but see hardly more than the share of inverted
bottlenecks.

Weights are Kaiming's by fan-in. FreeREA, by the same authors, has fan-out; then the variance before a non-linearity is
2 / expansion, a matter of width, and depthwise convolutions almost vanish, whose fan-out counts channels that they do
not feed. Gains are 1: at 1e-6, where ConvNeXt's layer scale starts, no later layer would see what a block computes.
Batch norms use the statistics of the batch as in FreeREA, whose nets are in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.special import entr

from nasformer.proxies.parts import (
    Draw,
    Probe,
    activation_layers,
    batch_norms,
    channel_dim,
    hooks,
    kaiming_fan_in,
    reinitialise,
    weight_layers,
)
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan

# The readings: each turns the output of one layer into one number. It gets activations [batch, ...] and which dimension
# holds the channels, counted from the end. All are means (over images, positions or units), so that a larger tensor
# does not score higher for its size alone.

BINS = 32
RANGE = 4  # standard deviations on either side of the mean that the bins cover


def histogram(a: Tensor, channels: int) -> Tensor:
    """How varied the values of a layer are: entropy of their histogram / ln 32.

    32 bins over 4 standard deviations on either side of the mean; what lies beyond is counted in the outermost. So
    neither scale nor the extremes, which grow with the number of elements, move the bins. 0 for a constant.
    """
    std, mean = torch.std_mean(a, correction=0)
    if std == 0:
        return torch.zeros_like(std)
    bins = (((a - mean) / std + RANGE) * (BINS / (2 * RANGE))).long().clamp_(0, BINS - 1)
    counts = torch.bincount(bins.flatten(), minlength=BINS)
    return entr(counts / a.numel()).sum() / math.log(BINS)


def binary(a: Tensor, channels: int) -> Tensor:
    """How much of a coin toss each unit is: binary entropy of the share of images that switch it on, in bits.

    A unit is one entry of the tensor, as in NASWOT's codes. 1 if half of the images switch each unit on, 0 if a unit is
    on, or off, for all of them. Blind to the scale of the activations.
    """
    on = (a > 0).float().mean(0)
    return (entr(on) + entr(1 - on)).mean() / math.log(2)


def mass(a: Tensor, channels: int) -> Tensor:
    """How evenly an image's activity is spread over all elements: H(p) / ln n, p = |a| / sum |a|.

    0 if a single element is active, 1 if all are equally. Blind to the scale of the activations.

    >>> mass(torch.tensor([[0.0, 3.0, 0.0, -3.0]]), -1).item()  # two of four: ln 2 / ln 4
    0.5
    """
    return _mass_entropy(a).mean() / math.log(a[0].numel())


def gap(a: Tensor, channels: int) -> Tensor:
    """How far an image's activity is from an even spread: H(p) - ln n, p as in `mass`.

    The entropy of n independent values is ln n less a constant that depends on their distribution alone. So this
    forgets n, which the ratio does not. 0 is the maximum.
    """
    return _mass_entropy(a).mean() - math.log(a[0].numel())


def _mass_entropy(a: Tensor) -> Tensor:
    amounts = a.abs().flatten(1)
    return entr(amounts / amounts.sum(1, keepdim=True)).sum(1)


def softmax(a: Tensor, channels: int) -> Tensor:
    """How undecided each position is between its channels: H(softmax over channels) / ln C.

    1 if all channels are equal, whatever their value; it falls as activations grow.
    """
    return entr(a.softmax(channels)).sum(channels).mean() / math.log(a.shape[channels])


def sigmoid(a: Tensor, channels: int) -> Tensor:
    """The paper's words taken literally: the mean over elements of -s ln s with s = sigmoid(a).

    1/e at most, for activations of -ln(e - 1) = -0.54; (ln 2) / 2 for a silent layer; towards 0 as activations grow.
    """
    return entr(a.sigmoid()).mean()


class Reading(NamedTuple):
    """One meaning of "element-wise entropy of activations": of the output of a layer, with its documentation."""

    entropy: Callable[[Tensor, int], Tensor]
    formula: str
    higher: str


READINGS = {
    "binary": Reading(
        binary,
        "binary entropy, in bits, of the share of images that switch a unit on; mean over units",
        "more units tell images apart",
    ),
    "mass": Reading(
        mass,
        "H(p) / ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
        "activity is spread more evenly",
    ),
    "gap": Reading(
        gap,
        "H(p) - ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
        "activity is spread more evenly, whatever the number of elements",
    ),
    "softmax": Reading(
        softmax,
        "H(softmax over the C channels) / ln C; mean over positions",
        "positions are less decided between channels",
    ),
    "histogram": Reading(
        histogram,
        "H(histogram of the values in 32 bins from -4 to 4 standard deviations) / ln 32",
        "values are more varied",
    ),
    "sigmoid": Reading(
        sigmoid,
        "-s ln s, s = sigmoid(a); mean over elements",
        "activations are closer to -0.54",
    ),
}
DEFAULT = "histogram"

BATCH = 8  # only `binary`, which compares images, would gain from more
REPEATS = 3


def _register(name: str, reading: Reading) -> None:
    @register_proxy(
        "entropic" if name == DEFAULT else f"entropic-{name}",
        formula=f"mean over the outputs a of all non-linearities, and over 3 inits, of: {reading.formula}",
        sees=f"noise ({BATCH} images)",
        init="Kaiming normal by fan-in, gains 1",
        higher=reading.higher,
        paper="our reading of: Cavagnero et al., Entropic Score metric, ICCV Workshops 2023",
    )
    def score(model: nn.Module, probe: Probe) -> float:
        return entropies(model, probe, [name])[name]


for _name, _reading in READINGS.items():
    _register(_name, _reading)


@torch.no_grad()
def entropies(
    model: nn.Module, probe: Probe, readings: Iterable[str] = READINGS, draw: Draw = kaiming_fan_in
) -> dict[str, float]:
    """Several readings of the same forward passes, by name."""
    if len(probe.images) < 2:
        raise Inapplicable("the Entropic Score needs a batch of at least 2: of one image, nothing varies")
    for norm in batch_norms(model):
        norm.train()
    source, passes = probe.generator("entropic weights"), list[dict[str, float]]()
    for repeat in range(REPEATS):
        reinitialise(model, draw, source)
        passes.append(_layer_means(model, probe.noise(f"entropic {repeat}", at_most=BATCH), list(readings)))
    return {name: finite_or_nan(math.fsum(each[name] for each in passes) / REPEATS) for name in passes[0]}


def _layer_means(model: nn.Module, images: Tensor, readings: list[str]) -> dict[str, float]:
    """Each reading's mean over layers. Layers are read as they run, so that no activations are kept."""
    values: dict[str, list[Tensor]] = {name: [] for name in readings}
    after_linear = False

    def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal after_linear
        after_linear = isinstance(module, nn.Linear)

    def read(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(output) % len(images):
            return  # not about the images, such as a small net that makes position biases
        channels = channel_dim(output, after_linear) - output.dim()
        by_image = output.unflatten(0, (len(images), -1))  # windows of an image may be part of the batch
        for name in readings:
            values[name].append(READINGS[name].entropy(by_image, channels))

    handles = [layer.register_forward_hook(remember) for layer in weight_layers(model).values()]
    handles += [layer.register_forward_hook(read) for layer in activation_layers(model)]
    with hooks(handles):
        model(images)
    if not any(values.values()):
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no entropy of activations")
    return {name: torch.stack(each).double().mean().item() for name, each in values.items()}
