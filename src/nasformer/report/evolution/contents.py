"""What the run folder of a space's evolution holds, read and checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.evolving.quality import Quality
from nasformer.evolving.steps import Dimension, Step
from nasformer.files import read_json
from nasformer.report.contents import REPAIR
from nasformer.supernet.carry import Carried

FILE = "evolution.json"


@dataclass(frozen=True)
class Evolution:
    """The spaces of an evolution as far as they are judged, the first one first.

    Args:
        carried: For each space, how much of its supernet came from the one before; None where nothing did.
        last: The number of shifts that were asked for; None where that is not known.
        least: Values that fewer archs use have no part in a fitted line.
    """

    folder: Path
    config: Mapping[str, Any]
    budget: str
    steps: list[Step]
    carried: list[Carried | None]
    last: int | None
    least: float

    @property
    def names(self) -> list[str]:
        """The dimensions, in the order of the space."""
        return list(dict.fromkeys(name for step in self.steps for name in step.dimensions))

    @property
    def goes_on(self) -> bool:
        """Whether another space follows, which is not judged yet."""
        moves = any(one.next != one.values for one in self.steps[-1].dimensions.values())
        return moves and not self.is_final(len(self.steps) - 1)

    def is_final(self, number: int) -> bool:
        """Whether nothing was to be decided after that space."""
        return self.last is not None and number >= self.last


def is_evolution(folder: Path) -> bool:
    """Whether it is the run folder of an evolution, and of no search besides."""
    return (folder / FILE).exists() and not (folder / "result.json").exists()


def read_evolution(folder: Path) -> Evolution:
    """Reads config.json and evolution.json; both must be there."""
    config, path = read_json(folder / "config.json"), folder / FILE
    content = read_json(path)
    try:
        options, entries = content.get("options") or {}, content["steps"]
        evolution = Evolution(
            folder=folder,
            config=config,
            budget=str(content.get("budget") or ""),
            steps=[_step(entry) for entry in entries],
            carried=[_carried(entry.get("carried")) for entry in entries],
            last=None if options.get("steps") is None else int(options["steps"]),
            least=float(options.get("min_samples") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); {REPAIR}") from None
    if not evolution.steps:
        raise UserError(f"{path} is damaged (has no steps); {REPAIR}")
    return evolution


def _step(entry: Mapping[str, Any]) -> Step:
    error = entry["error"]
    return Step(
        space=str(entry["space"]),
        cardinality=int(entry["cardinality"]),
        quality=Quality(float(error["expected"]), float(error["top"])),
        errors=tuple(sorted(known for known in map(float, entry["errors"]) if math.isfinite(known))),
        dimensions={str(name): _dimension(one) for name, one in entry["dimensions"].items()},
    )


def _dimension(entry: Mapping[str, Any]) -> Dimension:
    values, counts, et = (tuple(entry[name]) for name in ("values", "counts", "et"))
    if not len(values) == len(counts) == len(et) > 0:
        raise ValueError("a dimension must have as many counts and E-T errors as values")
    return Dimension(
        values=values,
        counts=tuple(map(float, counts)),
        et=tuple(map(_number, et)),
        **{name: _number(entry.get(name)) for name in ("slope", "stderr", "intercept")},
        shift=int(entry.get("shift") or 0),
        step=_number(entry.get("step")),
        next=tuple(entry.get("next") or values),
        notice=str(entry.get("notice") or ""),
    )


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _carried(entry: Mapping[str, Any] | None) -> Carried | None:
    if not entry:
        return None
    counts = {name: int(entry.get(name) or 0) for name in ("whole", "part", "fresh")}
    return Carried(**counts, inexact=tuple(map(str, entry.get("inexact") or ())))
