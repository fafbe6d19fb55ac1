"""The record of one step of an evolution: a space, how good it is, and where each of its dimensions goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nasformer.evolving.quality import Quality
from nasformer.space.choice import Scalar

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
