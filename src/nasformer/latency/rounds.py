"""Timing many nets on a machine that is never quiet.

All nets are visited in every round, in another order each time: what slows the machine down for a while slows all of
them. A visit is a run to warm up and a few that count, of which the median stays; over the rounds, again the median.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from contextlib import contextmanager
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from nasformer.latency.clock import Clock
from nasformer.latency.runners import Step
from nasformer.progress import progress

VISIT = 0.1  # seconds of a visit, at least
FEWEST, MOST = 3, 50  # runs of a visit


@dataclass
class Timed:
    """A net and its times in seconds: one for each round; of its layers too, where it has a chain."""

    net: Step
    chain: Sequence[Step] = ()
    wholes: list[float] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.wholes)


def time_all(nets: Sequence[Timed], images: Any, clock: Clock, rounds: int, seed: int = 0, label: str = "") -> None:
    """Fills in the times of the nets."""
    rng, order = random.Random(seed), list(nets)
    with undisturbed(), progress(label, rounds * len(order), quiet=not label) as report:
        for number in range(rounds):
            rng.shuffle(order)
            for place, net in enumerate(order):
                visit(net, images, clock)
                report(number * len(order) + place + 1)


def visit(net: Timed, images: Any, clock: Clock) -> None:
    clock.whole(net.net, images)
    first = clock.whole(net.net, images)
    runs = min(max(FEWEST, round(VISIT / max(first, 1e-9))), MOST)
    net.wholes.append(median([first, *(clock.whole(net.net, images) for _ in range(runs - 1))]))
    if net.chain:
        clock.parts(net.chain, images)
        found = [clock.parts(net.chain, images) for _ in range(runs)]
        net.parts.append([median(times) for times in zip(*found, strict=True)])


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
