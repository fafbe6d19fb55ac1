"""Neural Architecture Search without Training (Mellor et al.): NASWOT, and jacov, the score of its first version."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.proxies.parts import activation_layers, hooks
from nasformer.proxies.probe import Probe
from nasformer.proxies.registry import Inapplicable, register_proxy


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
    if len(images) < 2:
        raise Inapplicable("naswot compares images and needs a batch of at least 2")
    kernel = code_agreement(model, images)
    if torch.linalg.matrix_rank(kernel, hermitian=True) < len(images):
        return float("nan")
    return torch.linalg.slogdet(kernel).logabsdet.item()


@torch.no_grad()
def code_agreement(model: nn.Module, images: Tensor) -> Tensor:
    """How many units treat images i and j alike: [batch, batch] of exact integers in double precision.

    A unit is one entry of what goes into an activation layer (one channel of one token or pixel), its code is whether
    that is positive. Counts are added up layer by layer; no codes are kept. The diagonal is the number of units.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> code_agreement(net, torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -2.0]])).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """
    batch = len(images)
    total = torch.zeros(batch, batch, dtype=torch.float64, device=images.device)

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) % batch:
            return  # not about the images, such as a small net that makes position biases
        signs = (inputs[0].reshape(batch, -1) > 0).to(torch.float32) * 2 - 1
        # Sums of +1 and -1 are exact in single precision up to 2^24 units a layer, in any order and on any device.
        total.add_(((signs @ signs.T).double() + signs.shape[1]) / 2)

    with hooks(layer.register_forward_pre_hook(count) for layer in activation_layers(model)):
        model(images)
    if not total.any():
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no binary codes")
    return total


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
    if len(images) < 2:
        raise Inapplicable("jacov compares images and needs a batch of at least 2")
    (jacobian,) = torch.autograd.grad(model(images).sum(), images)
    correlations = torch.corrcoef(jacobian.flatten(1).double())
    if not correlations.isfinite().all():
        return float("nan")
    # The paper's code adds 1e-5, which keeps the logarithm and the quotient finite.
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + 1e-5
    return -(eigenvalues.log() + 1 / eigenvalues).sum().item()
