"""Proxies of how units and features respond to images: SWAP, L-SWAG, WRCor, NASWOT, TE-NAS and Zen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.proxies.parts import (
    NO_ACTIVATIONS,
    Probe,
    activation_layers,
    batch_norms,
    gaussian,
    hooks,
    record_calls,
    reinitialise,
)
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan, gradients_of_halves, logit_gradients

BATCH = 32


def require_two(images: Tensor) -> None:
    """Inapplicable to a single image, where a score compares images."""
    if len(images) < 2:
        raise Inapplicable("the score compares images and needs a batch of at least 2")


@register_proxy(
    "swap",
    formula="number of different patterns; the pattern of a unit says for which images its pre-activation is > 0",
    sees="labelled batch (32 of its images; labels unused)",
    higher="units tell images apart in more ways",
    paper="Peng et al., SWAP-NAS, ICLR 2024; for transformers: arXiv 2605.07378, 2026",
)
def swap(model: nn.Module, probe: Probe) -> float:
    """How many patterns the units have over the images; NASWOT asks how many the images have over the units.

    All units of all activation layers count together, every channel of every token. The paper's factor that favours
    nets of a wanted size is left out: it says nothing but the size.
    """
    return float(count_patterns(model, probe.images[:BATCH]))


def count_patterns(model: nn.Module, images: Tensor) -> int:
    """How many different patterns the units have over the images, at most 62 of them.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> count_patterns(net, torch.tensor([[1.0, 1.0, -1.0, 2.0], [1.0, -1.0, -2.0, 3.0]]))
    3
    """
    bits = 2 ** torch.arange(len(images), device=images.device)
    patterns = pre_activations(model, images, lambda units: ((units > 0).long() * bits[:, None]).sum(0).unique())
    return len(torch.cat(patterns).unique())


@torch.no_grad()
def pre_activations(model: nn.Module, images: Tensor, read: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The results of `read` for the input of each activation layer, [images, units], in a pass of the images.

    A unit is one entry of it: one channel of one token or pixel.
    """
    results = list[Tensor]()

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) % len(images) == 0:  # else not about the images, such as a small net for position biases
            results.append(read(inputs[0].reshape(len(images), -1)))

    with hooks(layer.register_forward_pre_hook(hook) for layer in activation_layers(model)):
        model(images)
    if not results:
        raise Inapplicable(NO_ACTIVATIONS)
    return results


@register_proxy(
    "l-swag",
    formula="patterns of SWAP * sum over layers of log( sum over weights of 1 / std_b |g_b| )",
    sees="labelled batch, in two halves (patterns: 32 of its images)",
    loss="mean cross-entropy of each half",
    higher="units tell images apart in more ways, and gradients agree between batches",
    paper="Casarin et al., L-SWAG, CVPR 2025",
)
def l_swag(model: nn.Module, probe: Probe) -> float:
    """Expressivity (the patterns of SWAP) times trainability (how far gradients agree), over all layers.

    The paper sums over some layers only, those whose gradients told most on its benchmarks; choosing them needs
    accuracies, which a score without training does not have. Weights with no deviation are left out, as in ZiCo.
    """
    patterns = count_patterns(model, probe.images[:BATCH])
    deviations = [both.abs().double().std(0, correction=0) for both in gradients_of_halves(model, probe).values()]
    sums = [float((1 / deviation[deviation != 0]).sum()) for deviation in deviations]
    if not any(sums):
        raise Inapplicable("the gradients of all batches are the same")
    return finite_or_nan(patterns * sum(math.log(value) for value in sums if value))


@register_proxy(
    "wrcor",
    formula="log |det K|, K = sum over activation layers l of 2^l (|C_a| + |C_g|), C = the images' correlation matrix"
    " of pre-activations and of their gradients; double",
    sees="labelled batch (32 of its images)",
    loss="mean cross-entropy",
    higher="images cause less correlated responses, above all in the last layers",
    paper="Jing et al., Zero-Shot NAS with Weighted Response Correlation, 2025",
)
def wrcor(model: nn.Module, probe: Probe) -> float:
    """How little the responses to different images correlate, layers weighted more the later they come.

    A matrix with undefined entries, of an image whose responses are all equal, is left out.
    """
    images, labels = probe.images[:BATCH], probe.labels[:BATCH]
    require_two(images)
    layers = set(activation_layers(model))
    with torch.enable_grad(), record_calls(model, lambda name, module: module in layers) as calls:
        loss = F.cross_entropy(model(images.clone().requires_grad_()), labels)
        responses = [call.input for call in calls if len(call.input) % len(images) == 0]
        if not responses:
            raise Inapplicable(NO_ACTIVATIONS)
        gradients = torch.autograd.grad(loss, responses)
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    for number, both in enumerate(zip(responses, gradients, strict=True)):
        for values in both:
            correlations = torch.corrcoef(values.detach().reshape(len(images), -1).double()).abs()
            if correlations.isfinite().all():
                kernel += 2.0**number * correlations
    return finite_or_nan(torch.linalg.slogdet(kernel).logabsdet.item())


