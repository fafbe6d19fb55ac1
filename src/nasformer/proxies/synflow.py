"""SynFlow and LogSynflow: how much signal flows through all paths of a network, whatever the data.

Both make everything positive, in double precision, and differentiate the sum of the logits R for an image of ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nasformer.proxies.parts import batch_norms, kaiming_fan_out, reinitialise, weight_layers
from nasformer.proxies.probe import Probe
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan, inner, logit_gradients


@register_proxy(
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
    gradients, layers = logit_gradients(model, probe.ones().double()), weight_layers(model)
    flow = sum(inner(gradient.abs(), layers[name].weight) for name, gradient in gradients.items())
    if flow == 0:
        raise Inapplicable("no signal flows through the model, so its flow has no logarithm")
    return finite_or_nan(math.log10(flow))


@register_proxy(
    "logsynflow",
    formula="sum |W . log(1 + |dR/dW|)|, R = sum of f(1; |theta|), norms as constants",
    sees="ones",
    loss="sum of the logits",
    init="Kaiming normal by fan-out, gains 1, absolute values, in double precision",
    higher="more weights that signal flows through",
    paper="Cavagnero et al., FreeREA, WACV 2023",
)
def logsynflow(model: nn.Module, probe: Probe) -> float:
    """SynFlow with gradients damped by a logarithm, so that deep networks do not win by explosion.

    FreeREA leaves out batch norm, the only norm of its networks. Layer norm cannot just go, or transformers overflow;
    but it is made a constant scale (`ConstantNorms`). With layer norm as it is, the score hardly changed with the depth
    of a hybrid net, and with the seed nearly as much as with the topology; now it grows with size and changes by parts
    in a thousand (docs/results.md). Hence also one initialisation, where FreeREA averages over three.

    FreeREA has log(1 + g), with g >= 0 in its networks. GELU and softmax can make g negative, even below -1: hence
    log(1 + |g|). Auto-Prox has |log g| instead, another score that is undefined for such g.

    Gains are 1. FreeREA's networks have none but those of batch norm. With ConvNeXt's layer scale at 1e-6, where it
    starts, the gradients of a whole block vanish beside the 1 of log(1 + |g|).
    """
    reinitialise(model, kaiming_fan_out, probe.generator("logsynflow"))
    linearise(model)
    with ConstantNorms():
        gradients = logit_gradients(model, probe.ones().double())
    layers = weight_layers(model)
    return finite_or_nan(
        sum(inner(gradient.abs().log1p(), layers[name].weight) for name, gradient in gradients.items())
    )


@torch.no_grad()
def linearise(model: nn.Module) -> None:
    """Makes every parameter its absolute value, every batch norm the identity, and the whole model double.

    A network of linear layers, convolutions and ReLUs is then a linear function on positive inputs. Layer norm, softmax
    and GELU stay what they are. zero-cost-nas takes the absolute value of buffers as well; ours stay, because what is
    a buffer and not a statistic of batch norm is a constant, such as the -100 of an attention mask.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    >>> _ = nn.init.constant_(net[0].weight, -1.0), nn.init.zeros_(net[0].bias), net[1].running_mean.fill_(7.0)
    >>> linearise(net)
    >>> net(torch.ones(1, 2).double()).tolist()
    [[2.0, 2.0]]
    """
    model.double()
    device = next(model.parameters(), torch.empty(0)).device
    for norm in batch_norms(model):
        _make_identity(norm, device)
    for parameter in model.parameters():
        parameter.abs_()


def _make_identity(norm: _BatchNorm, device: torch.device) -> None:
    """Sets its numbers rather than removing it: some batch norms carry an activation that has to stay."""
    norm.eval()
    norm.running_mean = torch.zeros(norm.num_features, dtype=torch.double, device=device)
    norm.running_var = torch.ones(norm.num_features, dtype=torch.double, device=device) - norm.eps
    if norm.affine:
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)


class ConstantNorms(TorchFunctionMode):
    """Context in which layer norm, RMS norm and group norm divide by the size of their input as by a constant.

    Gradients then pass a norm as they pass a linear layer. As it is, a norm hides the scale of all that lies before it:
    the gradients there nearly cancel, and what is left of them is noise. To leave norms out would do as well, but a
    transformer then leaves the range of numbers.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> with ConstantNorms():
    ...     y = F.layer_norm(x, (2,))
    >>> torch.autograd.grad(y.sum(), x)[0].mul(12.5**0.5)  # one over the root of the mean square
    tensor([[1., 1.]])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _NORMS:
            return func(*args, **(kwargs or {}))
        x, shape, weight, bias = _NORMS[func](*args, **(kwargs or {}))
        last = tuple(range(-len(shape), 0))
        y = x / x.detach().square().mean(last, keepdim=True).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        return (y if weight is None else y * weight) + (0 if bias is None else bias)


def _layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 0) -> tuple[Any, ...]:
    return x, shape, weight, bias


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> tuple[Any, ...]:
    return x, shape, weight, None


def _group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 0) -> tuple[Any, ...]:
    """Over an image rather than over each group: for a constant scale that is near enough."""
    channels = (-1, *[1] * (x.dim() - 2))
    return x, x.shape[1:], *(part if part is None else part.view(channels) for part in (weight, bias))


_NORMS: dict[Any, Any] = {F.layer_norm: _layer_norm, F.rms_norm: _rms_norm, F.group_norm: _group_norm}
