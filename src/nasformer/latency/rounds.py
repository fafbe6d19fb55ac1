"""Timing many nets on a machine that is never quiet.

All nets are visited in every round, in another order each time, and of a net's visits the median counts. Before and
after each visit a small net, always the same, is timed too: the pace. Where the machine is slower for a while, so is
the pace, and the visit's times are divided by it. (On two cores with four busy programs, the hold-out error of the
predictor went from 8 % to 1.7 % by the pace alone, to 2.2 % by counting processor time, to 1.3 % by both.)
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean, median, quantiles
from typing import Any

import torch

from nasformer.latency.clock import Clock
from nasformer.latency.runners import Step
from nasformer.progress import progress

VISIT = 0.1  # seconds of the runs of a visit, at least
FEWEST, MOST = 3, 50  # of these runs
PACE_RUNS = 10  # at most, each time


@dataclass
class Visit:
    """The median seconds of a few runs in a row: of the net, of each of its layers, and of the pacemaker meanwhile."""

    whole: float
    parts: list[float]
    pace: float


@dataclass
class Timed:
    """A net, with a chain of its layers where these are to be timed too, and its visits."""

    net: Step
    chain: Sequence[Step] = ()
    visits: list[Visit] = field(default_factory=list)

    def seconds(self, pace: float) -> float:
        """What the net takes when the pacemaker takes `pace`."""
        return median(visit.whole / visit.pace for visit in self.visits) * pace

    def layers(self, pace: float) -> list[list[float]]:
        """For each layer, its time in every visit."""
        return [[visit.parts[place] / visit.pace * pace for visit in self.visits] for place in range(len(self.chain))]


def time_all(
    nets: Sequence[Timed], images: Any, clock: Clock, *, pacemaker: Step, rounds: int, seed: int = 0, label: str = ""
) -> list[float]:
    """Visits the nets in rounds; returns the pace at every visit, in seconds."""
    rng, order, paces = random.Random(seed), list(nets), list[float]()
    with undisturbed(), progress(label, rounds * len(order), quiet=not label) as report:
        for _ in range(3):
            pacemaker(images)
        for _ in range(rounds):
            rng.shuffle(order)
            for net in order:
                net.visits.append(visit(net, images, clock, pacemaker))
                paces.append(net.visits[-1].pace)
                report(len(paces))
    return paces


def visit(net: Timed, images: Any, clock: Clock, pacemaker: Step) -> Visit:
    def pace() -> float:
        first = clock.whole(pacemaker, images)
        runs = min(round(VISIT / 5 / max(first, 1e-9)), PACE_RUNS)
        return median([first, *(clock.whole(pacemaker, images) for _ in range(runs - 1))])

    paces = [pace()]
    clock.whole(net.net, images)  # to warm up
    first = clock.whole(net.net, images)
    runs = min(max(FEWEST, round(VISIT / max(first, 1e-9))), MOST)
    whole = median([first, *(clock.whole(net.net, images) for _ in range(runs - 1))])
    paces.append(pace())
    parts: list[float] = []
    if net.chain:
        clock.parts(net.chain, images)
        found = [clock.parts(net.chain, images) for _ in range(runs - 1)]
        parts = [median(times) for times in zip(*found, strict=True)]
        paces.append(pace())
    return Visit(whole, parts, mean(paces))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the quartiles.

    >>> quartiles([1, 2, 3, 4, 5])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return float(values[0]), float(values[0]), float(values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


@contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients, and no garbage collection in between."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            yield
    finally:
        if enabled:
            gc.enable()
