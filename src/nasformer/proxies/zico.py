"""ZiCo: layers whose gradients are large and agree between batches train fast and generalise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nasformer.proxies.core import Inapplicable, Probe, proxy
from nasformer.proxies.gradient import cross_entropy_gradients, finite_or_nan

# Batches that the probe's images are split into: the fewest that have a deviation, and what the authors use.
BATCHES = 2


@proxy(
    "zico",
    formula="sum over layers of log( sum over weights of mean_b |g_b| / std_b g_b )",
    sees="labelled batch, in two halves",
    loss="mean cross-entropy of each half",
    higher="gradients that are large and agree between batches",
    paper="Li et al., ZiCo, ICLR 2023",
)
def zico(model: nn.Module, probe: Probe) -> float:
    """The official score over all linear and convolutional layers, with the population's standard deviation.

    Weights with no deviation, and layers with no other weights, are left out, as in the official code. That code has
    the whole model in training mode; here only batch norm is, for it needs the statistics of a batch to keep signals
    in range, while dropout and dropped paths would make the score a matter of luck.
    """
    size, with_batch_norm = len(probe.images) // BATCHES, train_batch_norms(model)
    fewest = 2 if with_batch_norm else 1  # a single image has no statistics
    if size < fewest:
        raise Inapplicable(f"needs at least {BATCHES * fewest} images")
    # Images in a batch norm that trains see each other, so that their batch must not be cut into chunks.
    chunk = size if with_batch_norm else None
    starts = [size * index for index in range(BATCHES)]
    batches = [(probe.images[start : start + size], probe.labels[start : start + size]) for start in starts]
    gradients = [cross_entropy_gradients(model, images, labels, chunk) for images, labels in batches]
    sums = [inverse_variation([gradient[name] for gradient in gradients]) for name in gradients[0]]
    if not any(sums):
        raise Inapplicable("the gradients of all batches are the same")
    return finite_or_nan(sum(math.log(value) for value in sums if value))


def inverse_variation(gradients: list[Tensor]) -> float:
    """The sum over the weights of a layer of mean |g| / std g."""
    stacked = torch.stack(gradients).double()
    mean, deviation = stacked.abs().mean(0), stacked.std(0, correction=0)
    varies = deviation != 0  # true for NaN as well, which must not pass for "no deviation"
    return float((mean[varies] / deviation[varies]).sum())


def train_batch_norms(model: nn.Module) -> bool:
    """Says whether there were any."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.train()
    return bool(norms)
