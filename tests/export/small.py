"""A small space of every family."""

from __future__ import annotations

from functools import cache

from families.small import SPACES, randomise
from nasformer.export.standalone import layer_classes
from nasformer.families.base import Backbone
from nasformer.families.space import Space
from nasformer.space.arch import Arch

FAMILIES = sorted({space.model.family for space in SPACES.values()})


def small_of(family: str) -> Space:
    """The space of a family that has the smallest net."""
    spaces = [space for space in SPACES.values() if space.model.family == family]
    return min(spaces, key=lambda space: space.cost(space.root.smallest()).params)


@cache
def telling_arch(family: str) -> Arch:
    """Of a hundred archs the shortest one that has the most kinds of layers."""
    space = small_of(family)

    def rank(arch: Arch) -> tuple[int, int]:
        plan = space.plan(arch)
        return -len(layer_classes(plan)), len(plan)

    return min((space.sample(seed) for seed in range(100)), key=rank)


def small_model(family: str) -> Backbone:
    return randomise(small_of(family).build(telling_arch(family))).eval()
