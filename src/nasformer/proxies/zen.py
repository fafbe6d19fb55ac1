"""Zen-score: how strongly features react to a small change of the image, with the scale that batch norm hides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nasformer.proxies.parts import batch_norms, gaussian, record_calls, reinitialise
from nasformer.proxies.probe import Probe
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan

BATCH = 8
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
    """One draw of weights and images; in double, because N(0, 1) weights without norms overflow single precision.

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
    x, z = (probe.noise(f"zen {name}", at_most=BATCH).double() for name in "xz")
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
