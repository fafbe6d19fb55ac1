"""Is a supernet in good health? Larger subnets should not be worse than smaller ones, on average."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from scipy.stats import spearmanr

from nasformer.families.space import Space
from nasformer.space import Arch


def check_up(space: Space, accuracy: Callable[[Arch], float], seed: int = 0, count: int = 20) -> dict[str, Any]:
    """Accuracy of the smallest and largest subnet and of random ones, and how it goes with their size.

    ``rank_correlation`` is Spearman's, of accuracy with parameters over the random subnets: negative means that the
    supernet favours small subnets, which a sound one does not.
    """
    rng = Random(f"check-up {seed}")
    archs = {"smallest": space.root.smallest(), "largest": space.root.largest()}
    archs |= {f"random {number}": space.sample(rng) for number in range(count)}
    rows = [{"name": name, "arch": arch.to_dict(), **space.costs(arch)} for name, arch in archs.items()]
    for row, arch in zip(rows, archs.values(), strict=True):
        row["accuracy"] = accuracy(arch)
    return {"subnets": rows, **verdict(rows[0], rows[1], rows[2:])}


def verdict(smallest: dict[str, Any], largest: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    sizes, found = [row["params"] for row in others], [row["accuracy"] for row in others]
    varied = len(set(found)) > 1 and len(set(sizes)) > 1  # of constants there is no correlation
    correlation = float(spearmanr(sizes, found).statistic) if varied else None
    return {
        "smallest": smallest["accuracy"],
        "largest": largest["accuracy"],
        "random_mean": sum(found) / len(found),
        "random_range": [min(found), max(found)],
        "rank_correlation": correlation,
        "healthy": largest["accuracy"] >= smallest["accuracy"] and (correlation or 0) >= 0,
    }
