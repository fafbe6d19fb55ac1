"""AutoProxA: a score that was itself found by search, as far as it is known."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.proxies.core import Inapplicable, Probe, attention_linears, mlp_linears, proxy
from nasformer.proxies.gradient import finite_or_nan, logit_gradients


@proxy(
    "autoprox",
    formula="sum over attention linears ||G||_1 + sum over MLP linears mean(sigmoid(G))",
    sees="ones",
    loss="sum of the logits",
    higher="larger gradients in attention",
    paper="Wei et al., Auto-Prox, AAAI 2024",
)
def autoprox(model: nn.Module, probe: Probe) -> float:
    """The form in which a later paper compares with AutoProxA.

    The authors' configuration names its two inputs, t2 and t4g, but the code that would say what they are was never
    published; it also has a min-max scaling, a Frobenius norm and a square root that this form has not. The second
    term is about 0.5 for each linear layer of an MLP: it counts them.
    """
    attention, mlp = attention_linears(model), mlp_linears(model)
    if not attention or not mlp:
        raise Inapplicable("the model has no attention or no MLP with linear layers that can be told by name")
    gradients = logit_gradients(model, probe.ones())
    score = sum(length(gradients[name]) for name in attention) + sum(openness(gradients[name]) for name in mlp)
    return finite_or_nan(score)


def length(gradient: Tensor) -> float:
    return float(gradient.double().abs().sum())


def openness(gradient: Tensor) -> float:
    return float(gradient.double().sigmoid().mean())
