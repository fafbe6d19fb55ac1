"""How good a space is: its E-T error (S3), the mean of what one can Expect of its archs and of what the Top ones reach.

S3 samples archs within a budget and takes the best 50 as the top. Groups of samples (those that use a value of a
dimension) differ in size, so for them the top is the same share of the group: ours, as the paper is silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Quality:
    """The errors of a space in %, lower is better.

    >>> Quality(expected=30.0, top=20.0).et
    25.0
    """

    expected: float
    top: float

    @property
    def et(self) -> float:
        return (self.expected + self.top) / 2


def quality(errors: Sequence[float], share: float) -> Quality:
    """The E-T error of samples, of which the best `share` are the top: at least one of them.

    >>> quality([40, 10, 30, 20], share=0.5)
    Quality(expected=25.0, top=15.0)
    """
    sorted_errors = np.sort(np.asarray(errors, dtype=float))
    expected, top = group_errors(sorted_errors, np.ones(len(sorted_errors)), share)
    return Quality(float(expected), float(top))


def group_errors(errors: np.ndarray, weights: np.ndarray, share: float) -> tuple[Any, Any]:
    """The expected and the top error of groups of samples.

    The top of a group are its best samples up to the share of the group's weight, the last of them in part. It weighs
    as much as one arch at least, where the group does.

    Args:
        errors: Of all samples, the smallest first.
        weights: How much each sample (last axis) belongs to each group (axes before).
    """
    up_to = np.cumsum(weights, axis=-1)
    total = up_to[..., -1]
    mass = np.minimum(total, np.maximum(1.0, share * total))
    taken = np.clip(mass[..., None] - (up_to - weights), 0.0, weights)
    with np.errstate(invalid="ignore"):  # a group without samples has no error
        return (weights * errors).sum(-1) / total, (taken * errors).sum(-1) / mass
