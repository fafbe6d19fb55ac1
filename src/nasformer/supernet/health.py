"""Is a supernet in good health? Larger subnets should not be worse than smaller ones, on average.

`subnets` are the ones to look at again and again; `alarms.py` says what their accuracies mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import mean, median, pstdev
from typing import Any

from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.utils.rank_correlation import kendall, spearman

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


# ----------------------------------------------------------------------------------------------------------------------
# What may be wrong with a supernet, from numbers alone: its loss, and the accuracy of some fixed subnets over time.
#
# Thresholds are set so that noise rarely raises an alarm; each alarm says what was found and what to do about it.
# ----------------------------------------------------------------------------------------------------------------------

WORSE = -0.3  # a rank correlation below this says "on average worse" ...
GAP = 0.005  # ... if it also costs so much accuracy, between the upper and the lower half
FLIPPED = 0.3  # Kendall's tau between looks, below which ranks flip
CHANCE = 1.2  # times the accuracy of guessing
NOISE, LOST = 8.0, 0.2  # a loss is reset that jumps by so many times its noise, and by this share of all it had gained
WORDS = {"depth": ("deeper", "sandwich training or a longer one"), "width": ("wider", "sandwich training")}


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong.

    Args:
        name: For programs.
        finding: What was found, in words.
        advice: What to do, in words.
    """

    name: str
    finding: str
    advice: str


def gap(sizes: Sequence[float], accuracies: Sequence[float]) -> float:
    """How much better those of above median size are than those below, in the mean.

    >>> round(gap([1, 2, 3, 4], [0.5, 0.7, 0.6, 0.9]), 3)
    0.15
    """
    middle = median(sizes)
    above = [accuracy for size, accuracy in zip(sizes, accuracies, strict=True) if size > middle]
    below = [accuracy for size, accuracy in zip(sizes, accuracies, strict=True) if size < middle]
    return sum(above) / len(above) - sum(below) / len(below) if above and below else 0.0


def dimension_alarms(dimensions: Mapping[str, Sequence[float]], accuracies: Sequence[float]) -> list[Alarm]:
    """Is deeper or wider worse on average? `dimensions` are sizes of the subnets by the names in `WORDS`."""
    found = []
    for name, sizes in dimensions.items():
        rank, lead = spearman(sizes, accuracies), gap(sizes, accuracies)
        if rank is not None and rank < WORSE and lead < -GAP:
            more, remedy = WORDS[name]
            told = f"{more} subnets are worse: by {-100 * lead:.1f} points on average, rank correlation {rank:+.2f}"
            found.append(Alarm(name, told, f"large subnets are trained too little: try {remedy} (--train.sandwich 2)"))
    return found


def extreme_alarms(smallest: float, largest: float, others: Sequence[float]) -> list[Alarm]:
    """Is the largest worse than the smallest, by more than any subnets differ?"""
    if largest >= smallest - max(GAP, pstdev(others)):
        return []
    told = f"the largest subnet ({largest:.2%}) is worse than the smallest ({smallest:.2%})"
    return [Alarm("extremes", told, "train longer (--train.epochs), or with --train.sandwich 2")]


def rank_agreement(looks: Sequence[Mapping[str, float]]) -> list[float | None]:
    """Kendall's tau of the subnets' ranks between each look and the next; None where all were alike.

    >>> rank_agreement([{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}, {"a": 9, "b": 8, "c": 7}])
    [1.0, -1.0]
    """
    pairs = pairwise(list(look.values()) for look in looks)
    taus = [kendall(one, two) for one, two in pairs]
    return [None if tau is None else round(tau, 4) for tau in taus]


def flip_alarms(taus: Sequence[float | None]) -> list[Alarm]:
    """Do ranks flip between looks? Those of the first half do, since everything is still being learned."""
    late = [tau for tau in taus[len(taus) // 2 :] if tau is not None]
    if len(taus) < 2 or not late or sum(late) / len(late) >= FLIPPED:
        return []
    told = f"ranks of subnets flip from look to look: Kendall's tau {sum(late) / len(late):+.2f} in the second half"
    return [Alarm("flips", told, "a search would follow noise: train longer, or hold out more images (--holdout)")]


def loss_alarms(losses: Sequence[float]) -> list[Alarm]:
    """Is there a loss that is not finite, or a jump up that is far beyond its noise and loses much of what was won?"""
    if not all(map(math.isfinite, losses)):
        return [Alarm("not finite", "the loss is not finite", "lower --train.lr, or set --train.clip_grad 1")]
    steps = [b - a for a, b in pairwise(losses)]
    if len(steps) < 3:
        return []
    usual = median(steps)
    noise = 1.4826 * median(abs(step - usual) for step in steps)
    for place, step in enumerate(steps):
        gained = losses[0] - min(losses[: place + 1])
        if step > NOISE * noise and step > LOST * gained > 0:
            told = f"the loss jumps from {losses[place]:.3f} to {losses[place + 1]:.3f} at line {place + 2} of the log"
            return [Alarm("reset", told, "training began to diverge: lower --train.lr, or set --train.clip_grad 1")]
    return []


def chance_alarms(best: float, classes: int) -> list[Alarm]:
    if best > CHANCE / classes:
        return []
    told = f"no subnet is better than guessing: {best:.2%} at best, with {classes} classes"
    return [Alarm("chance", told, "nothing was learned: check images and labels, and --train.lr")]
