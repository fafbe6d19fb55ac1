"""Shifts of a dimension's values against the slope of the error, and the limits that they keep.

S3's rule reads v - floor(w / tau) * gamma, with tau and gamma not given. Its floor moves up on the slightest negative
slope and down only on one of tau. We cut off towards zero instead, so that both ways need a slope of tau; `floor` is
there as an option. Ours as well: at most `max_shift` steps at once, and none that the draw of the samples explains.

All shifts are made at once, if that can be. Else one after the other, the steepest first, and again as long as another
one becomes possible; the rest is taken back. That all archs of a space can be built cannot be tried: we try the
smallest, the corners and some random ones, of the space and of its parts that have one of the new values alone, for no
value may be one that no arch can have.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.space.node import corners
from nasformer.space.nodes import Scalar

Limits = tuple[float | None, float | None]
Values = tuple[float, ...]
Choices = Mapping[str, Sequence[Scalar]]
DIGITS = 9  # numbers this close are taken as equal, so that 0.3 / 0.1 is 3
DRAWS, DRAWS_OF_PART = 50, 5  # random archs that must be possible, of the space and of each of its parts


def is_numeric(values: Sequence[Scalar]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def is_whole(values: Sequence[Scalar]) -> bool:
    return all(type(value) is int for value in values)


def smallest_gap(values: Sequence[float]) -> float:
    """The natural step of a dimension: the smallest gap between its values.

    >>> smallest_gap((192, 216, 240)), smallest_gap((3, 3.5, 4)), smallest_gap((6, 10, 12))
    (24, 0.5, 2)
    """
    gaps = [round(b - a, DIGITS) for a, b in pairwise(values)]
    return min(gaps)


def option_for(table: Mapping[str, float], name: str, default: float) -> float:
    """The option for a dimension, by its name or else by the last part of it.

    >>> option_for({"num_heads": 2, "stage1.blocks.num_heads": 4}, "stage1.blocks.num_heads", 1)
    4
    >>> option_for({"num_heads": 2}, "stage3.blocks.num_heads", 1), option_for({"num_heads": 2}, "stage3.embed_dim", 32)
    (2, 32)
    """
    return table.get(name, table.get(name.rpartition(".")[2], default))


def step_size(name: str, values: Sequence[Scalar], steps: Mapping[str, float]) -> float:
    """The step of a dimension: the one that was asked for, or its smallest gap. Whole numbers stay whole."""
    step = option_for(steps, name, smallest_gap(values))  # type: ignore[arg-type]
    if is_whole(values) and not float(step).is_integer():
        raise UserError(f"the step of {name} is {step:g}, but its values are whole numbers; give a whole step")
    return int(step) if is_whole(values) else step


def steps_against(slope: float, tau: float, rounding: Literal["trunc", "floor"], max_shift: int) -> int:
    """How many steps the values move: against the slope, positive is up.

    >>> [steps_against(slope, 0.1, "trunc", 2) for slope in (-0.5, -0.15, -0.05, 0.05, 0.1, 0.3)]
    [2, 1, 0, 0, -1, -2]
    >>> [steps_against(slope, 0.1, "floor", 2) for slope in (-0.5, -0.15, -0.05, 0.05, 0.1, 0.3)]
    [2, 2, 1, 0, -1, -2]
    """
    taken = (math.trunc if rounding == "trunc" else math.floor)(round(slope / tau, DIGITS))
    return max(-max_shift, min(max_shift, -taken))


def shifted(values: Sequence[float], steps: int, step: float) -> Values:
    """All values, so many steps further.

    >>> shifted((2, 3, 4), 1, 1), shifted((3, 3.5, 4), -1, 0.5), shifted((0.1, 0.2), 1, 0.1)
    ((3, 4, 5), (2.5, 3.0, 3.5), (0.2, 0.3))
    """
    return tuple(round(value + steps * step, DIGITS) for value in values)


def clip_shift(values: Sequence[float], steps: int, step: float, limits: Limits = (None, None)) -> tuple[int, str]:
    """How many of the steps all values can go together, and why not all of them.

    Numbers stay positive and within the limits. Values that lie outside already may stay there, not go further.

    >>> clip_shift((1, 2), -2, 1), clip_shift((3, 4), -1, 1)
    ((0, 'kept at 1 or more'), (-1, ''))
    >>> clip_shift((2, 4), 2, 2, limits=(None, 7))
    (1, 'kept at 7 or less')
    """
    low, high = limits
    low = max(low or 0, 1) if is_whole(values) else low
    shift, why = steps, ""
    while shift and (why_not := why_illegal(shifted(values, shift, step), values, low, high)):
        shift, why = shift - (1 if shift > 0 else -1), why_not
    return shift, why


def why_illegal(new: Values, old: Sequence[float], low: float | None, high: float | None) -> str:
    if low is not None and new[0] < min(low, old[0]):
        return f"kept at {low:g} or more"
    if high is not None and new[-1] > max(high, old[-1]):
        return f"kept at {high:g} or less"
    return "kept above 0" if new[0] <= 0 else ""


# The shifted dimensions together: a space whose archs can be built, and which is not too large


def apply_shifts(space: Space, wanted: Choices, max_cardinality: float | None = None) -> tuple[Space, dict[str, str]]:
    """The space with as many of the wanted choices as are possible, and why the others are not.

    Args:
        wanted: New values by dimension, the most important first.
        max_cardinality: The most members that it may have; one that has more already may not grow.
    """
    most = None if max_cardinality is None else max(max_cardinality, space.root.cardinality)
    if not why_impossible(space, wanted, wanted, most):
        return space.with_choices(wanted), {}
    taken: dict[str, Sequence[Scalar]] = {}
    reasons = dict.fromkeys(wanted, "")
    progress = True
    while progress:
        progress = False
        for name in list(reasons):
            reasons[name] = why_impossible(space, {**taken, name: wanted[name]}, [name], most)
            if not reasons[name]:
                taken[name], progress = wanted[name], True
                del reasons[name]
    return space.with_choices(taken), {name: f"taken back: {why}" for name, why in reasons.items()}


def why_impossible(space: Space, choices: Choices, new: Iterable[str], most: float | None) -> str:
    """Why there is no such space; empty where there is. The values of new dimensions are tried one by one."""
    try:
        changed = space.with_choices(choices)
        if most is not None and changed.root.cardinality > most:
            return f"the space would have {changed.root.cardinality:.3g} members, more than {most:.3g}"
        for arch in probe_archs(changed, DRAWS):
            changed.costs(arch)
        for name in new:
            for value in choices[name]:
                for arch in probe_archs(changed.with_choices({name: [value]}), DRAWS_OF_PART):
                    changed.costs(arch)
    except UserError as error:
        return str(error)
    return ""


def probe_archs(space: Space, draws: int) -> Iterator[Arch]:
    yield space.root.smallest()
    yield from corners(space.root)
    yield from (space.sample(random.Random(f"witness {number}")) for number in range(draws))
