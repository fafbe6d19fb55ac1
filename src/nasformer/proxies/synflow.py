"""SynFlow: how much signal flows through all paths of the network, whatever the data."""

from __future__ import annotations

import math

from torch import nn

from nasformer.proxies.gradients import finite_or_nan, inner, logit_gradients
from nasformer.proxies.linearise import linearise
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy
from nasformer.proxies.weights import weight_layers


@proxy(
    "synflow",
    formula="log10 of sum |W . dR/dW|, R = sum of f(1; |theta|)",
    sees="ones",
    loss="sum of the logits",
    init="own, absolute values, in double precision",
    higher="more signal through all paths together",
    paper="Tanaka et al., SynFlow, NeurIPS 2020; as a proxy: Abdelfattah et al., ICLR 2021",
)
def synflow(model: nn.Module, probe: Probe) -> float:
    """The logarithm of the flow over all linear and convolutional weights of the linearised network.

    The logarithm is ours: flows of deep networks differ by hundreds of powers of ten, and ranks stay the same. In a
    network of linear layers and ReLUs every layer has the same flow; layer norm, softmax and GELU, which nobody takes
    out of transformers, break this law, and layer norm hides the scale of what lies before it.
    """
    linearise(model)
    gradients = logit_gradients(model, probe.ones().double())
    layers = weight_layers(model)
    flow = sum(inner(gradient.abs(), layers[name].weight) for name, gradient in gradients.items())
    if flow == 0:
        raise Inapplicable("no signal flows through the model, so its flow has no logarithm")
    return finite_or_nan(math.log10(flow))
