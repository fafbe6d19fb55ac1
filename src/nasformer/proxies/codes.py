"""The binary codes of a network's activation layers: which units an image switches on, and how far two images agree."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nasformer.proxies.proxy import Inapplicable

# By name, because timm and others have classes of their own for the same functions. All have the sign of their input,
# more or less; gates (sigmoid, softmax) and tanh are no switches and do not count.
NAMES = frozenset(
    {"relu", "relu6", "leakyrelu", "prelu", "elu", "selu", "celu", "gelu", "gelutanh", "quickgelu", "silu", "swish"}
    | {"mish", "hardmish", "hardswish", "relusquared", "squaredrelu", "starrelu"}
)


def activations(model: nn.Module) -> list[nn.Module]:
    """The layers that switch units on and off."""
    return [module for module in model.modules() if type(module).__name__.lower() in NAMES]


@torch.no_grad()
def code_agreement(model: nn.Module, images: Tensor) -> Tensor:
    """How many units treat images i and j alike: [batch, batch] of exact integers in double precision.

    A unit is one entry of what goes into an activation layer (one channel of one token or pixel), its code is whether
    that is positive. Counts are added up layer by layer; no codes are kept. The diagonal is the number of units.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU())
    >>> code_agreement(net, torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -2.0]])).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """
    layers, batch = activations(model), len(images)
    total = torch.zeros(batch, batch, dtype=torch.float64, device=images.device)

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) % batch:
            return  # not about the images, such as a small net that makes position biases
        signs = (inputs[0].reshape(batch, -1) > 0).to(torch.float32) * 2 - 1
        # Sums of +1 and -1 are exact in single precision up to 2^24 units a layer, in any order and on any device.
        total.add_(((signs @ signs.T).double() + signs.shape[1]) / 2)

    handles = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not total.any():
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...), so no binary codes")
    return total
