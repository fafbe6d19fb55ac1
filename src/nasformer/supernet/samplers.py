"""Samplers: which archs a training step runs. Pure functions of (seed, step), so that all processes agree.

They differ in two independent ways: how likely each alternative (operator) of a space is, and whether a step runs one
arch or a sandwich of several.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.space.oneof import ByCardinality

Sampler = Callable[[int], list[Arch]]
MakeSampler = Callable[[Space, int], Sampler]


def hierarchical(space: Space, seed: int = 0) -> Sampler:
    """One random arch a step: each operator is equally likely, then each of its configurations (TrioNet's).

    >>> import nasformer
    >>> sampler = hierarchical(nasformer.get_space("autoformer-tiny"), seed=7)
    >>> sampler(3) == sampler(3), sampler(3) == sampler(4)
    (True, False)
    """
    return lambda step: [space.sample(random.Random(f"uniform {seed} {step}"))]


def uniform(space: Space, seed: int = 0) -> Sampler:
    """One random arch a step: each configuration is equally likely, so operators with many of them come often.

    In a space without alternatives, such as AutoFormer's, there is nothing to weigh: the same archs as `hierarchical`.
    Depths are drawn uniformly in both; else nearly all archs would be of the largest.
    """
    return lambda step: [space.sample(ByCardinality(f"uniform {seed} {step}"))]


SAMPLERS: dict[str, MakeSampler] = {"uniform": uniform, "hierarchical": hierarchical}


def sandwich(space: Space, seed: int = 0, *, inner: MakeSampler = hierarchical, randoms: int = 2) -> Sampler:
    """The largest, the smallest and so many random archs a step, in this order, all with the same operators.

    First `inner` draws an operator for every place of the deepest arch; then everything else is the largest, the
    smallest or uniformly random, the depth included. Without alternatives it is the plain sandwich rule.

    >>> import nasformer
    >>> largest, smallest, *others = sandwich(nasformer.get_space("autoformer-tiny"))(0)
    >>> len(largest.blocks), len(smallest.blocks), len(others)
    (14, 12, 2)
    """
    root = space.root
    operators = inner(replace(space, root=root.deepest()), seed)

    def sample(step: int) -> list[Arch]:
        (given,), rng = operators(step), random.Random(f"sandwich {seed} {step}")
        return [root.largest(given), root.smallest(given), *(root.sample(rng, given) for _ in range(randoms))]

    return sample


def make_sampler(space: Space, name: str = "hierarchical", randoms: int = 0, seed: int = 0) -> Sampler:
    """The sampler of this name, or with `randoms` above 0 a sandwich around it."""
    inner = SAMPLERS[name]
    return sandwich(space, seed, inner=inner, randoms=randoms) if randoms else inner(space, seed)
