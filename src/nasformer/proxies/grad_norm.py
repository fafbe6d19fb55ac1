"""Two plain readings of one gradient: its length layer by layer, and its product with the weights."""

from __future__ import annotations

from torch import nn

from nasformer.proxies.gradients import cross_entropy_gradients, finite_or_nan, inner
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import proxy
from nasformer.proxies.weights import weight_layers


@proxy(
    "grad_norm",
    formula="sum over layers ||G||_F",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="larger gradients at the start of training",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021",
)
def grad_norm(model: nn.Module, probe: Probe) -> float:
    """The sum over all linear and convolutional layers of the Frobenius norm of the gradient of their weight."""
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    return finite_or_nan(sum(inner(gradient, gradient) ** 0.5 for gradient in gradients.values()))


@proxy(
    "plain",
    formula="sum G . W",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="a loss that falls when all weights shrink together",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021 (a baseline)",
)
def plain(model: nn.Module, probe: Probe) -> float:
    """SNIP without the absolute value: the derivative of the loss for a common factor on all weights."""
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    layers = weight_layers(model)
    return finite_or_nan(sum(inner(gradient, layers[name].weight) for name, gradient in gradients.items()))
