"""The evolution of a space (S3): judge samples, see where each dimension wants to go, shift them, and again.

It knows neither training nor data: whoever calls says how samples of a space are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nasformer.cli.options import EvolveOptions
from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.search.problem import Candidate
from nasformer.space.choice import Scalar
from nasformer.space.dimensions import dimensions
from nasformer.space_search.quality import Quality, quality, tendency, use_shares
from nasformer.space_search.shift import (
    Limits,
    as_far_as_legal,
    is_numeric,
    named,
    recompose,
    shifted,
    step_of,
    steps_against,
)

# ----------------------------------------------------------------------------------------------------------------------
# The record of one step of an evolution: a space, how good it is, and where each of its dimensions goes.
# ----------------------------------------------------------------------------------------------------------------------

DIGITS = 6  # of the numbers that are written down


@dataclass(frozen=True)
class Dimension:
    """One dimension in one step.

    Args:
        counts: How many archs use each value; one that uses several belongs to each in part.
        et: The E-T error of each value in %; None where no sample has it.
        slope: Error-% for each step of the dimension, None where no line was fitted.
        shift: How many steps the values go, up or down.
        step: How long a step is; None where values are no numbers, or just one.
        notice: Why it does not go as the slope says.
    """

    values: tuple[Scalar, ...]
    counts: tuple[float, ...]
    et: tuple[float | None, ...]
    slope: float | None = None
    stderr: float | None = None
    intercept: float | None = None
    shift: int = 0
    step: float | None = None
    next: tuple[Scalar, ...] = ()
    notice: str = ""


@dataclass(frozen=True)
class Step:
    """One space of an evolution; `errors` are those of its samples in %, the best first."""

    space: str
    cardinality: int
    quality: Quality
    errors: tuple[float, ...]
    dimensions: Mapping[str, Dimension]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        error = {"expected": self.quality.expected, "top": self.quality.top, "et": self.quality.et}
        content = {
            "space": self.space,
            "cardinality": self.cardinality,
            "samples": len(self.errors),
            "error": error,
            "errors": self.errors,
            "dimensions": {name: asdict(one) for name, one in self.dimensions.items()},
        }
        return rounded(content)


def rounded(content: Any) -> Any:
    """Tuples as lists, and numbers with as many digits as mean something."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value) for value in content]
    return round(content, DIGITS) if isinstance(content, float) else content


Judge = Callable[[Space, int], Sequence[Candidate]]
"""Gives samples of a space with their accuracy; told which step of the evolution it is."""


def evolve(space: Space, judge: Judge, options: EvolveOptions) -> Iterator[Step]:
    """The spaces of an evolution, one by one; it ends early where nothing moves any more."""
    check_names(space, options)
    for number in range(options.steps + 1):
        candidates = judge(space, number)
        step, following = next_space(space, candidates, options, last=number == options.steps)
        yield step
        if following.name == space.name:
            return
        space = following


def check_names(space: Space, options: EvolveOptions) -> None:
    """Every dimension that an option speaks of must exist, and its step must suit it."""
    found = choices_of(space)
    known = {*found, *(name.rpartition(".")[2] for name in found)}
    for name in (*options.tau_of, *options.step_of):
        if name not in known:
            raise UserError(f"{space.name} has no dimension {name!r}; it has: {', '.join(found)}")
    for name, values in found.items():
        if can_shift(values):
            step_of(name, values, options.step_of)


def choices_of(space: Space) -> dict[str, tuple[Scalar, ...]]:
    return {name: choice.values for name, choice in dimensions(space.root).items()}


def can_shift(values: Sequence[Scalar]) -> bool:
    return is_numeric(values) and len(values) > 1


def next_space(
    space: Space, candidates: Sequence[Candidate], options: EvolveOptions, last: bool = False
) -> tuple[Step, Space]:
    """What the samples say of a space, and the space that follows; after the last one it is the same."""
    ordered = sorted(candidates, key=error_of)
    errors = np.array([error_of(one) for one in ordered])
    choices = choices_of(space)
    shares = use_shares(space.root, [one.arch for one in ordered], choices)
    limits = space.limits()
    found = {name: look(name, choices[name], shares[name], errors, options) for name in choices}
    following = space
    if not last:
        found = {name: decide(name, one, limits.get(name, (None, None)), options) for name, one in found.items()}
        following, reasons = recompose(space, wanted(found), options.max_cardinality)
        found = {name: settled(one, reasons.get(name, ""), choices_of(following)[name]) for name, one in found.items()}
    judged = quality(errors.tolist(), options.top / options.samples)
    return Step(space.name, space.root.cardinality, judged, tuple(errors.tolist()), found), following


def error_of(candidate: Candidate) -> float:
    """In %."""
    return 100.0 * (1.0 - candidate.scores["accuracy"])


def look(
    name: str, values: tuple[Scalar, ...], shares: np.ndarray, errors: np.ndarray, options: EvolveOptions
) -> Dimension:
    """The E-T errors of a dimension's values and, where there are enough, the line through them."""
    numbers: tuple[float, ...] = values if can_shift(values) else tuple(range(len(values)))  # type: ignore[assignment]
    step = step_of(name, numbers, options.step_of) if can_shift(values) else None
    top = options.top / options.samples
    found = tendency(numbers, shares, errors, top=top, step=step or 1, min_samples=options.min_samples)
    plain = Dimension(values, found.counts, found.et, step=step, next=values)
    if step is None:
        why = "a single value" if is_numeric(values) else "no numbers"
        return replace(plain, notice=f"left alone: {why}")
    least = options.min_samples or 1
    few = [f"{v:g}" for v, count in zip(numbers, found.counts, strict=True) if not count or count < options.min_samples]
    notice = f"fewer than {least:g} samples have {' or '.join(few)}" if few else ""
    if found.line is None:
        return replace(plain, notice=f"left alone: {notice}")
    line = found.line
    return replace(plain, slope=line.slope, stderr=line.stderr, intercept=line.intercept, notice=notice)


def decide(name: str, found: Dimension, limits: Limits, options: EvolveOptions) -> Dimension:
    """The dimension with its shift, as far as it may go."""
    if found.slope is None or found.stderr is None or found.step is None:
        return found
    tau = named(options.tau_of, name, options.tau)
    steps = steps_against(found.slope, tau, options.rounding, options.max_shift)
    if steps and abs(found.slope) < options.sigma * found.stderr:
        return replace(found, notice=also(found.notice, "not shifted: may be chance"))
    values: tuple[float, ...] = found.values  # type: ignore[assignment]
    going, why = as_far_as_legal(values, steps, found.step, limits)
    return replace(found, shift=going, next=shifted(values, going, found.step), notice=also(found.notice, why))


def wanted(found: Mapping[str, Dimension]) -> dict[str, Sequence[Scalar]]:
    """The new values of the dimensions that move, the steepest first."""
    moving = [(name, one) for name, one in found.items() if one.shift]
    return {name: one.next for name, one in sorted(moving, key=lambda item: -abs(item[1].slope or 0.0))}


def settled(found: Dimension, obstacle: str, following: tuple[Scalar, ...]) -> Dimension:
    """The dimension with the values that it really gets."""
    return replace(found, shift=0 if obstacle else found.shift, next=following, notice=also(found.notice, obstacle))


def also(*notices: str) -> str:
    return "; ".join(filter(None, notices))
