"""What a layer costs, in closed form: every layer says it beside its weights, and nobody builds a model to count."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Cost:
    """Parameters and multiply-accumulates of one image's forward pass.

    ``macs`` counts what the papers count: every matrix product and convolution, the two products of attention
    included, without norms, activations and biases. What 2-D relative positions add comes separately, because papers
    leave it out: ``position_macs`` as we execute it (extra columns of the fused attention and the table products) and
    ``position_macs_literal`` as the published form would need it (two N x N x width products a layer).
    So ``macs + position_macs`` is what a FLOP counter sees on the built model, divided by two.

    >>> Cost(params=10, macs=5) + Cost(params=1)
    Cost(params=11, macs=5, position_macs=0, position_macs_literal=0)
    """

    params: int = 0
    macs: int = 0
    position_macs: int = 0
    position_macs_literal: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Cost:
        return Cost(*(a * times for a in astuple(self)))


def linear_cost(tokens: int, in_features: int, out_features: int, bias: bool = True) -> Cost:
    """A linear layer applied to ``tokens`` positions."""
    return Cost((in_features + bias) * out_features, tokens * in_features * out_features)


def norm_cost(features: int) -> Cost:
    """A norm with a scale and a shift per feature."""
    return Cost(2 * features)
