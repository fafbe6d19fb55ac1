"""The binary codes of a network's activation layers: which units an image switches on, and how far two images agree."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.proxies.core import Inapplicable, Probe, is_attention, is_mlp, proxy
from nasformer.proxies.nuclear import spectral_entropy

# By name, because timm and others have classes of their own for the same functions. All have the sign of their input,
# more or less; gates (sigmoid, softmax) and tanh are no switches and do not count.
NAMES = frozenset(
    {"relu", "relu6", "leakyrelu", "prelu", "elu", "selu", "celu", "gelu", "gelutanh", "quickgelu", "silu", "swish"}
    | {"mish", "hardmish", "hardswish", "relusquared", "squaredrelu", "starrelu"}
)


def activations(model: nn.Module) -> list[nn.Module]:
    """The layers that switch units on and off."""
    return [module for module in model.modules() if type(module).__name__.lower() in NAMES]


@torch.no_grad()
def code_agreement(model: nn.Module, images: Tensor) -> Tensor:
    """How many units treat images i and j alike: [batch, batch] of exact integers in double precision.

    A unit is one entry of what goes into an activation layer (one channel of one token or pixel), its code is whether
    that is positive. Counts are added up layer by layer; no codes are kept. The diagonal is the number of units.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> code_agreement(net, torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -2.0]])).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """
    layers, batch = activations(model), len(images)
    total = torch.zeros(batch, batch, dtype=torch.float64, device=images.device)

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) % batch:
            return  # not about the images, such as a small net that makes position biases
        signs = (inputs[0].reshape(batch, -1) > 0).to(torch.float32) * 2 - 1
        # Sums of +1 and -1 are exact in single precision up to 2^24 units a layer, in any order and on any device.
        total.add_(((signs @ signs.T).double() + signs.shape[1]) / 2)

    handles = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not total.any():
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no binary codes")
    return total


# ----------------------------------------------------------------------------------------------------------------------
# NASWOT: a network that tells images apart before training will be easy to train.
# ----------------------------------------------------------------------------------------------------------------------

NASWOT_BATCH = 32


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
    images = probe.noise("naswot", min(NASWOT_BATCH, len(probe.images)))
    if len(images) < 2:
        raise Inapplicable("naswot compares images and needs a batch of at least 2")
    kernel = code_agreement(model, images)
    if torch.linalg.matrix_rank(kernel, hermitian=True) < len(images):
        return float("nan")
    return torch.linalg.slogdet(kernel).logabsdet.item()


# ----------------------------------------------------------------------------------------------------------------------
# Jacobian covariance: a network whose outputs react to different images in different ways is worth training.
# ----------------------------------------------------------------------------------------------------------------------

JACOV_BATCH = 16
K = 1e-5  # of the paper's code: keeps the logarithm and the quotient finite


@proxy(
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
    images = probe.images[:JACOV_BATCH].detach().clone().requires_grad_()
    if len(images) < 2:
        raise Inapplicable("jacov compares images and needs a batch of at least 2")
    (jacobian,) = torch.autograd.grad(model(images).sum(), images)
    correlations = torch.corrcoef(jacobian.flatten(1).double())
    if not correlations.isfinite().all():
        return float("nan")
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + K
    return -(eigenvalues.log() + 1 / eigenvalues).sum().item()


# ----------------------------------------------------------------------------------------------------------------------
# Token entropy: how many directions tokens fill after each linear layer of a transformer's blocks.
# ----------------------------------------------------------------------------------------------------------------------

TOKENS_BATCH = 4  # 788 tokens at 224 pixels


@proxy(
    "token_entropy",
    formula="sum over qkv, proj, fc1, fc2 of all blocks of the entropy of the normalised eigenvalues of the covariance"
    " of their outputs over tokens and images; double",
    sees="noise (4 images)",
    higher="tokens fill more directions",
    paper="our reading of: Dissecting Representation Structure in Vision Transformers",
)
@torch.no_grad()
def token_entropy(model: nn.Module, probe: Probe) -> float:
    """The paper measures entropy at these four places; its exact formula was not at hand, this one is ours.

    The entropy of the spectrum has no unit and is never negative, so that a further layer cannot lower the sum. The
    differential entropy of a Gaussian (log of the standard deviations) would depend on the scale of the initial
    weights and be negative for small ones: deeper nets would then score lower, whatever they compute.
    """
    entropies: list[float] = []

    def measure(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        entropies.append(spectral_entropy(output.reshape(-1, output.shape[-1])))

    layers = [m for name, m in model.named_modules() if is_attention(name, m) or is_mlp(name, m)]
    if not layers:
        raise Inapplicable("the model has no linear layers named attn.* or mlp.*")
    handles = [layer.register_forward_hook(measure) for layer in layers]
    try:
        model(probe.noise("token entropy", min(TOKENS_BATCH, len(probe.images))))
    finally:
        for handle in handles:
            handle.remove()
    return sum(entropies)
