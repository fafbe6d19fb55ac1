"""Entropic Score (Cavagnero et al., ICCV Workshops 2023): the entropy of a network's activations, meant for topology.

The paper calls it the aggregated element-wise entropy of activations; its formula, its input and its code are not
public. Here are the readings of these words that we know (formulas in `entropic_readings`), each a mean over layers:
the outputs of all non-linearities, over three initialisations. The default, `entropic`, is the plainest: Shannon's
entropy of the values. It was chosen by evidence (`benchmarks/entropic_readings.py`; numbers in docs/results.md): it
hardly moves with width or with the number of equal blocks, and it agrees best with the accuracy of trained hybrid nets.
What it sees is mostly the share of inverted bottlenecks, which the accuracy of those nets follows as well; two readings
(`gap`, `sigmoid`) see hardly anything else. `binary`, which sees the most besides, ranks the trained nets upside down.

Weights are Kaiming's by fan-in. FreeREA, by the same authors, has fan-out; then the variance before a non-linearity is
2 / expansion, a matter of width, and depthwise convolutions almost vanish, whose fan-out counts channels that they do
not feed. Batch norms use the statistics of the batch as in FreeREA, whose nets are in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.special import entr

from nasformer.proxies.activations import activations
from nasformer.proxies.core import Inapplicable, Probe, proxy
from nasformer.proxies.gradient import finite_or_nan, kaiming_fan_in, reinitialise, weight_layers

# ----------------------------------------------------------------------------------------------------------------------
# What "element-wise entropy of activations" may mean: each reading turns the output of one layer into one number.
#
# A reading gets activations [batch, ...] and which dimension the channels are, counted from the end. All are means
# (over
# images, positions or units), so that a larger tensor does not score higher for its size alone.
# ----------------------------------------------------------------------------------------------------------------------

Reading = Callable[[Tensor, int], Tensor]

BINS = 32
REACH = 4  # standard deviations on either side of the mean that the bins cover


def mass(a: Tensor, channels: int) -> Tensor:
    """How evenly an image's activity is spread over all elements: H(p) / ln n, p = |a| / sum |a|.

    0 if a single element is active, 1 if all are equally. Blind to the scale of the activations.

    >>> mass(torch.tensor([[0.0, 3.0, 0.0, -3.0]]), -1).item()  # two of four: ln 2 / ln 4
    0.5
    """
    return mass_entropy(a).mean() / math.log(a[0].numel())


def gap(a: Tensor, channels: int) -> Tensor:
    """The same as a distance from even spread: H(p) - ln n.

    The entropy of n independent values is ln n less a constant that depends on their distribution alone. So this
    forgets n, which the ratio does not. 0 is the maximum.
    """
    return mass_entropy(a).mean() - math.log(a[0].numel())


def mass_entropy(a: Tensor) -> Tensor:
    amounts = a.abs().flatten(1)
    return entr(amounts / amounts.sum(1, keepdim=True)).sum(1)


def softmax(a: Tensor, channels: int) -> Tensor:
    """How undecided each position is between its channels: H(softmax over channels) / ln C.

    1 if all channels are equal, whatever their value; it falls as activations grow.
    """
    return entr(a.softmax(channels)).sum(channels).mean() / math.log(a.shape[channels])


def histogram(a: Tensor, channels: int) -> Tensor:
    """How varied the values of a layer are: entropy of their histogram / ln 32.

    32 bins over 4 standard deviations on either side of the mean; what lies beyond is counted in the outermost. So
    neither scale nor the extremes, which grow with the number of elements, move the bins. 0 for a constant.
    """
    std, mean = torch.std_mean(a, correction=0)
    if std == 0:
        return torch.zeros_like(std)
    bins = (((a - mean) / std + REACH) * (BINS / (2 * REACH))).long().clamp_(0, BINS - 1)
    counts = torch.bincount(bins.flatten(), minlength=BINS)
    return entr(counts / a.numel()).sum() / math.log(BINS)


def binary(a: Tensor, channels: int) -> Tensor:
    """How much of a coin toss each unit is: binary entropy of the share of images that switch it on, in bits.

    A unit is one entry of the tensor, as in NASWOT's codes. 1 if half of the images switch each unit on, 0 if a unit is
    on, or off, for all of them. Blind to the scale of the activations.
    """
    on = (a > 0).float().mean(0)
    return (entr(on) + entr(1 - on)).mean() / math.log(2)


def sigmoid(a: Tensor, channels: int) -> Tensor:
    """The words taken literally: the mean over elements of -s ln s with s = sigmoid(a).

    1/e at most, for activations of -ln(e - 1) = -0.54; (ln 2) / 2 for a silent layer; towards 0 as activations grow.
    """
    return entr(a.sigmoid()).mean()


READINGS: dict[str, Reading] = {
    "binary": binary,
    "mass": mass,
    "gap": gap,
    "softmax": softmax,
    "histogram": histogram,
    "sigmoid": sigmoid,
}


BATCH = 8  # fewer do for all readings but the default, which compares images
REPEATS = 3

Draw = Callable[[Tensor, torch.Generator], None]

FORMULAS = {
    "binary": "binary entropy, in bits, of the share of images that switch a unit on; mean over units",
    "mass": "H(p) / ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
    "gap": "H(p) - ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
    "softmax": "H(softmax over the C channels) / ln C; mean over positions",
    "histogram": "H(histogram of the values in 32 bins from -4 to 4 standard deviations) / ln 32",
    "sigmoid": "-s ln s, s = sigmoid(a); mean over elements",
}
MEANINGS = {
    "binary": "more units tell images apart",
    "mass": "activity is spread more evenly",
    "gap": "activity is spread more evenly, whatever the number of elements",
    "softmax": "positions are less decided between channels",
    "histogram": "values are more varied",
    "sigmoid": "activations are closer to -0.54",
}
DEFAULT = "histogram"


def register(reading: str) -> None:
    """The default is `entropic`, any other `entropic-<reading>`."""

    @proxy(
        "entropic" if reading == DEFAULT else f"entropic-{reading}",
        formula=f"mean over the outputs a of all non-linearities, and over 3 inits, of: {FORMULAS[reading]}",
        sees=f"noise ({BATCH} images)",
        init="Kaiming normal by fan-in",
        higher=MEANINGS[reading],
        paper="our reading of: Cavagnero et al., Entropic Score metric, ICCV Workshops 2023",
    )
    def score(model: nn.Module, probe: Probe) -> float:
        return entropies(model, probe, {reading: READINGS[reading]})[reading]


for _reading in READINGS:
    register(_reading)


@torch.no_grad()
def entropies(
    model: nn.Module, probe: Probe, readings: Mapping[str, Reading], draw: Draw = kaiming_fan_in
) -> dict[str, float]:
    """Several readings of the same forward passes, by name."""
    batch = min(BATCH, len(probe.images))
    if batch < 2:
        raise Inapplicable("the Entropic Score needs a batch of at least 2: of one image, nothing varies")
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train()
    source = probe.generator("entropic weights")
    passes = []
    for repeat in range(REPEATS):
        reinitialise(model, draw, source)
        passes.append(layer_means(model, probe.noise(f"entropic {repeat}", batch), readings))
    return {name: finite_or_nan(math.fsum(each[name] for each in passes) / REPEATS) for name in readings}


def layer_means(model: nn.Module, images: Tensor, readings: Mapping[str, Reading]) -> dict[str, float]:
    """Each reading's mean over layers. Layers are read as they run, so that no activations are kept."""
    found: dict[str, list[Tensor]] = {name: [] for name in readings}
    after_linear = False

    def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal after_linear
        after_linear = isinstance(module, nn.Linear)

    def read(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(output) % len(images):
            return  # not about the images, such as a small net that makes position biases
        # [B, C, H, W] comes from a convolution; tokens, and maps [B, H, W, C] from a linear layer, have channels last.
        channels = -1 if after_linear or output.dim() == 3 else 1 - output.dim()
        by_image = output.unflatten(0, (len(images), -1))  # windows of an image may be part of the batch
        for name, reading in readings.items():
            found[name].append(reading(by_image, channels))

    handles = [layer.register_forward_hook(remember) for layer in weight_layers(model).values()]
    handles += [layer.register_forward_hook(read) for layer in activations(model)]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not any(found.values()):
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no entropy of activations")
    return {name: torch.stack(values).double().mean().item() for name, values in found.items()}
