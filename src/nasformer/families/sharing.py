"""Sharing rules: which slice of a shared weight a smaller member of the space uses.

A rule takes the shared tensor and the smaller shape and returns the slice. Rules are ordinary differentiable tensor
code, so autograd, torch.compile and extraction all follow from the same few lines. The rule of a statistic (of batch
norm) must return a view, since training updates it in place; `prefix` and `centred` do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Size, Tensor

Rule = Callable[[Tensor, Size], Tensor]


def prefix(shared: Tensor, shape: Size) -> Tensor:
    """The first entries along every dimension: AutoFormer's weight entanglement.

    >>> import torch
    >>> prefix(torch.arange(12).reshape(3, 4), torch.Size([2, 3])).tolist()
    [[0, 1, 2], [4, 5, 6]]
    """
    for dim, size in enumerate(shape):
        if shared.shape[dim] != size:
            shared = shared.narrow(dim, 0, size)
    return shared


def grouped_prefix(groups: int) -> Rule:
    """The first rows of each of ``groups`` equal groups of rows, such as q, k and v in one matrix.

    >>> import torch
    >>> grouped_prefix(3)(torch.arange(6), torch.Size([3])).tolist()
    [0, 2, 4]
    """

    def rule(shared: Tensor, shape: Size) -> Tensor:
        if shared.shape == shape:
            return shared
        inner = Size([groups, shape[0] // groups, *shape[1:]])
        return prefix(shared.unflatten(0, (groups, -1)), inner).flatten(0, 1)

    return rule


def centred(shared: Tensor, shape: Size) -> Tensor:
    """The first filters of a convolution and the middle of each: a small kernel is the centre of a large one.

    >>> import torch
    >>> centred(torch.arange(50).reshape(2, 1, 5, 5), torch.Size([1, 1, 3, 3])).tolist()
    [[[[6, 7, 8], [11, 12, 13], [16, 17, 18]]]]
    """
    for dim in (2, 3):
        shared = shared.narrow(dim, (shared.shape[dim] - shape[dim]) // 2, shape[dim])
    return prefix(shared, shape)


def rule_for(name: str, rules: Mapping[str, Rule]) -> Rule:
    """The rule whose key ends the parameter's name; `prefix` where none is declared."""
    return next((rule for suffix, rule in rules.items() if name.endswith(suffix)), prefix)