# Neural Architecture Search without Training (Mellor et al.): NASWOT, and jacov, the score of its first version.


@register_proxy(
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
    images = probe.noise("naswot", at_most=32)
    require_two(images)
    kernel = code_agreement(model, images)
    if torch.linalg.matrix_rank(kernel, hermitian=True) < len(images):
        return float("nan")
    return torch.linalg.slogdet(kernel).logabsdet.item()


def code_agreement(model: nn.Module, images: Tensor) -> Tensor:
    """How many units treat images i and j alike: [batch, batch] of exact integers in double precision.

    The code of a unit is whether it is positive. Counts are added up layer by layer; no codes are kept. The diagonal is
    the number of units.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> code_agreement(net, torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -2.0]])).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """

    def count(units: Tensor) -> Tensor:
        signs = (units > 0).to(torch.float32) * 2 - 1
        # Sums of +1 and -1 are exact in single precision up to 2^24 units a layer, in any order and on any device.
        return ((signs @ signs.T).double() + signs.shape[1]) / 2

    return torch.stack(pre_activations(model, images, count)).sum(0)


@register_proxy(
    "jacov",
    formula="-sum_i [log(v_i + k) + 1 / (v_i + k)], k = 1e-5, v = eigenvalues of the images' correlation matrix of"
    " d(sum of logits) / d(image); double",
    sees="labelled batch (16 of its images; labels unused)",
    loss="sum of logits",
    higher="images' Jacobians are less correlated",
    paper="Mellor et al., Neural Architecture Search without Training, version 1, 2020; Abdelfattah et al., ICLR 2021",
)
def jacov(model: nn.Module, probe: Probe) -> float:
    """How close the correlations of the input Jacobians are to none at all (all v = 1, the best there is).

    The model is in evaluation mode, so that each Jacobian is that of one image; Samsung's code is in training mode,
    where batch norm mixes the images. An image with a constant Jacobian has no correlations: then it is NaN.
    """
    images = probe.images[:16].detach().clone().requires_grad_()
    require_two(images)
    (jacobian,) = torch.autograd.grad(model(images).sum(), images)
    correlations = torch.corrcoef(jacobian.flatten(1).double())
    if not correlations.isfinite().all():
        return float("nan")
    # The paper's code adds 1e-5, which keeps the logarithm and the quotient finite.
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).sum().item()


# TE-NAS: trainability as the condition number of the neural tangent kernel, expressivity as linear regions.


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
    require_two(images)
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
    """`ntk` and `regions` in one number; where all images have regions of their own it orders nets as `ntk` does.

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


# Zen-score: how strongly features react to a small change of the image, with the scale that batch norm hides.


ZEN_BATCH = 8
STEP = 0.01


@register_proxy(
    "zen",
    formula="log E ||f(x) - f(x + 0.01 z)||_1 + sum over batch norms of log sqrt(mean variance of their input);"
    " f = features before pooling; double",
    sees="noise (8 images, 8 changes)",
    init="N(0, 1), gains 1",
    higher="more expressive",
    paper="Lin et al., Zen-NAS: A Zero-Shot NAS for High-Performance Image Recognition, ICCV 2021",
)
@torch.no_grad()
def zen(model: nn.Module, probe: Probe) -> float:
    """How strongly features react to a small change of the image, for one draw of weights and images.

    In double precision, since N(0, 1) weights without norms overflow single precision.

    Batch norms use the statistics of the batch and the term restores the scale that they divide out. Layer norms have
    no such term, so in a transformer only the first one counts. Zen-NAS builds its nets without residual connections
    for the score and repeats it 32 times; a model as it stands keeps them. Auto-Prox takes the features after pooling.
    """
    reinitialise(model, gaussian, probe.generator("zen weights"))
    model.double()
    norms = batch_norms(model)
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # the running variance is then that of the last batch
    x, z = (probe.noise(f"zen {name}", at_most=ZEN_BATCH).double() for name in "xz")
    before = _features(model, x)
    variances = [norm.running_var.mean() for norm in norms if norm.running_var is not None]
    change = (_features(model, x + STEP * z) - before).abs().flatten(1).sum(dim=1).mean().log().item()
    return finite_or_nan(change + sum(variance.log().item() / 2 for variance in variances))


def _features(model: nn.Module, x: Tensor) -> Tensor:
    """Features before pooling where the model has `forward_features`, else the input of its last linear layer."""
    forward_features: Any = getattr(model, "forward_features", None)
    features = forward_features(x) if forward_features else _input_of_last_linear(model, x)
    if not isinstance(features, Tensor):
        raise Inapplicable(f"the model's features are a {type(features).__name__}, not a tensor")
    return features


def _input_of_last_linear(model: nn.Module, x: Tensor) -> Tensor:
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise Inapplicable("the model has neither forward_features nor a linear layer to take features from")
    with record_calls(model, lambda name, module: module is linears[-1]) as calls:
        model(x)
    return calls[-1].input
