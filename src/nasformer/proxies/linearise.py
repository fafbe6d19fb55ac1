"""What SynFlow does to a network before it looks at it: all that is learned becomes positive, in double precision."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode


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
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            make_identity(module, device)
    for parameter in model.parameters():
        parameter.abs_()


def make_identity(norm: _BatchNorm, device: torch.device) -> None:
    """By its numbers rather than by removal: some batch norms carry an activation that has to stay."""
    norm.eval()
    norm.running_mean = torch.zeros(norm.num_features, dtype=torch.double, device=device)
    norm.running_var = torch.ones(norm.num_features, dtype=torch.double, device=device) - norm.eps
    if norm.affine:
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)


class ConstantNorms(TorchFunctionMode):
    """Within it, layer norm, RMS norm and group norm divide by the size of what they see as by a constant.

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
        if func not in NORMS:
            return func(*args, **(kwargs or {}))
        x, shape, weight, bias = NORMS[func](*args, **(kwargs or {}))
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


NORMS: dict[Any, Any] = {F.layer_norm: _layer_norm, F.rms_norm: _rms_norm, F.group_norm: _group_norm}
