"""Basic parts of all networks: closed-form cost, norms, stochastic depth, classification heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Closed-form cost of layers: parameters and multiply-accumulates, without building a model.


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


def init_weights(module: nn.Module, std: float = 0.02) -> None:
    """Draws the weights of linear layers and convolutions from a truncated normal distribution; biases become 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# Norms as layers of a plan: layer norm of tokens, layer norm of feature maps, and none.


class LayerNorm(nn.LayerNorm):
    """Layer norm of tokens: torch's, with its cost."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-5) -> None:
        super().__init__(embed_dim, norm_eps)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-5) -> Cost:
        return norm_cost(embed_dim)


class MapNorm(nn.LayerNorm):
    """Layer norm over the channels of a feature map [batch, channels, rows, columns]."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__(embed_dim, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        return norm_cost(embed_dim)


class NoNorm(nn.Identity):
    """Identity in the place of the final norm, where blocks end in a norm already or the pooled vector gets one."""

    @staticmethod
    def cost() -> Cost:
        return Cost()


# Stochastic depth with its rate in a tensor, so that one compiled block serves every depth of the net.


class DropPath(nn.Module):
    """Drops a residual branch for whole samples in training, and scales the others to keep the mean.

    The rate grows with depth, so blocks of the same shape differ in it. As a tensor it is an input of a compiled graph
    and not a constant in it: 14 blocks of 2 shapes stay 2 graphs.
    """

    rate: Tensor

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(float(rate)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.rate
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = (torch.rand(shape, device=x.device) < keep).to(x.dtype)
        return x * (mask / keep).to(x.dtype)


def set_drop_path(layer: nn.Module, rate: float) -> None:
    """Sets the rate of all residual branches of a layer."""
    for module in layer.modules():
        if isinstance(module, DropPath):
            module.rate.fill_(rate)


# Classification heads for tokens and for feature maps.


class TokenHead(nn.Module):
    """Classifier on the mean of the patch tokens (`avg`) or on the class token (`token`)."""

    def __init__(self, embed_dim: int, num_classes: int, global_pool: str = "avg") -> None:
        super().__init__()
        self.embed_dim, self.global_pool = embed_dim, global_pool
        self.reset(num_classes)

    def reset(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a fresh classifier, on the device of the old one; 0 classes leave the features."""
        self.global_pool = global_pool or self.global_pool
        old = next(self.parameters(), None)
        self.fc: nn.Module = nn.Identity()
        if num_classes:
            self.fc = nn.Linear(self.embed_dim, num_classes, device=old.device if old is not None else None)
            init_weights(self.fc)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x[:, 0] if self.global_pool == "token" else x[:, 1:].mean(dim=1)
        return x if pre_logits else self.fc(x)

    @staticmethod
    def cost(embed_dim: int, num_classes: int, **costless: Any) -> Cost:
        return linear_cost(1, embed_dim, num_classes) if num_classes else Cost()


class MapHead(TokenHead):
    """Classifier on the mean of a feature map, with dropout before it."""

    def __init__(self, embed_dim: int, num_classes: int, global_pool: str = "avg", drop_rate: float = 0.0) -> None:
        super().__init__(embed_dim, num_classes, global_pool)
        self.drop_rate = drop_rate

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = F.dropout(x.mean((2, 3)), self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)
