"""SNIP: how much the loss would feel it if each weight were taken away."""

from __future__ import annotations

from torch import nn

from nasformer.proxies.gradients import cross_entropy_gradients, finite_or_nan, inner
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import proxy
from nasformer.proxies.weights import weight_layers


@proxy(
    "snip",
    formula="sum |G . W|",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="more weights that matter to the loss",
    paper="Lee et al., SNIP, ICLR 2019; as a proxy: Abdelfattah et al., ICLR 2021",
)
def snip(model: nn.Module, probe: Probe) -> float:
    """The sum of |G . W| over all linear and convolutional weights, patch embedding and head included.

    Others differentiate a mask of ones that multiplies W, in training mode; the derivative with respect to the mask is
    G . W, so no mask is needed. Evaluation mode, because dropped paths would make the score a matter of luck.
    """
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    layers = weight_layers(model)
    return finite_or_nan(sum(inner(gradient.abs(), layers[name].weight.abs()) for name, gradient in gradients.items()))
