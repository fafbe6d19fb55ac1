"""What "element-wise entropy of activations" may mean: each reading turns the output of one layer into one number.

A reading gets activations [batch, ...] and which dimension the channels are, counted from the end. All are means (over
images, positions or units), so that a larger tensor does not score higher for its size alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.special import entr

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
