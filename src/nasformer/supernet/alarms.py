"""What may be wrong with a supernet, from numbers alone: its loss, and the accuracy of some fixed subnets over time.

Thresholds are set so that noise rarely raises an alarm; each alarm says what was found and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, pstdev

from nasformer.rank_correlation import kendall, spearman

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
