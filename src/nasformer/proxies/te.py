"""TE-NAS: trainability as the condition number of the neural tangent kernel, expressivity as linear regions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nasformer.proxies.naswot import code_agreement
from nasformer.proxies.probe import Probe
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import logit_gradients

PAPER = "Chen et al., Neural Architecture Search on ImageNet in Four GPU Hours (TE-NAS), ICLR 2021"


@register_proxy(
    "ntk",
    formula="-log10(largest / smallest eigenvalue of the Gram matrix of per-image gradients); Gram matrix in double",
    sees="noise (16 images)",
    loss="sum of logits",
    higher="better conditioned, easier to train",
    paper=PAPER,
)
def ntk(model: nn.Module, probe: Probe) -> float:
    """The negative condition number of the tangent kernel, as a power of ten.

    Gradients go to the weights of linear and convolutional layers. The model is in evaluation mode with its own
    weights, so that an image's gradient is its own; TE-NAS is in training mode (where batch norm mixes the images)
    with Kaiming's fan-out initialisation. TF-TAS and Auto-Prox report -kappa; the logarithm leaves the order as it is.
    A singular kernel gives NaN.
    """
    images = probe.noise("ntk", at_most=16)  # each image's gradient is kept: 16 times the size of the weights
    if len(images) < 2:
        raise Inapplicable("ntk compares images and needs a batch of at least 2")
    eigenvalues = torch.linalg.eigvalsh(tangent_kernel(model, images))
    smallest, largest = eigenvalues[0].item(), eigenvalues[-1].item()
    if not smallest > largest * len(images) * torch.finfo(torch.float64).eps:
        return float("nan")
    return -math.log10(largest / smallest)


@register_proxy(
    "regions",
    formula="number of different sign patterns of all pre-activations",
    sees="noise (32 images)",
    higher="more linear regions, more expressive",
    paper=PAPER,
)
def regions(model: nn.Module, probe: Probe) -> float:
    """How many of the images lie in linear regions of their own; for GELU and the like, by the sign of the input.

    A network with many units tells all 32 images apart, and the number then says nothing (TE-NAS shrinks its nets to
    one channel and 3 x 3 pixels to avoid that, which no model of fixed shape allows). It is informative for tiny nets.
    """
    agreement = code_agreement(model, probe.noise("regions", at_most=32))
    seen_before = (agreement == agreement.diagonal()).tril(-1).any(dim=1)
    return float((~seen_before).sum())


@register_proxy(
    "te",
    formula="log10(regions / kappa) = ntk + log10(regions)",
    sees="noise (16 images for the kernel, 32 for the regions)",
    loss="sum of logits",
    higher="easier to train and more expressive",
    paper=PAPER,
)
def te(model: nn.Module, probe: Probe) -> float:
    """Both in one number, for a single model; where all images have regions of their own it orders nets as `ntk` does.

    TE-NAS adds up the ranks of the two among the candidates, which one model does not have: for that, aggregate the
    ranks of the proxies `ntk` and `regions`. The TE-score of TF-TAS's code is -kappa alone.
    """
    return ntk(model, probe) + math.log10(regions(model, probe))


def tangent_kernel(model: nn.Module, images: Tensor) -> Tensor:
    """The inner products of the images' gradients of the summed logits, weight by weight in double precision."""
    gradients = [logit_gradients(model, image[None]) for image in images]
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    for name in gradients[0]:
        flat = torch.stack([gradient[name].flatten() for gradient in gradients]).double()
        kernel += flat @ flat.T
    return kernel
