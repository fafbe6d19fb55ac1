"""Profiles and clocks that need no time: a layer takes as long as its closed-form costs say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nasformer.latency.measure import describe_machine
from nasformer.latency.profile import Entry, HoldOut, Profile, Setup, fit_laws, key_of
from nasformer.models.base import Backbone, Segment
from nasformer.models.registry import get_space
from nasformer.models.space import Space

MICRO = get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=10)
HERE = describe_machine(torch.device("cpu"), "eager")
ELSEWHERE = replace(HERE, processor="an abacus")
SETUP = Setup("cpu", "eager", 1, 1, "fp32", "processor time", 7, (1.0, 1.0, 1.0))
DRAWS = 200


def milliseconds(segment: Segment) -> float:
    cost = segment.cost()
    return 0.01 + cost.macs / 1e6 + cost.params / 1e6


def fake_profile(space: Space = MICRO, **changes: Any) -> Profile:
    """A table of every kind that two hundred draws have."""
    archs = [space.root.smallest(), space.root.largest(), *(space.sample(seed) for seed in range(DRAWS))]
    segments = [segment for arch in archs for segment in space.plan(arch)]
    table = {key_of(s): Entry(milliseconds(s), 0, 1, 5, 1000 + s.cost().params) for s in segments}
    facts: dict[str, Any] = {
        "space": space.name,
        "options": space.full_options,
        "setup": SETUP,
        "machine": HERE,
        "table": table,
        "laws": fit_laws(segments, table),
        "image_bytes": 256,
        "holdout": HoldOut(nets=30, median_error=0.02, p90_error=0.05),
    }
    return Profile(**(facts | changes))


def in_profiles(folder: Path, profile: Profile, name: str = "fake") -> Path:
    """The profile where a command that is run in the folder finds it."""
    path = folder / "profiles" / f"{name}.json"
    profile.save(path)
    return path


class FakeClock:
    """Every layer takes what its costs say, times a drift that grows with every reading of the clock."""

    name = "fake time"

    def __init__(self, space: Space, overhead: float = 0.0, drift: float = 0.0) -> None:
        self.space, self.overhead, self.drift, self.readings = space, overhead, drift, 0

    def slowness(self) -> float:
        self.readings += 1
        return (1 + self.drift * self.readings) / 1000

    def time_net(self, net: Backbone, x: Any) -> float:
        total = self.overhead + sum(map(milliseconds, self.space.plan(net.arch)))
        return total * self.slowness()

    def time_layers(self, layers: Sequence[Any], x: Any) -> list[float]:
        slowness = self.slowness()
        return [0.01 * (number + 1) * slowness for number in range(len(layers))]
