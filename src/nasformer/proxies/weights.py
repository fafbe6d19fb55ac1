"""The weight matrices that proxies sum over, and the initialisations that some of them ask for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Layer = nn.Linear | nn.Conv2d


def weight_layers(model: nn.Module) -> dict[str, Layer]:
    """All linear and convolutional layers by name, the head included: what "all weights" means in the papers."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}


@torch.no_grad()
def reinitialise(model: nn.Module, draw: Callable[[Tensor, torch.Generator], None], source: torch.Generator) -> None:
    """Draws every linear and convolutional weight anew and sets their biases to 0; norms and positions stay."""
    for layer in weight_layers(model).values():
        fresh = torch.empty(layer.weight.shape)  # drawn on the CPU: the same numbers on every device
        draw(fresh, source)
        layer.weight.copy_(fresh)
        if layer.bias is not None:
            layer.bias.zero_()


def gaussian(weight: Tensor, source: torch.Generator) -> None:
    """N(0, 1), as Zen-NAS and NASWOT on transformers use it."""
    weight.normal_(generator=source)


def kaiming_fan_out(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu", generator=source)


def kaiming_fan_in(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu", generator=source)
