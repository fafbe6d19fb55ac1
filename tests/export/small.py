"""A small model of every family."""

from __future__ import annotations

from functools import cache
from typing import Any

from families.small import SPACES, randomise
from nasformer.models.base import Backbone, Segment
from nasformer.models.space import Space
from nasformer.space.arch import Arch

FAMILIES = sorted({space.model.family for space in SPACES.values()})


def small_of(family: str) -> Space:
    """The space of a family that has the net with the fewest layers."""

    def size(space: Space) -> tuple[int, int]:
        smallest = space.root.smallest()
        return len(space.plan(smallest)), space.cost(smallest).params

    return min((space for space in SPACES.values() if space.model.family == family), key=size)


@cache
def varied_arch(family: str) -> Arch:
    """Of a hundred archs the shortest that has the most kinds of layers: classes, operators, shifted windows."""
    space = small_of(family)

    def rank(arch: Arch) -> tuple[int, int]:
        plan = space.plan(arch)
        return -len(set(map(kind, plan))), len(plan)

    return min((space.sample(seed) for seed in range(100)), key=rank)


def kind(segment: Segment) -> tuple[Any, ...]:
    """Class and operators of a layer, and whether its windows are smaller than the map, so that shifting matters."""
    options: dict[str, Any] = dict(segment.options)
    switches = [value for value in options.values() if isinstance(value, type | bool)]
    return segment.layer, *switches, options.get("window", 0) < options.get("grid", (0,))[0]


def small_model(family: str) -> Backbone:
    return randomise(small_of(family).build(varied_arch(family))).eval()
