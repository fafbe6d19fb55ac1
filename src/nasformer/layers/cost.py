"""Closed-form cost of layers: parameters and multiply-accumulates, without building a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Parameters and multiply-accumulates of one image's forward pass.

    `macs` counts what papers count: matrix products and convolutions, the two products of attention included, without
    norms, activations and biases. Papers leave out what 2-D relative positions add, so it comes separately:
    `position_macs` as executed here (extra columns of the fused attention, and the table products) and
    `position_macs_literal` as the published form needs it (two N x N x width products a layer). `macs + position_macs`
    is half of what a FLOP counter sees on the built model.

    >>> Cost(params=10, macs=5) + Cost(params=1)
    Cost(params=11, macs=5, position_macs=0, position_macs_literal=0)
    """

    params: int = 0
    macs: int = 0
    position_macs: int = 0
    position_macs_literal: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.params + other.params,
            self.macs + other.macs,
            self.position_macs + other.position_macs,
            self.position_macs_literal + other.position_macs_literal,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(*(count * times for count in vars(self).values()))


def total_cost(costs: Sequence[Cost]) -> Cost:
    """The sum of many costs, faster than one by one: searches add up those of a million layers.

    >>> total_cost([Cost(params=10, macs=5), Cost(params=1)])
    Cost(params=11, macs=5, position_macs=0, position_macs_literal=0)
    """
    return Cost(
        sum([cost.params for cost in costs]),
        sum([cost.macs for cost in costs]),
        sum([cost.position_macs for cost in costs]),
        sum([cost.position_macs_literal for cost in costs]),
    )


def linear_cost(tokens: int, in_features: int, out_features: int, bias: bool = True) -> Cost:
    """Cost of a linear layer applied to `tokens` positions."""
    return Cost((in_features + bias) * out_features, tokens * in_features * out_features)


def norm_cost(features: int) -> Cost:
    """Cost of a norm with a scale and a shift per feature."""
    return Cost(2 * features)
