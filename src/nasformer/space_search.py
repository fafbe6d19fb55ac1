"""Search of the search space (S3): evaluate samples, fit how the error depends on each dimension, shift, and repeat.

It knows neither training nor data: the caller says how samples of a space are evaluated.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nasformer.errors import UserError
from nasformer.models.space import Space
from nasformer.search.options import EvolveOptions
from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions, uses
from nasformer.space.nodes import Node, Scalar, corners
from nasformer.supernet.storage import Carried
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json

# Quality of a space (S3): the E-T error of its archs, and how that depends on the values of a dimension.
#
# The E-T error is the mean of the expected error of all samples and that of the top ones. S3 samples archs within a
# budget and takes the best 50 as the top. Groups of samples (those that use a value of a dimension) differ in size, so
# for them the top is the same share of the group: ours, as the paper is silent.
#
# An arch may use several values of a dimension, one in each block. It then belongs to each in proportion, so that every
# arch weighs 1 in every dimension. Counts are sums of these weights: in archs, not in blocks.
#
# The paper fits a line through the E-T errors of a dimension's values. Its standard error is ours, by resampling the
# archs: a dimension often has two values or three, so the residuals of a line say nothing. It covers the luck of the
# draw, not that of the training.


RESAMPLES = 200


@dataclass(frozen=True)
class Quality:
    """The errors of a space in %, lower is better.

    >>> Quality(expected=30.0, top=20.0).et
    25.0
    """

    expected: float
    top: float

    @property
    def et(self) -> float:
        return (self.expected + self.top) / 2


def measure_quality(errors: Sequence[float], share: float) -> Quality:
    """The E-T error of samples, of which the best `share` are the top: at least one of them.

    >>> measure_quality([40, 10, 30, 20], share=0.5)
    Quality(expected=25.0, top=15.0)
    """
    sorted_errors = np.sort(np.asarray(errors, dtype=float))
    expected, top = group_errors(sorted_errors, np.ones(len(sorted_errors)), share)
    return Quality(float(expected), float(top))


def group_errors(errors: np.ndarray, weights: np.ndarray, share: float) -> tuple[Any, Any]:
    """The expected and the top error of groups of samples.

    The top of a group are its best samples up to the share of the group's weight, the last of them in part. It has the
    weight of one arch at least, where the group has.

    Args:
        errors: Of all samples, the smallest first.
        weights: How much each sample (last axis) belongs to each group (axes before).
    """
    up_to = np.cumsum(weights, axis=-1)
    total = up_to[..., -1]
    mass = np.minimum(total, np.maximum(1.0, share * total))
    taken = np.clip(mass[..., None] - (up_to - weights), 0.0, weights)
    with np.errstate(invalid="ignore"):  # a group without samples has no error
        return (weights * errors).sum(-1) / total, (taken * errors).sum(-1) / mass


@dataclass(frozen=True)
class Line:
    """error = slope * (value / step) + intercept: the slope is in error-% for each step of the dimension."""

    slope: float
    stderr: float
    intercept: float


@dataclass(frozen=True)
class Tendency:
    """Counts and E-T errors by value (None where no sample has it), and the line where there are two values or more."""

    counts: tuple[float, ...]
    et: tuple[float | None, ...]
    line: Line | None


def use_shares(root: Node, archs: Sequence[Arch], choices: Mapping[str, Sequence[Scalar]]) -> dict[str, np.ndarray]:
    """For each dimension a table of archs by values: the share of the arch's places that have the value.

    >>> from nasformer import Choice, Repeat, Struct
    >>> root = Struct(blocks=Repeat(Struct(window=Choice(7, 14)), depth=Choice(1, 4)))
    >>> arch = Arch(blocks=[{"window": 7}, {"window": 7}, {"window": 7}, {"window": 14}])
    >>> use_shares(root, [arch], {"blocks.window": (7, 14)})["blocks.window"].tolist()
    [[0.75, 0.25]]
    """
    shares = {name: np.zeros((len(archs), len(values))) for name, values in choices.items()}
    columns = {name: {value: column for column, value in enumerate(values)} for name, values in choices.items()}
    for row, arch in enumerate(archs):
        counts = Counter(use for use in uses(root, arch) if use[0] in choices)
        totals = Counter[str]()
        for (name, _), count in counts.items():
            totals[name] += count
        for (name, value), count in counts.items():
            shares[name][row, columns[name][value]] = count / totals[name]
    return shares


def fit_tendency(
    values: Sequence[float],
    shares: np.ndarray,
    errors: np.ndarray,
    *,
    top: float,
    step: float,
    min_samples: float,
) -> Tendency:
    """How the E-T error depends on the values of a dimension.

    Args:
        shares: Of the samples by values, see `use_shares`; sorted like the errors.
        errors: Of the samples in %, the smallest first.
        top: The share of a group that is its top.
        step: The unit of the slope.
        min_samples: Values of a smaller count are left out of the line.
    """
    counts, et = et_errors(shares, errors, top, np.ones((1, len(errors))))
    used = counts[0] >= max(min_samples, np.finfo(float).tiny)
    line = None
    if used.sum() >= 2:
        draws = np.random.default_rng(0).multinomial(len(errors), np.full(len(errors), 1 / len(errors)), RESAMPLES)
        x = np.asarray(values, dtype=float)[used] / step
        slope, intercept = fit_line(x, et[:, used], counts[:, used])
        others, _ = fit_line(x, *reversed(et_errors(shares[:, used], errors, top, draws)))
        line = Line(float(slope[0]), float(np.nanstd(others, ddof=1)), float(intercept[0]))
    known_et = tuple(None if np.isnan(error) else float(error) for error in et[0])
    return Tendency(tuple(counts[0].tolist()), known_et, line)


def et_errors(shares: np.ndarray, errors: np.ndarray, top: float, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts and E-T errors by draw and value; a draw has how often each sample is in it."""
    weights = draws[:, None, :] * shares.T[None]
    expected, best = group_errors(errors, weights, top)
    return weights.sum(-1), (expected + best) / 2


