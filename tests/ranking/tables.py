"""Tables with made-up accuracies, of archs drawn at random."""

from __future__ import annotations

import numpy as np

from nasformer.families.registry import get_space
from nasformer.ranking.table import Table, trivial_counts

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
