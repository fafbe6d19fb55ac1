"""Sharing rules: which slice of a shared weight a smaller member of the space uses.

A rule takes the shared tensor and the smaller shape and returns the slice. Rules are ordinary differentiable tensor
code, so autograd, torch.compile and extraction all follow from the same few lines. The rule of a statistic (of batch
norm) must return a view, since training updates it in place; `prefix` and `centre_crop` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Size, Tensor

SharingRule = Callable[[Tensor, Size], Tensor]


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


def grouped_prefix(groups: int, dims: Sequence[int] = (0,)) -> SharingRule:
    """The first entries of each of `groups` equal groups along some dimensions; the first ones along the others.

    With 3 groups it takes the first rows of q, of k and of v in one matrix.

    >>> import torch
    >>> grouped_prefix(3)(torch.arange(6), torch.Size([3])).tolist()
    [0, 2, 4]
    """

    def rule(shared: Tensor, shape: Size) -> Tensor:
        shared = prefix(shared, Size(shared.shape[d] if d in dims else size for d, size in enumerate(shape)))
        for dim in dims:
            if shared.shape[dim] != shape[dim]:
                size = shape[dim] // groups
                shared = shared.unflatten(dim, (groups, -1)).narrow(dim + 1, 0, size).flatten(dim, dim + 1)
                shared = shared.contiguous()  # groups of one entry make a view with gaps, which kernels are slow on
        return shared

    return rule


def resampled_positions(prefix_tokens: int) -> SharingRule:
    """The first channels of absolute positions, resampled to a smaller square grid; those of other tokens stay.

    >>> import torch
    >>> resampled_positions(1)(torch.zeros(1, 17, 8), torch.Size([1, 5, 6])).shape
    torch.Size([1, 5, 6])
    """

    def rule(shared: Tensor, shape: Size) -> Tensor:
        shared = prefix(shared, Size([1, shared.shape[1], shape[2]]))
        if shared.shape[1] == shape[1]:
            return shared
        from timm.layers import resample_abs_pos_embed

        before, after = (math.isqrt(count - prefix_tokens) for count in (shared.shape[1], shape[1]))
        return resample_abs_pos_embed(shared, [after, after], [before, before], prefix_tokens)

    return rule


def centre_crop(shared: Tensor, shape: Size) -> Tensor:
    """The first filters of a convolution, cropped to their centre: a small kernel is the middle of a large one.

    >>> import torch
    >>> centre_crop(torch.arange(50).reshape(2, 1, 5, 5), torch.Size([1, 1, 3, 3])).tolist()
    [[[[6, 7, 8], [11, 12, 13], [16, 17, 18]]]]
    """
    return prefix(crop_window(shared, shape), shape)


def crop_window(shared: Tensor, shape: Size) -> Tensor:
    """The middle along the last two dimensions; the others stay whole."""
    for dim in (-2, -1):
        shared = shared.narrow(dim, (shared.shape[dim] - shape[dim]) // 2, shape[dim])
    return shared


@dataclass(frozen=True)
class MultiHeadSharing:
    """TrioNet's Multi-Head Sharing: the first channels of every head, so that channels stay in their head.

    The number of heads is an option of the member's layer, so this becomes a rule only when the layer is known. A layer
    without heads, such as a convolution that shares a weight with attention, takes its prefix.

    >>> import torch
    >>> rule = MultiHeadSharing().bind({"num_heads": 2})
    >>> rule(torch.arange(8), torch.Size([4])).tolist()
    [0, 1, 4, 5]

    Args:
        dims: Which dimensions are channels in the order of heads.
        crop: Whether the last two dimensions are a window, which smaller ones crop to its centre.
        option: Name of the option.
    """

    dims: tuple[int, ...] = (0,)
    crop: bool = False
    option: str = "num_heads"

    def bind(self, options: Mapping[str, Any]) -> SharingRule:
        """The rule for a layer with these options."""
        by_head = grouped_prefix(options.get(self.option, 1), self.dims)
        if not self.crop:
            return by_head
        return lambda shared, shape: by_head(crop_window(shared, shape), shape)


SharingRules = Mapping[str, SharingRule | MultiHeadSharing]
"""Rules by the end of a weight's name."""


def declared_rule(name: str, rules: SharingRules) -> SharingRule | MultiHeadSharing:
    """The rule whose key ends the weight's name; `prefix` where none is declared."""
    return next((rule for suffix, rule in rules.items() if name.endswith(suffix)), prefix)


def rule_for(name: str, rules: SharingRules, options: Mapping[str, Any] | None = None) -> SharingRule:
    """The declared rule, bound to the options of the layer that the weight belongs to."""
    rule = declared_rule(name, rules)
    return rule.bind(options or {}) if isinstance(rule, MultiHeadSharing) else rule
