"""Samplers: which archs a training step runs, as a function of (seed, step), so that all processes agree.

They differ in two independent ways: how likely each alternative (operator) of a space is, and whether a step runs one
arch or a sandwich of several.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import ByCardinality

Sampler = Callable[[int], list[Arch]]
"""From the number of a step to its archs."""
SamplerFactory = Callable[[Space, int], Sampler]
"""From a space and a seed to a sampler."""


def hierarchical(space: Space, seed: int = 0) -> Sampler:
    """Sampler of one arch a step: each operator is equally likely, then each of its configurations (TrioNet's).

    >>> import nasformer
    >>> sampler = hierarchical(nasformer.get_space("autoformer-tiny"), seed=7)
    >>> sampler(3) == sampler(3), sampler(3) == sampler(4)
    (True, False)
    """
    return lambda step: [space.sample(random.Random(f"uniform {seed} {step}"))]


def uniform(space: Space, seed: int = 0) -> Sampler:
    """Sampler of one arch a step: each configuration is equally likely, so operators with many of them come often.

    In a space without alternatives, such as AutoFormer's, it draws the same archs as `hierarchical`. Depths are drawn
    uniformly in both; else nearly all archs would have the largest.
    """
    return lambda step: [space.sample(ByCardinality(f"uniform {seed} {step}"))]


SAMPLERS: dict[str, SamplerFactory] = {"uniform": uniform, "hierarchical": hierarchical}


def sandwich(space: Space, seed: int = 0, *, inner: SamplerFactory = hierarchical, randoms: int = 2) -> Sampler:
    """Sampler of the largest, the smallest and so many random archs a step, in this order, with the same operators.

    First `inner` draws an operator for every block of the deepest arch; then everything else is the largest, the
    smallest or uniformly random, the depth included. Without alternatives it is the plain sandwich rule.

    >>> import nasformer
    >>> largest, smallest, *others = sandwich(nasformer.get_space("autoformer-tiny"))(0)
    >>> len(largest.blocks), len(smallest.blocks), len(others)
    (14, 12, 2)
    """
    root = space.root
    draw_operators = inner(replace(space, root=root.deepest()), seed)

    def sample(step: int) -> list[Arch]:
        (operators,), rng = draw_operators(step), random.Random(f"sandwich {seed} {step}")
        return [
            root.largest(operators),
            root.smallest(operators),
            *(root.sample(rng, operators) for _ in range(randoms)),
        ]

    return sample


def make_sampler(space: Space, name: str = "hierarchical", randoms: int = 0, seed: int = 0) -> Sampler:
    """The sampler of this name, or with `randoms` above 0 a sandwich around it."""
    factory = SAMPLERS[name]
    return sandwich(space, seed, inner=factory, randoms=randoms) if randoms else factory(space, seed)
