"""The shifted dimensions put together: a space whose archs can be built, and which is not too large.

All shifts at once, if that can be. Else one after the other, the steepest first, and again as long as another one
becomes possible; what then is left is taken back.

Whether all archs can be built nobody can try. We try the smallest, the corners and some random ones, of the space and
of its parts that have one of the new values alone: no value may be one that no arch can have.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.space import Arch, corners
from nasformer.space.choice import Scalar

Choices = Mapping[str, Sequence[Scalar]]
DRAWS, DRAWS_OF_PART = 50, 5


def recompose(space: Space, wanted: Choices, max_cardinality: float | None = None) -> tuple[Space, dict[str, str]]:
    """The space with as many of the wanted choices as can be, and why the others cannot.

    Args:
        wanted: New values by dimension, the most important first.
        max_cardinality: The most members that it may have; one that has more already may not grow.
    """
    most = None if max_cardinality is None else max(max_cardinality, space.root.cardinality)
    if not obstacle(space, wanted, wanted, most):
        return space.with_choices(wanted), {}
    taken: dict[str, Sequence[Scalar]] = {}
    reasons = dict.fromkeys(wanted, "")
    progress = True
    while progress:
        progress = False
        for name in list(reasons):
            reasons[name] = obstacle(space, {**taken, name: wanted[name]}, [name], most)
            if not reasons[name]:
                taken[name], progress = wanted[name], True
                del reasons[name]
    return space.with_choices(taken), {name: f"taken back: {why}" for name, why in reasons.items()}


def obstacle(space: Space, choices: Choices, new: Iterable[str], most: float | None) -> str:
    """Why there is no such space; nothing where there is. The values of new dimensions are tried one by one."""
    try:
        changed = space.with_choices(choices)
        if most is not None and changed.root.cardinality > most:
            return f"the space would have {changed.root.cardinality:.3g} members, more than {most:.3g}"
        for arch in witnesses(changed, DRAWS):
            changed.costs(arch)
        for name in new:
            for value in choices[name]:
                for arch in witnesses(changed.with_choices({name: [value]}), DRAWS_OF_PART):
                    changed.costs(arch)
    except UserError as error:
        return str(error)
    return ""


def witnesses(space: Space, draws: int) -> Iterator[Arch]:
    yield space.root.smallest()
    yield from corners(space.root)
    yield from (space.sample(random.Random(f"witness {number}")) for number in range(draws))
