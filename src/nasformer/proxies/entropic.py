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

from nasformer.proxies.codes import activations
from nasformer.proxies.entropic_readings import READINGS, Reading
from nasformer.proxies.gradients import finite_or_nan
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy
from nasformer.proxies.weights import kaiming_fan_in, reinitialise, weight_layers

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
