"""NASWOT: a network that tells images apart before training will be easy to train."""

from __future__ import annotations

import torch
from torch import nn

from nasformer.proxies.codes import code_agreement
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy

BATCH = 32


@proxy(
    "naswot",
    formula="log |det K|, K_ij = number of units with the same code (pre-activation > 0 or not); double",
    sees="noise (32 images)",
    higher="images get more different codes",
    paper="Mellor et al., Neural Architecture Search without Training, ICML 2021",
)
def naswot(model: nn.Module, probe: Probe) -> float:
    """The log-determinant of the agreement of binary codes, over all units of all activation layers.

    In a transformer every channel of every token is a unit. The weights are the model's own, as in the paper; TF-TAS
    re-draws them from N(0, 1) in a way that has no effect in its code, Auto-Prox does so with effect. TF-TAS has 64
    noise images, Auto-Prox and the paper 128 real ones. Images with the same code make K singular: then it is NaN.
    """
    images = probe.noise("naswot", min(BATCH, len(probe.images)))
    if len(images) < 2:
        raise Inapplicable("naswot compares images and needs a batch of at least 2")
    kernel = code_agreement(model, images)
    if torch.linalg.matrix_rank(kernel, hermitian=True) < len(images):
        return float("nan")
    return torch.linalg.slogdet(kernel).logabsdet.item()
