"""Proxies of how units respond to a batch of images: SWAP, L-SWAG and WRCor, scores of 2024 to 2026."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.proxies.parts import activation_layers, hooks, record_calls
from nasformer.proxies.probe import Probe
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan, gradients_of_halves

BATCH = 32


@register_proxy(
    "swap",
    formula="number of different patterns; the pattern of a unit says for which images its pre-activation is > 0",
    sees="labelled batch (32 of its images; labels unused)",
    higher="units tell images apart in more ways",
    paper="Peng et al., SWAP-NAS, ICLR 2024; for transformers: arXiv 2605.07378, 2026",
)
def swap(model: nn.Module, probe: Probe) -> float:
    """Where NASWOT asks how images differ in their units, this asks how units differ in their images.

    All units of all activation layers count together, every channel of every token. The paper's factor that favours
    nets of a wanted size is left out: it says nothing but the size.
    """
    return float(count_patterns(model, probe.images[:BATCH]))


@torch.no_grad()
def count_patterns(model: nn.Module, images: Tensor) -> int:
    """How many different patterns the units have over the images, at most 62 of them.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> count_patterns(net, torch.tensor([[1.0, 1.0, -1.0, 2.0], [1.0, -1.0, -2.0, 3.0]]))
    3
    """
    batch, found = len(images), list[Tensor]()
    bits = 2 ** torch.arange(batch, device=images.device)

    def collect(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) % batch == 0:  # otherwise not about the images, such as a small net for position biases
            codes = (inputs[0].reshape(batch, -1) > 0).long() * bits[:, None]
            found.append(codes.sum(0).unique())

    with hooks(layer.register_forward_pre_hook(collect) for layer in activation_layers(model)):
        model(images)
    if not found:
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no patterns")
    return len(torch.cat(found).unique())


@register_proxy(
    "l-swag",
    formula="patterns of SWAP * sum over layers of log( sum over weights of 1 / std_b |g_b| )",
    sees="labelled batch, in two halves (patterns: 32 of its images)",
    loss="mean cross-entropy of each half",
    higher="units tell images apart in more ways, and gradients agree between batches",
    paper="Casarin et al., L-SWAG, CVPR 2025",
)
def l_swag(model: nn.Module, probe: Probe) -> float:
    """Expressivity times trainability, over all layers.

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
    """The published score; a matrix with undefined entries, of an image whose responses are all equal, is left out."""
    images, labels = probe.images[:BATCH], probe.labels[:BATCH]
    if len(images) < 2:
        raise Inapplicable("wrcor compares images and needs a batch of at least 2")
    layers = set(activation_layers(model))
    with torch.enable_grad(), record_calls(model, lambda name, module: module in layers) as calls:
        loss = F.cross_entropy(model(images.clone().requires_grad_()), labels)
        responses = [call.input for call in calls if len(call.input) % len(images) == 0]
        if not responses:
            raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no responses")
        gradients = torch.autograd.grad(loss, responses)
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    for number, both in enumerate(zip(responses, gradients, strict=True)):
        for values in both:
            correlations = torch.corrcoef(values.detach().reshape(len(images), -1).double()).abs()
            if correlations.isfinite().all():
                kernel += 2.0**number * correlations
    return finite_or_nan(torch.linalg.slogdet(kernel).logabsdet.item())
