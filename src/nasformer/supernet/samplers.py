"""Samplers: which archs a training step runs, as a function of (seed, step), so that all processes agree.

They differ in how likely each alternative (operator) of a space is, and each size, and in whether a step runs one arch
or a sandwich of several.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from nasformer.models.space import Space
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
"""How operators are drawn."""


def sandwich(space: Space, seed: int = 0, *, inner: SamplerFactory = hierarchical, randoms: int = 2) -> Sampler:
    """Sampler of the largest, the smallest and `randoms` random archs a step, in this order, with the same operators.

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


# Archs of all sizes

LEAN = 3.0
"""The most by which the last value of a choice may be likelier than the first, as the logarithm of the ratio."""


@dataclass(frozen=True)
class Leaning:
    """Random generator that leans to the last values of all choices, or with a lean below 0 to the first.

    An arch that is drawn with it is larger or smaller throughout. Of all distributions with the same mean position
    in a choice, this one leaves the choice most open.

    >>> rng = Leaning(random.Random(0), lean=-LEAN)
    >>> sum(rng.randrange(4) for _ in range(1000)) < 700  # 1,500 are usual
    True
    """

    rng: random.Random
    lean: float

    def randrange(self, stop: int, /) -> int:
        weights = [math.exp(self.lean * index / max(stop - 1, 1)) for index in range(stop)]
        return self.rng.choices(range(stop), weights)[0]


def sizes(space: Space, seed: int = 0) -> Sampler:
    """Sampler of one arch a step, of all sizes about equally often.

    Where every block chooses for itself, hardly any random arch has a third of the cost of the largest: it would be
    small in nearly every block by chance.
    """

    def sample(step: int) -> list[Arch]:
        rng = random.Random(f"sizes {seed} {step}")
        return [space.root.sample(Leaning(rng, rng.uniform(-LEAN, LEAN)))]

    return sample


def sandwich_of_sizes(space: Space, seed: int = 0, *, randoms: int = 2) -> Sampler:
    """Sampler of the largest and `randoms` + 1 archs from small to large a step, all with the same operators.

    The smallest has no place: that of what can be cut out of a net is no net at all, and has nothing to teach.
    """
    root, count = space.root, randoms + 1
    draw_operators = hierarchical(replace(space, root=root.deepest()), seed)

    def sample(step: int) -> list[Arch]:
        (operators,), rng = draw_operators(step), random.Random(f"sandwich of sizes {seed} {step}")
        leans = [LEAN * (2 * (part + rng.random()) / count - 1) for part in range(count)]
        return [root.largest(operators), *(root.sample(Leaning(rng, lean), operators) for lean in leans)]

    return sample


def make_sampler(space: Space, name: str = "hierarchical", randoms: int = 0, seed: int = 0) -> Sampler:
    """The sampler of this name, or with `randoms` above 0 a sandwich around it."""
    if name == "sizes":
        return sandwich_of_sizes(space, seed, randoms=randoms) if randoms else sizes(space, seed)
    factory = SAMPLERS[name]
    return sandwich(space, seed, inner=factory, randoms=randoms) if randoms else factory(space, seed)
