"""The search of a search space (`evolution.json`) as typed values, for its report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from nasformer.space_search.evolve import Step
from nasformer.space_search.options import EvolveOptions
from nasformer.supernet.carry import Carried
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json


@dataclass(frozen=True)
class EvolutionStep(Step):
    """A space of the evolution, and how much of its supernet came from the one before; None where nothing did."""

    carried: Carried | None = None


@dataclass(frozen=True)
class Evolution:
    """The spaces of an evolution that are evaluated, the first one first.

    Args:
        budget: The limits in words.
        options: Those of the evolution; None where they are not known.
    """

    steps: list[EvolutionStep]
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
        """Values that fewer archs use have no part in a fitted line."""
        return self.options.min_samples if self.options else 0.0

    @property
    def missing_steps(self) -> int:
        """How many of the shifts that were asked for were not made."""
        return max(0, self.options.steps + 1 - len(self.steps)) if self.options else 0

    @property
    def unfinished(self) -> bool:
        """Whether another space follows, which is not evaluated yet."""
        return not self.is_last(len(self.steps) - 1) and any(one.moves for one in self.steps[-1].dimensions.values())

    def is_last(self, number: int) -> bool:
        """Whether nothing was to be decided after that space."""
        return self.options is not None and number >= self.options.steps


def read_evolution(path: Path) -> Evolution:
    """Reads an `evolution.json`; samples without an error are left out."""
    evolution = from_json(Evolution, read_json(path), path)
    steps = [replace(step, errors=tuple(sorted(filter(math.isfinite, step.errors)))) for step in evolution.steps]
    return replace(evolution, steps=steps)
