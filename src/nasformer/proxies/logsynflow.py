"""LogSynflow: SynFlow with gradients damped by a logarithm, so that deep networks do not win by explosion."""

from __future__ import annotations

from torch import nn

from nasformer.proxies.gradients import finite_or_nan, inner, logit_gradients
from nasformer.proxies.linearise import ConstantNorms, linearise
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import proxy
from nasformer.proxies.weights import kaiming_fan_out, reinitialise, weight_layers


@proxy(
    "logsynflow",
    formula="sum |W . log(1 + |dR/dW|)|, R = sum of f(1; |theta|), norms as constants",
    sees="ones",
    loss="sum of the logits",
    init="Kaiming normal by fan-out, absolute values, in double precision",
    higher="more weights that signal flows through",
    paper="Cavagnero et al., FreeREA, WACV 2023",
)
def logsynflow(model: nn.Module, probe: Probe) -> float:
    """The damped flow over all linear and convolutional weights of the linearised network.

    FreeREA leaves out batch norm, the only norm of its networks. Layer norm cannot just go, or transformers overflow;
    but it is made a constant scale (`ConstantNorms`). With layer norm as it is, the score hardly knew the depth of a
    hybrid net and changed with the seed nearly as much as with the topology; now it grows with size and changes by
    parts in a thousand (docs/results.md). Hence also one initialisation, where FreeREA averages over three.

    FreeREA has log(1 + g), with g >= 0 in its networks. GELU and softmax can make g negative, even below -1: hence
    log(1 + |g|). Auto-Prox has |log g| instead, another score that is undefined for such g.
    """
    reinitialise(model, kaiming_fan_out, probe.generator("logsynflow"))
    linearise(model)
    with ConstantNorms():
        gradients = logit_gradients(model, probe.ones().double())
    layers = weight_layers(model)
    return finite_or_nan(
        sum(inner(gradient.abs().log1p(), layers[name].weight) for name, gradient in gradients.items())
    )
