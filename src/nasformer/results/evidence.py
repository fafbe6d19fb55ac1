"""Evidence: what methods were measured to be worth, on which data, from the records of our benchmarks.

`benchmarks/study/evidence.py` assembles evidence.json beside this file; no figure is written by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from nasformer.utils.schema import from_json

Road = Literal["pretrained", "supernet", "training-free"]


@dataclass(frozen=True)
class Gain:
    """Points of accuracy above a rival: mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / self.seeds**0.5

    @property
    def is_shown(self) -> bool:
        """Whether at least three seeds put it two standard errors above nothing."""
        return self.seeds >= 3 and self.mean > 2 * self.error

    def __str__(self) -> str:
        spread = f" ± {self.std:.1f}" if self.seeds > 1 else ""
        return f"{self.mean:+.1f}{spread} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


@dataclass(frozen=True)
class Evidence:
    """One measurement of a method on a dataset.

    Args:
        images: Training images.
        budget: What the nets were allowed to cost.
        over_random: The gain over random nets of equal cost.
        over_handmade: The gain over a net that a person made, of equal cost; `handmade` names it.
        minutes: Minutes on the GPU from the data to the searched and trained net.
        record: The file in benchmarks/records with the raw figures.
    """

    road: Road
    method: str
    data: str
    images: int
    img_size: int
    budget: str
    record: str
    over_random: Gain | None = None
    over_handmade: Gain | None = None
    handmade: str = ""
    minutes: float | None = None


def load_evidence() -> list[Evidence]:
    """All that was measured, as it comes with the package."""
    file = resources.files("nasformer.results").joinpath("evidence.json")
    return from_json(list[Evidence], json.loads(file.read_text(encoding="utf-8")), "evidence.json")  # type: ignore[arg-type]
