"""Evolution of a space (S3): evaluate samples, fit how the error depends on each dimension, shift, and repeat.

It knows neither training nor data: the caller says how samples of a space are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nasformer.errors import UserError
from nasformer.families.space import Space
from nasformer.search.problem import Candidate
from nasformer.space.dimensions import dimensions
from nasformer.space.nodes import Scalar
from nasformer.space_search.options import EvolveOptions
from nasformer.space_search.quality import Quality, fit_tendency, measure_quality, use_shares
from nasformer.space_search.shift import (
    Limits,
    apply_shifts,
    clip_shift,
    is_numeric,
    option_for,
    shifted,
    step_size,
    steps_against,
)

DIGITS = 6  # of numbers in the record
Evaluate = Callable[[Space, int], Sequence[Candidate]]
"""Gives samples of a space with their accuracy; the number is that of the step."""


# The record of a step


@dataclass(frozen=True)
class Dimension:
    """A dimension in one step.

    Args:
        counts: How many archs use each value; one that uses several belongs to each in part.
        et: The E-T error of each value in %; None where no sample has it.
        slope: Error in % for each step of the dimension; None where no line was fitted.
        shift: How many steps the values go, up or down.
        step: How long a step is; None where values are no numbers, or just one.
        next: The values in the next space; by default the same.
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

    def __post_init__(self) -> None:
        if not len(self.values) == len(self.counts) == len(self.et) > 0:
            raise ValueError("a dimension must have as many counts and E-T errors as values")
        if not self.next:
            object.__setattr__(self, "next", self.values)

    @property
    def moves(self) -> bool:
        return self.next != self.values


@dataclass(frozen=True)
class Step:
    """A space of an evolution; `errors` are those of its samples in %, the best first."""

    space: str
    cardinality: int
    error: Quality
    errors: tuple[float, ...]
    dimensions: Mapping[str, Dimension]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        content = {
            "space": self.space,
            "cardinality": self.cardinality,
            "samples": len(self.errors),
            "error": {"expected": self.error.expected, "top": self.error.top, "et": self.error.et},
            "errors": self.errors,
            "dimensions": {name: asdict(dimension) for name, dimension in self.dimensions.items()},
        }
        return rounded(content)


def rounded(content: Any) -> Any:
    """Tuples as lists, and numbers with as many digits as mean something."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value) for value in content]
    return round(content, DIGITS) if isinstance(content, float) else content


# The evolution


def evolve(space: Space, evaluate: Evaluate, options: EvolveOptions) -> Iterator[Step]:
    """The spaces of an evolution, one by one; it ends early where nothing shifts any more."""
    check_names(space, options)
    for number in range(options.steps + 1):
        candidates = evaluate(space, number)
        step, following = next_space(space, candidates, options, last=number == options.steps)
        yield step
        if following.name == space.name:
            return
        space = following


def check_names(space: Space, options: EvolveOptions) -> None:
    """Every dimension that an option names must exist, and its step must suit it."""
    choices = choices_of(space)
    known = {*choices, *(name.rpartition(".")[2] for name in choices)}
    for name in (*options.tau_of, *options.step_of):
        if name not in known:
            raise UserError(f"{space.name} has no dimension {name!r}; it has: {', '.join(choices)}")
    for name, values in choices.items():
        if can_shift(values):
            step_size(name, values, options.step_of)


def choices_of(space: Space) -> dict[str, tuple[Scalar, ...]]:
    return {name: choice.values for name, choice in dimensions(space.root).items()}


def can_shift(values: Sequence[Scalar]) -> bool:
    return is_numeric(values) and len(values) > 1


def next_space(
    space: Space, candidates: Sequence[Candidate], options: EvolveOptions, last: bool = False
) -> tuple[Step, Space]:
    """What the samples say of a space, and the space that follows; after the last one it is the same."""
    ordered = sorted(candidates, key=error_of)
    errors = np.array([error_of(candidate) for candidate in ordered])
    choices, limits = choices_of(space), space.limits()
    shares = use_shares(space.root, [candidate.arch for candidate in ordered], choices)
    found = {name: fit_dimension(name, values, shares[name], errors, options) for name, values in choices.items()}
    following = space
    if not last:
        found = {name: decide_shift(name, one, limits.get(name, (None, None)), options) for name, one in found.items()}
        following, reasons = apply_shifts(space, shifted_values(found), options.max_cardinality)
        values = choices_of(following)
        found = {name: confirm_shift(one, reasons.get(name, ""), values[name]) for name, one in found.items()}
    error = measure_quality(errors.tolist(), options.top / options.samples)
    return Step(space.name, space.root.cardinality, error, tuple(errors.tolist()), found), following


def error_of(candidate: Candidate) -> float:
    """In %."""
    return 100.0 * (1.0 - candidate.scores["accuracy"])


def fit_dimension(
    name: str, values: tuple[Scalar, ...], shares: np.ndarray, errors: np.ndarray, options: EvolveOptions
) -> Dimension:
    """The E-T errors of a dimension's values and, where there are enough samples, the line through them."""
    numbers: tuple[float, ...] = values if can_shift(values) else tuple(range(len(values)))  # type: ignore[assignment]
    step = step_size(name, numbers, options.step_of) if can_shift(values) else None
    top = options.top / options.samples
    found = fit_tendency(numbers, shares, errors, top=top, step=step or 1, min_samples=options.min_samples)
    plain = Dimension(values, found.counts, found.et, step=step)
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


def decide_shift(name: str, dimension: Dimension, limits: Limits, options: EvolveOptions) -> Dimension:
    """The dimension with its shift, as far as the limits allow."""
    if dimension.slope is None or dimension.stderr is None or dimension.step is None:
        return dimension
    tau = option_for(options.tau_of, name, options.tau)
    steps = steps_against(dimension.slope, tau, options.rounding, options.max_shift)
    if steps and abs(dimension.slope) < options.sigma * dimension.stderr:
        return replace(dimension, notice=join_notices(dimension.notice, "not shifted: may be chance"))
    values: tuple[float, ...] = dimension.values  # type: ignore[assignment]
    shift, why = clip_shift(values, steps, dimension.step, limits)
    moved = shifted(values, shift, dimension.step)
    return replace(dimension, shift=shift, next=moved, notice=join_notices(dimension.notice, why))


def shifted_values(found: Mapping[str, Dimension]) -> dict[str, Sequence[Scalar]]:
    """The new values of the dimensions that shift, the steepest first."""
    moving = [(name, one) for name, one in found.items() if one.shift]
    return {name: one.next for name, one in sorted(moving, key=lambda item: -abs(item[1].slope or 0.0))}


def confirm_shift(dimension: Dimension, obstacle: str, values: tuple[Scalar, ...]) -> Dimension:
    """The dimension with the values that it really gets."""
    shift, notice = 0 if obstacle else dimension.shift, join_notices(dimension.notice, obstacle)
    return replace(dimension, shift=shift, next=values, notice=notice)


def join_notices(*notices: str) -> str:
    return "; ".join(filter(None, notices))
