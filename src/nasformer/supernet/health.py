"""Health of a supernet: larger subnets should not be worse than smaller ones, on average.

`fixed_subnets` are evaluated again and again during a training; a *snapshot* is their accuracies at one time. The
alarms tell from numbers alone, the loss and the snapshots, what may be wrong and what to do about it. `check_up` is the
verdict on a trained supernet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import mean, median, pstdev
from typing import Any

from nasformer.models.space import Space
from nasformer.search.problem import ModelResult
from nasformer.space.arch import Arch
from nasformer.utils.statistics import Z, kendall, spearman, standard_error

RANDOM_SUBNETS = 10


def fixed_subnets(space: Space, seed: int = 0) -> dict[str, Arch]:
    """The subnets by which a supernet is judged over its training, by name: always the same for a space and seed.

    The middle one has the median number of parameters of 101 random ones.

    >>> import nasformer
    >>> list(fixed_subnets(nasformer.get_space("autoformer-tiny")))[:4]
    ['smallest', 'middle', 'largest', 'random 0']
    """
    rng = Random(f"middle {seed}")
    by_size = sorted((space.sample(rng) for _ in range(101)), key=lambda arch: space.cost(arch).params)
    subnets = {"smallest": space.root.smallest(), "middle": by_size[50], "largest": space.root.largest()}
    return subnets | random_subnets(space, seed, RANDOM_SUBNETS)


def random_subnets(space: Space, seed: int, count: int) -> dict[str, Arch]:
    """Random subnets by name; a larger count only adds some."""
    rng = Random(f"check-up {seed}")
    return {f"random {number}": space.sample(rng) for number in range(count)}


def depth_and_width(space: Space, archs: Mapping[str, Arch]) -> dict[str, list[float]]:
    """Depths and widths of archs; a width is relative to the mean over all of them.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> sizes = depth_and_width(space, {"small": space.root.smallest(), "large": space.root.largest()})
    >>> sizes["depth"], [round(width, 2) for width in sizes["width"]]
    ([6, 9], [0.67, 1.33])
    """
    sizes = [mean_sizes(space, arch) for arch in archs.values()]
    names = {name for size in sizes for name in size}
    usual = {name: mean(size[name] for size in sizes if name in size) for name in names}
    width = [mean(value / usual[name] for name, value in size.items()) if size else 1.0 for size in sizes]
    return {"depth": [len(space.plan(arch)) for arch in archs.values()], "width": width}


def mean_sizes(space: Space, arch: Arch) -> dict[str, float]:
    """Every size of an arch but its depths, as the mean over its layers, by name."""
    sizes: dict[str, list[float]] = {}
    for path, role, value, _ in space.root.genes(arch):
        gene: Any = arch
        for step in path:
            gene = gene[step]
        if role == "size" and not isinstance(gene, tuple) and isinstance(value, int | float):
            name = ".".join(step for step in path if isinstance(step, str))
            sizes.setdefault(name, []).append(float(value))
    return {name: mean(values) for name, values in sizes.items() if mean(values)}


# The verdict on a trained supernet.


@dataclass(frozen=True)
class SupernetHealth:
    """How the subnets of a supernet compare: accuracies, and whether larger ones are better.

    Args:
        rank_correlation: Spearman's, of accuracy with parameters over the random subnets: negative means that the
            supernet favours small subnets, which a sound one does not.
    """

    subnets: list[ModelResult]
    smallest: float
    largest: float
    random_mean: float
    random_range: tuple[float, float]
    rank_correlation: float | None
    healthy: bool


def check_up(space: Space, accuracy: Callable[[Arch], float], seed: int = 0, count: int = 20) -> SupernetHealth:
    """Accuracy of the smallest and largest subnet and of random ones, and how it goes with their size."""
    archs = {"smallest": space.root.smallest(), "largest": space.root.largest()}
    archs |= random_subnets(space, seed, count)
    subnets = [
        ModelResult(name, arch.to_dict(), {**space.costs(arch), "accuracy": accuracy(arch)})
        for name, arch in archs.items()
    ]
    smallest, largest, *others = (subnet["accuracy"] for subnet in subnets)
    rank = spearman([subnet["params"] for subnet in subnets[2:]], others)
    return SupernetHealth(
        subnets,
        smallest,
        largest,
        random_mean=sum(others) / len(others),
        random_range=(min(others), max(others)),
        rank_correlation=rank,
        healthy=largest >= smallest and (rank or 0) >= 0,
    )


# Alarms. Their thresholds are set so that noise rarely raises one.

WORSE = -0.3  # a rank correlation below this says "on average worse" ...
GAP = 0.005  # ... if it also costs so much accuracy, between the upper and the lower half
FLIPPED = 0.3  # Kendall's tau between snapshots, below which ranks flip
CHANCE = 1.2  # times the accuracy of guessing
NOTHING = 1e-4  # a score below which nothing is found
NOISE, LOST = 8.0, 0.2  # a loss is reset that jumps by so many times its noise, and by this share of all it had gained
WORDS = {"depth": ("deeper", "sandwich training or a longer one"), "width": ("wider", "sandwich training")}


@dataclass(frozen=True)
class Alarm:
    """A problem of a supernet.

    Args:
        name: For programs.
        finding: What is wrong, in words.
        advice: What to do, in words.
    """

    name: str
    finding: str
    advice: str


def loss_alarms(losses: Sequence[float]) -> list[Alarm]:
    """Alarms for a loss that is not finite, or that jumps far beyond its noise and loses much of what was gained."""
    if not all(map(math.isfinite, losses)):
        return [Alarm("not finite", "the loss is not finite", "lower --train.lr, or set --train.clip_grad 1")]
    steps = [b - a for a, b in pairwise(losses)]
    if len(steps) < 3:
        return []
    usual = median(steps)
    noise = 1.4826 * median(abs(step - usual) for step in steps)
    for index, step in enumerate(steps):
        gained = losses[0] - min(losses[: index + 1])
        if step > NOISE * noise and step > LOST * gained > 0:
            finding = (
                f"the loss jumps from {losses[index]:.3f} to {losses[index + 1]:.3f} at line {index + 2} of the log"
            )
            return [Alarm("reset", finding, "training began to diverge: lower --train.lr, or set --train.clip_grad 1")]
    return []


def chance_alarms(best: float, largest: float, classes: int, images: int | None = None) -> list[Alarm]:
    """Alarm for subnets that do no better than guessing, or a largest one that is within noise of it.

    Args:
        images: How many the accuracies are from; None where that is not known.
    """
    advice = "nothing was learned: check images and labels, and --train.lr"
    if best <= CHANCE / classes:
        finding = f"no subnet is better than guessing: {best:.2%} at best, with {classes} classes"
        return [Alarm("chance", finding, advice)]
    if images and largest - 1 / classes <= Z * standard_error(1 / classes, images):
        scored = f"{largest:.2%} of {images:,} images"
        finding = f"the largest subnet ({scored}) is within noise of guessing among {classes} classes"
        return [Alarm("chance", finding, f"{advice}; or train longer (--train.epochs)")]
    return []


def nothing_alarms(best: float, score: str) -> list[Alarm]:
    """Alarm for subnets that score nothing, by a score for which chance is not known.

    >>> [alarm.finding for alarm in nothing_alarms(0.0, "PQ")], nothing_alarms(0.01, "PQ")
    (['no subnet scores anything: PQ 0.00% at best'], [])
    """
    if best >= NOTHING:
        return []
    advice = "nothing was learned yet: train longer (--train.epochs), or check the annotations and --train.lr"
    return [Alarm("nothing", f"no subnet scores anything: {score} {best:.2%} at best", advice)]


def baseline_alarms(best: float, baselines: Mapping[str, float], images: int | None) -> list[Alarm]:
    """Alarm for a best subnet that is worse than a simpler choice, beyond noise.

    >>> [alarm.finding for alarm in baseline_alarms(0.4, {"timm:resnet18": 0.8}, images=100)]
    ['timm:resnet18 is right on 80.00%, the best subnet on 40.00%']

    Args:
        baselines: Accuracies by name, on the same images.
        images: How many there are; None where that is not known, and noise is not either.
    """
    alarms = []
    for name, accuracy in baselines.items() if images else ():
        noise = Z * math.hypot(*(standard_error(share, images or 1) for share in (best, accuracy)))
        if accuracy - best > noise:
            finding = f"{name} is right on {accuracy:.2%}, the best subnet on {best:.2%}"
            advice = "the supernet learned too little: train longer (--train.epochs), or try another --train.lr"
            alarms.append(Alarm("baseline", finding, advice))
    return alarms


def extreme_alarms(smallest: float, largest: float, others: Sequence[float]) -> list[Alarm]:
    """Alarm for a largest subnet that is worse than the smallest, by more than subnets differ anyway."""
    if largest >= smallest - max(GAP, pstdev(others)):
        return []
    finding = f"the largest subnet ({largest:.2%}) is worse than the smallest ({smallest:.2%})"
    return [Alarm("extremes", finding, "train longer (--train.epochs), or with --train.sandwich 2")]


def dimension_alarms(sizes: Mapping[str, Sequence[float]], accuracies: Sequence[float]) -> list[Alarm]:
    """Alarms for deeper or wider subnets that are worse on average; `sizes` as `depth_and_width` gives them."""
    alarms = []
    for name, values in sizes.items():
        rank, lead = spearman(values, accuracies), gap(values, accuracies)
        if rank is not None and rank < WORSE and lead < -GAP:
            more, remedy = WORDS[name]
            finding = f"{more} subnets are worse: by {-100 * lead:.1f} points on average, rank correlation {rank:+.2f}"
            advice = f"large subnets are trained too little: try {remedy} (--train.sandwich 2)"
            alarms.append(Alarm(name, finding, advice))
    return alarms


def gap(sizes: Sequence[float], accuracies: Sequence[float]) -> float:
    """By how much archs above the median size are better than those below it, on average.

    >>> round(gap([1, 2, 3, 4], [0.5, 0.7, 0.6, 0.9]), 3)
    0.15
    """
    middle = median(sizes)
    above = [accuracy for size, accuracy in zip(sizes, accuracies, strict=True) if size > middle]
    below = [accuracy for size, accuracy in zip(sizes, accuracies, strict=True) if size < middle]
    return sum(above) / len(above) - sum(below) / len(below) if above and below else 0.0


def rank_agreement(snapshots: Sequence[Mapping[str, float]]) -> list[float | None]:
    """Kendall's tau of the subnets' ranks between each snapshot and the next; None where all were alike.

    >>> rank_agreement([{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}, {"a": 9, "b": 8, "c": 7}])
    [1.0, -1.0]
    """
    taus = [kendall(a, b) for a, b in pairwise(list(snapshot.values()) for snapshot in snapshots)]
    return [None if tau is None else round(tau, 4) for tau in taus]


def flip_alarms(taus: Sequence[float | None]) -> list[Alarm]:
    """Alarm for ranks that flip between snapshots of the second half; in the first half they always do."""
    late = [tau for tau in taus[len(taus) // 2 :] if tau is not None]
    if len(taus) < 2 or not late or sum(late) / len(late) >= FLIPPED:
        return []
    tau = sum(late) / len(late)
    finding = f"ranks of subnets flip from snapshot to snapshot: Kendall's tau {tau:+.2f} in the second half"
    return [Alarm("flips", finding, "a search would follow noise: train longer, or hold out more images (--holdout)")]
