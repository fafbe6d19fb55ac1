"""Sampling errors of accuracies: how far that on so many images may be from that on all images of their kind."""

from __future__ import annotations

import math

Z = 1.96
"""Standard errors on each side of a 95 % interval."""


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which makes sense near 0 and 1 too.

    >>> [round(end, 3) for end in wilson(0.9, 80)], [round(end, 3) for end in wilson(0, 100)]
    ([0.815, 0.948], [0.0, 0.037])
    """
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return (max(0.0, centre - half) if share else 0.0), (min(1.0, centre + half) if share < 1 else 1.0)


def standard_error(share: float, count: int) -> float:
    """The standard error of an accuracy on so many images; all right or all wrong counts as half an image less.

    >>> round(standard_error(0.5, 80), 3), round(standard_error(1.0, 80), 3)
    (0.056, 0.009)
    """
    share = min(max(share, 0.5 / count), 1 - 0.5 / count)
    return math.sqrt(share * (1 - share) / count)