def fit_line(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept by weighted least squares, along the last axis.

    >>> slope, intercept = fit_line(np.array([1.0, 2.0, 3.0]), np.array([5.0, 7.0, 9.0]), np.array([1.0, 1.0, 2.0]))
    >>> float(slope), float(intercept)
    (2.0, 3.0)
    """
    total = weights.sum(-1)
    mean_x, mean_y = (weights * x).sum(-1) / total, (weights * y).sum(-1) / total
    away = x - mean_x[..., None]
    with np.errstate(invalid="ignore"):  # a draw may have a single value, and so no slope
        slope = (weights * away * y).sum(-1) / (weights * away**2).sum(-1)
    return slope, mean_y - slope * mean_x


# Shifts of a dimension's values against the slope of the error, and the limits that they keep.
#
# S3's rule reads v - floor(w / tau) * gamma, with tau and gamma not given. Its floor moves up on the slightest negative
# slope and down only on one of tau. We cut off towards zero instead, so that both ways need a slope of tau; `floor` is
# there as an option. Ours as well: at most `max_shift` steps at once, and none that the draw of the samples explains.
#
# All shifts are made at once, if that can be. Else one after the other, the steepest first, and again as long as
# another one becomes possible; the rest is taken back. That all archs of a space can be built cannot be tried: we try
# the smallest, the corners and some random ones, of the space and of its parts that have one of the new values alone,
# for no value may be one that no arch can have.


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
    """The step of a dimension: that of the options, or its smallest gap. Whole numbers stay whole."""
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
    """The values moved by a number of steps.

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


def apply_shifts(space: Space, choices: Choices, max_cardinality: float | None = None) -> tuple[Space, dict[str, str]]:
    """The space with as many of the wanted choices as are possible, and why the others are not.

    Args:
        wanted: New values by dimension, the most important first.
        max_cardinality: The most members that it may have; one that has more already may not grow.
    """
    most = None if max_cardinality is None else max(max_cardinality, space.root.cardinality)
    if not why_impossible(space, choices, choices, most):
        return space.with_choices(choices), {}
    taken: dict[str, Sequence[Scalar]] = {}
    reasons = dict.fromkeys(choices, "")
    progress = True
    while progress:
        progress = False
        for name in list(reasons):
            reasons[name] = why_impossible(space, {**taken, name: choices[name]}, [name], most)
            if not reasons[name]:
                taken[name], progress = choices[name], True
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


RECORDED_DIGITS = 6  # of numbers in the record
Evaluate = Callable[[Space, int], Sequence[Candidate]]
"""Gives samples of a space with their accuracy; the number is that of the step."""


# The record of an evolution (`evolution.json`)


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
    """A space of an evolution.

    Args:
        errors: Those of its samples in %, the best first.
        carried: How much of its supernet came from the one before, if any.
    """

    space: str
    cardinality: int
    error: Quality
    errors: tuple[float, ...]
    dimensions: Mapping[str, Dimension]
    carried: Carried | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        content = {
            "space": self.space,
            "cardinality": self.cardinality,
            "samples": len(self.errors),
            "error": {"expected": self.error.expected, "top": self.error.top, "et": self.error.et},
            "errors": self.errors,
            "dimensions": {name: asdict(dimension) for name, dimension in self.dimensions.items()},
            "carried": asdict(self.carried) if self.carried else None,
        }
        return rounded(content)


def rounded(content: Any) -> Any:
    """Tuples as lists, and numbers with as many digits as mean something."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value) for value in content]
    return round(content, RECORDED_DIGITS) if isinstance(content, float) else content


@dataclass(frozen=True)
class Evolution:
    """An evolution of spaces, as far as its spaces are evaluated.

    Args:
        budget: The limits in words.
        options: Those of the evolution; None where they are not known.
    """

    steps: list[Step]
    budget: str = ""
    options: EvolveOptions | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("it has no steps")

    @property
    def dimensions(self) -> list[str]:
        """The names of the dimensions, in the order of the space."""
        return list(dict.fromkeys(name for step in self.steps for name in step.dimensions))

    @property
    def min_samples(self) -> float:
        """The number of archs below which a value is left out of the fitted line."""
        return self.options.min_samples if self.options else 0.0

    @property
    def missing_steps(self) -> int:
        """How many shifts of the options were not made."""
        return max(0, self.options.steps + 1 - len(self.steps)) if self.options else 0

    @property
    def unfinished(self) -> bool:
        """Whether another space follows, which is not evaluated yet."""
        moves = any(dimension.moves for dimension in self.steps[-1].dimensions.values())
        return moves and not self.is_last(len(self.steps) - 1)

    def is_last(self, number: int) -> bool:
        """Whether the space is the last that the options allow."""
        return self.options is not None and number >= self.options.steps


def read_evolution(path: Path) -> Evolution:
    """Reads an `evolution.json`; samples without an error are left out."""
    evolution = from_json(Evolution, read_json(path), path)
    steps = [replace(step, errors=tuple(sorted(filter(math.isfinite, step.errors)))) for step in evolution.steps]
    return replace(evolution, steps=steps)


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
    names = {*choices, *(name.rpartition(".")[2] for name in choices)}
    for name in (*options.tau_of, *options.step_of):
        if name not in names:
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
    """The record of a space from its samples, and the space that follows; after the last step it is the same."""
    ordered = sorted(candidates, key=error_of)
    errors = np.array([error_of(candidate) for candidate in ordered])
    choices, limits = choices_of(space), space.limits()
    shares = use_shares(space.root, [candidate.arch for candidate in ordered], choices)
    fits = {name: fit_dimension(name, values, shares[name], errors, options) for name, values in choices.items()}
    following = space
    if not last:
        no_limits = (None, None)
        fits = {name: decide_shift(name, fit, limits.get(name, no_limits), options) for name, fit in fits.items()}
        following, reasons = apply_shifts(space, shifted_values(fits), options.max_cardinality)
        values = choices_of(following)
        fits = {name: confirm_shift(fit, reasons.get(name, ""), values[name]) for name, fit in fits.items()}
    error = measure_quality(errors.tolist(), options.top / options.samples)
    return Step(space.name, space.root.cardinality, error, tuple(errors.tolist()), fits), following


def error_of(candidate: Candidate) -> float:
    """The error of a candidate in %."""
    return 100.0 * (1.0 - candidate.scores["accuracy"])


def fit_dimension(
    name: str, values: tuple[Scalar, ...], shares: np.ndarray, errors: np.ndarray, options: EvolveOptions
) -> Dimension:
    """The E-T errors of a dimension's values and, where there are enough samples, the line through them."""
    numbers: tuple[float, ...] = values if can_shift(values) else tuple(range(len(values)))  # type: ignore[assignment]
    step = step_size(name, numbers, options.step_of) if can_shift(values) else None
    top = options.top / options.samples
    fit = fit_tendency(numbers, shares, errors, top=top, step=step or 1, min_samples=options.min_samples)
    plain = Dimension(values, fit.counts, fit.et, step=step)
    if step is None:
        why = "a single value" if is_numeric(values) else "no numbers"
        return replace(plain, notice=f"left alone: {why}")
    least = options.min_samples or 1
    few = [f"{v:g}" for v, count in zip(numbers, fit.counts, strict=True) if not count or count < options.min_samples]
    notice = f"fewer than {least:g} samples have {' or '.join(few)}" if few else ""
    line = fit.line
    if line is None:
        return replace(plain, notice=f"left alone: {notice}")
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


def shifted_values(fits: Mapping[str, Dimension]) -> dict[str, Sequence[Scalar]]:
    """The new values of the dimensions that shift, the steepest first."""
    moving = [(name, fit) for name, fit in fits.items() if fit.shift]
    return {name: fit.next for name, fit in sorted(moving, key=lambda item: -abs(item[1].slope or 0.0))}


def confirm_shift(dimension: Dimension, obstacle: str, values: tuple[Scalar, ...]) -> Dimension:
    """The dimension with the values that it really gets."""
    shift, notice = 0 if obstacle else dimension.shift, join_notices(dimension.notice, obstacle)
    return replace(dimension, shift=shift, next=values, notice=notice)


def join_notices(*notices: str) -> str:
    return "; ".join(filter(None, notices))
