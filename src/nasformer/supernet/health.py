"""Is a supernet in good health? Larger subnets should not be worse than smaller ones, on average.

`subnets` are the ones to look at again and again; `alarms.py` says what their accuracies mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from statistics import mean
from typing import Any

from nasformer.families.space import Space
from nasformer.rank_correlation import spearman
from nasformer.space import Arch

RANDOM = 10
"""Random subnets among those that are looked at."""


def subnets(space: Space, seed: int = 0) -> dict[str, Arch]:
    """The subnets by which a supernet is judged over its training, by name: always the same for a space and seed.

    The middle one has the median number of parameters of many random ones.

    >>> import nasformer
    >>> list(subnets(nasformer.get_space("autoformer-tiny")))[:4]
    ['smallest', 'middle', 'largest', 'random 0']
    """
    rng, many = Random(f"check-up {seed}"), Random(f"middle {seed}")
    by_size = sorted((space.sample(many) for _ in range(101)), key=lambda arch: space.cost(arch).params)
    found = {"smallest": space.root.smallest(), "middle": by_size[50], "largest": space.root.largest()}
    return found | {f"random {number}": space.sample(rng) for number in range(RANDOM)}


def dimensions(space: Space, archs: Mapping[str, Arch]) -> dict[str, list[float]]:
    """How deep and how wide archs are. Width is that of all their layers, relative to those of the others in the mean.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> found = dimensions(space, {"small": space.root.smallest(), "large": space.root.largest()})
    >>> found["depth"], [round(width, 2) for width in found["width"]]
    ([6, 9], [0.67, 1.33])
    """
    sizes = [widths(space, arch) for arch in archs.values()]
    names = {name for one in sizes for name in one}
    usual = {name: mean(one[name] for one in sizes if name in one) for name in names}
    width = [mean(value / usual[name] for name, value in one.items()) if one else 1.0 for one in sizes]
    return {"depth": [len(space.plan(arch)) for arch in archs.values()], "width": width}


def widths(space: Space, arch: Arch) -> dict[str, float]:
    """Every size of an arch but its depths, in the mean over its layers, by name."""
    found: dict[str, list[float]] = {}
    for path, role, value in space.root.genes(arch):
        place: Any = arch
        for step in path:
            place = place[step]
        if role == "size" and not isinstance(place, tuple) and isinstance(value, int | float):
            name = ".".join(step for step in path if isinstance(step, str))
            found.setdefault(name, []).append(float(value))
    return {name: mean(values) for name, values in found.items() if mean(values)}


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
    found = [row["accuracy"] for row in others]
    rank = spearman([row["params"] for row in others], found)
    return {
        "smallest": smallest["accuracy"],
        "largest": largest["accuracy"],
        "random_mean": sum(found) / len(found),
        "random_range": [min(found), max(found)],
        "rank_correlation": rank,
        "healthy": largest["accuracy"] >= smallest["accuracy"] and (rank or 0) >= 0,
    }
