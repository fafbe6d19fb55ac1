"""Options of the search of the search space (S3). No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from nasformer.errors import UserError
from nasformer.utils.units import check_number


@dataclass
class EvolveOptions:
    """How to search the space: S3's evolution of spaces. A dimension is one choice, such as stage3.blocks.num_heads."""

    steps: int = 2
    """how often the space may shift; S3: 2, so three spaces"""
    samples: int = 1000
    """architectures within the budget that are judged in each space"""
    top: int = 50
    """the best of them, whose mean error counts as much as that of all; for a value of a dimension the same share"""
    tau: float = 0.1
    """least slope for a shift: error in % a step"""
    tau_of: dict[str, float] = field(default_factory=dict)
    """the same for single dimensions, by name or by its last part, such as {"depth": 0.3}"""
    step_of: dict[str, float] = field(default_factory=dict)
    """steps of dimensions, by name or by its last part, such as {"num_heads": 2}; the others: their smallest gap"""
    rounding: Literal["trunc", "floor"] = "trunc"
    """trunc: up and down alike; floor: as S3's rule reads, up on the slightest negative slope"""
    max_shift: int = 1
    """most steps that a dimension shifts at a time"""
    sigma: float = 1.0
    """no shift where the slope is less than so many of its standard errors; 0: always"""
    min_samples: float = 10
    """a value that fewer architectures use has no part in the fit"""
    max_cardinality: float | None = None
    """most architectures of a space; None: no limit"""
    carry: bool = True
    """start each supernet with the weights of the one before"""
    further_epochs: int | None = None
    """epochs of training for the spaces after the first; None: as for the first"""

    def __post_init__(self) -> None:
        for name, least in {"steps": 0, "samples": 1, "top": 1, "max_shift": 0, "sigma": 0, "min_samples": 0}.items():
            check_number(f"evolve.{name}", getattr(self, name), least)
        check_number("evolve.further_epochs", self.further_epochs, 1, optional=True)
        check_number("evolve.max_cardinality", self.max_cardinality, 1, optional=True)
        if self.top > self.samples:
            raise UserError(f"evolve.top is {self.top}, more than the {self.samples} samples; lower it")
        for name, size in {"tau": self.tau, **self.tau_of, **self.step_of}.items():
            if not 0 < size < math.inf:
                raise UserError(f"evolve has {size:g} for {name}; give more than 0")
