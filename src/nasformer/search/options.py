"""Options of searches: limits on the architecture, the strategy with its own options, the search of a search space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from nasformer.errors import UserError
from nasformer.search.strategy import (
    complete_options,
    find_strategy,
    list_strategies,
    strategy_options,
)
from nasformer.space.budget import DRAWS, Budget
from nasformer.utils.units import (
    DeclaredOption,
    OptionGroup,
    check_number,
    check_range,
    parse_bytes,
    parse_milliseconds,
    parse_quantity,
)


@dataclass
class BudgetOptions(OptionGroup):
    """Limits on the architecture, such as 6M or 1.3G."""

    min_params: str | int | None = None
    """fewest parameters"""
    max_params: str | int | None = None
    """most parameters"""
    min_macs: str | int | None = None
    """fewest multiply-accumulates per image (papers on transformers call them FLOPs)"""
    max_macs: str | int | None = None
    """most multiply-accumulates per image"""
    max_latency: str | None = None
    """longest time of a batch, such as 5ms, on a machine that `nasformer profile` has measured"""
    max_memory: str | None = None
    """most memory for inference, weights included, such as 500MB, where `nasformer profile` has measured it"""
    latency_profile: str | None = None
    """the file that `nasformer profile` wrote; None: the one in profiles/ that fits"""

    def __post_init__(self) -> None:
        for value in self.limits().values():  # refused before torch is imported and images are read
            if isinstance(value, str | int):
                parse_quantity(str(value).strip().removesuffix("%"))
        super().__post_init__()

    def limits(self) -> dict[str, Any]:
        """The limits that are set: counts as written, time in milliseconds, memory in bytes."""
        counts = {name: getattr(self, name) for name in ("min_params", "max_params", "min_macs", "max_macs")}
        limits = {name: value for name, value in counts.items() if value is not None}
        if self.max_latency is not None:
            limits["max_latency_ms"] = parse_milliseconds(self.max_latency)
        if self.max_memory is not None:
            limits["max_memory_bytes"] = parse_bytes(self.max_memory)
        return limits

    def budget(self) -> Budget:
        return Budget(**{name: self.quantity(name, value) for name, value in self.limits().items()})

    def quantity(self, name: str, value: str | float) -> float:
        if is_share(value):
            raise UserError(f"--{name.replace('_', '-')} {value} is a share, but of what? Name a net with --from")
        return parse_quantity(value)

    def with_shares(self, costs: Mapping[str, float]) -> Self:
        """The limits with numbers in place of shares such as 50%, which are shares of these costs.

        >>> BudgetOptions(max_macs="50%").with_shares({"macs": 1_000_000}).max_macs
        500000
        """
        shares = {name: value for name, value in self.limits().items() if is_share(value) and costs}
        for name, value in shares.items():
            share = parse_quantity(str(value).strip().removesuffix("%"))
            if not 0 < share <= 100:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is {value}; expected more than 0% and at most 100%")
            shares[name] = math.floor(costs[name.partition("_")[2]] * share / 100)
        return replace(self, **shares)


def is_share(value: object) -> bool:
    return isinstance(value, str) and value.strip().endswith("%")


Racing = Literal["none", "parents", "best"]


@dataclass
class SearchOptions(OptionGroup):
    """How to search."""

    strategy: str = "evolution"
    """evolution, random, or cyclic: topology and size in turns, for spaces that have both"""
    baseline: Literal["none", "random"] = "none"
    """random: beside it a random search with as many candidates, for the report; without, the best of the search's
    random start stands for it"""
    random_references: int = 1
    """random architectures within the budget to judge beside the winner; of several, their mean is shown"""
    racing: Racing = "none"
    """judge candidates on growing parts of the held-out images, and drop those that cannot become parents; of others
    all are judged on all images (parents: a search takes nearly the same course), or only those that may be the best
    (best: on fewer images; the winner may be another of about the same accuracy); for a search by accuracy alone"""
    objectives: list[str] = field(default_factory=list)
    """what to raise or, with a leading minus, to lower, such as accuracy and -params for a front; none: accuracy, or
    with proxies the ranks by all of them together, or for cyclic the score of the topology and that of the size"""
    options: dict[str, Any] = field(default_factory=dict)
    """options of strategies by name; those that the chosen one does not have are left out"""

    def __post_init__(self) -> None:
        check_range(self, "random_references", 1, DRAWS, whole=True)
        super().__post_init__()

    @classmethod
    def declared_options(cls) -> list[DeclaredOption]:
        """The options of all strategies, each once; the help says whose they are and their defaults."""
        owners: dict[str, list[tuple[str, DeclaredOption]]] = {}
        for name, strategy in list_strategies().items():
            for option in strategy_options(strategy):
                owners.setdefault(option.name, []).append((name, option))
        return [merge_options(name, declared) for name, declared in owners.items()]

    def for_strategy(self, evaluations: int = 1000) -> dict[str, Any]:
        """The options that are set and that the chosen strategy has.

        >>> SearchOptions("random", options={"population": 50}).for_strategy(8000)
        {'evaluations': 8000}

        Args:
            evaluations: For strategies that have this option, where the user left it open.
        """
        declared = complete_options(find_strategy(self.strategy), {})
        options = {"evaluations": evaluations, **self._set_options}
        return {name: options[name] for name in declared if name in options}

    @property
    def unused_options(self) -> list[str]:
        """The options that are set, but belong to other strategies, as a recipe's may when another is chosen.

        >>> SearchOptions("random", options={"population": 50, "evaluations": None}).unused_options
        ['population']
        """
        declared = complete_options(find_strategy(self.strategy), {})
        return [name for name in self._set_options if name not in declared]

    @property
    def _set_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if value is not None}


def merge_options(name: str, declared: Sequence[tuple[str, DeclaredOption]]) -> DeclaredOption:
    """Merges options of the same name of several strategies; None leaves the default of each."""
    helps = dict.fromkeys(option.help.rstrip(".") for _, option in declared)
    defaults = ", ".join(f"{strategy} {option.default}" for strategy, option in declared)
    return DeclaredOption(name, declared[0][1].annotation, None, f"{'; '.join(helps)} (default: {defaults})")


# Search of the search space (S3).


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
