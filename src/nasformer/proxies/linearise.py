"""What SynFlow does to a network before it looks at it: all that is learned becomes positive, in double precision."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


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
