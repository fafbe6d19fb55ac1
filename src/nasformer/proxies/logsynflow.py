"""LogSynflow: SynFlow with gradients damped by a logarithm, so that deep networks do not win by explosion."""

from __future__ import annotations

from torch import nn

from nasformer.proxies.gradients import finite_or_nan, inner, logit_gradients
from nasformer.proxies.linearise import linearise
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import proxy
from nasformer.proxies.weights import kaiming_fan_out, reinitialise, weight_layers

REPEATS = 3


@proxy(
    "logsynflow",
    formula="mean over 3 inits of sum |W . log(1 + |dR/dW|)|, R = sum of f(1; |theta|)",
    sees="ones",
    loss="sum of the logits",
    init="Kaiming normal by fan-out, absolute values, in double precision",
    higher="more weights that signal flows through",
    paper="Cavagnero et al., FreeREA, WACV 2023",
)
def logsynflow(model: nn.Module, probe: Probe) -> float:
    """The mean over three initialisations of the damped flow over all linear and convolutional weights.

    FreeREA has log(1 + g), with g >= 0 in its networks. Behind a layer norm g can be negative, even below -1, hence
    log(1 + |g|). Auto-Prox has |log g| instead, another score that is undefined for such g.
    """
    source = probe.generator("logsynflow")
    total = 0.0
    for _ in range(REPEATS):
        reinitialise(model, kaiming_fan_out, source)
        linearise(model)
        total += damped_flow(model, probe)
    return finite_or_nan(total / REPEATS)


def damped_flow(model: nn.Module, probe: Probe) -> float:
    gradients = logit_gradients(model, probe.ones().double())
    layers = weight_layers(model)
    return sum(inner(gradient.abs().log1p(), layers[name].weight) for name, gradient in gradients.items())
