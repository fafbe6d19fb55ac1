"""The diagnosis of a supernet (`health.json`), as `nasformer doctor` finds it and the report draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nasformer.search.problem import ModelResult
from nasformer.supernet.health import Alarm
from nasformer.utils.files import read_json, write_json
from nasformer.utils.schema import from_json, to_json


@dataclass(frozen=True)
class Snapshot:
    """The accuracies of the fixed subnets at a step of the training, by name."""

    step: int
    epoch: float | None
    subnets: dict[str, float]


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found.

    Args:
        step: Of the last line of the log, at which all this was so.
        images: Which images the subnets were judged on.
        subnets: Those judged, each with its costs, depth, width and accuracy.
        correlations: Rank correlation of accuracy with depth and with width; None where one of them is constant.
        taus: Kendall's tau between the ranks of each snapshot and the next; None where all were alike.
        looks: The snapshots.
        alarms: What is wrong, with advice.
        baselines: Accuracies of simpler choices on the same images, by name.
    """

    step: int
    images: str
    subnets: list[ModelResult]
    correlations: dict[str, float | None]
    taus: list[float | None]
    looks: list[Snapshot]
    alarms: list[Alarm]
    baselines: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: to_json(value) for name, value in vars(self).items()}

    def save(self, path: Path) -> None:
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Diagnosis:
        return from_json(cls, read_json(path), path, remedy="run nasformer doctor again")
