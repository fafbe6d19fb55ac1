"""Tables of random archs with made-up accuracies, and statistics of two columns."""

from __future__ import annotations

import numpy as np

from nasformer.models.registry import get_space
from nasformer.proxies.ranking import (
    Estimate,
    Interval,
    Resamples,
    Table,
    percentiles,
    same_band,
    signs,
    trivial_counts,
)

SPACE = get_space("autoformer-small", img_size=32, patch_size=8, num_classes=10)
Floats = np.ndarray


def standard(values: Floats) -> Floats:
    return (values - values.mean()) / values.std()


def made_up(rows: int = 200, seed: int = 0) -> tuple[Table, Floats, Floats]:
    """A table whose accuracy is size plus a hidden signal; with it the (standardised) size and that signal."""
    archs = [SPACE.sample(seed * rows + row) for row in range(rows)]
    size = standard(np.array(trivial_counts(SPACE, archs)["params"]))
    signal = np.random.default_rng(seed).normal(size=rows)
    return Table(SPACE, archs, {"top1": list(70 + 2 * size + signal)}), size, signal


def noise(rows: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(size=rows)


def interval(
    x: Floats, y: Floats, statistic: str, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> Interval | None:
    """The percentile bootstrap interval of a statistic over rows."""
    return percentiles(getattr(Resamples(len(x), resamples, seed), statistic)(signs(x), signs(y))[1:], level)


def within(x: Floats, y: Floats, band: Floats, resamples: int = 1000) -> Estimate:
    """Tau-b over all pairs that share a band."""
    return Estimate.of(Resamples(len(band), resamples).kendall(signs(x), signs(y), same_band(band)))
