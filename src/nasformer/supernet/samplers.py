"""Samplers: which archs a training step runs. A pure function of (seed, step), so all processes agree."""

from __future__ import annotations

import random
from collections.abc import Callable

from nasformer.families.space import Space
from nasformer.space import Arch

Sampler = Callable[[int], list[Arch]]


def uniform(space: Space, seed: int = 0) -> Sampler:
    """AutoFormer's: one uniformly random arch a step.

    >>> import nasformer
    >>> sampler = uniform(nasformer.get_space("autoformer-tiny"), seed=7)
    >>> sampler(3) == sampler(3), sampler(3) == sampler(4)
    (True, False)
    """

    def sample(step: int) -> list[Arch]:
        return [space.sample(random.Random(f"uniform {seed} {step}"))]

    return sample


SAMPLERS: dict[str, Callable[[Space, int], Sampler]] = {"uniform": uniform}
