"""Budget: limits on what a model may cost, and the reference architectures within them that a winner must beat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from random import Random

from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions, with_choices
from nasformer.space.feasible import Costs, Window, sample_feasible
from nasformer.space.node import Node
from nasformer.space.struct import Struct
from nasformer.utils.units import format_exactly


@dataclass(frozen=True)
class Budget:
    """Limits on the costs of an architecture; both ends belong to the budget, None leaves an end open.

    A new cost needs just its fields here, `min_<name>` and `max_<name>` or one of the two.

    >>> budget = Budget(min_params=5_000_000, max_params=6_000_000, max_macs=1_300_000_000)
    >>> print(budget)
    5M <= params <= 6M, macs <= 1.3G
    >>> budget.fits({"params": 5_700_000, "macs": 1_200_000_000})
    True
    """

    min_params: float | None = None
    max_params: float | None = None
    min_macs: float | None = None
    max_macs: float | None = None
    max_latency_ms: float | None = None
    max_memory_bytes: float | None = None

    def limits(self) -> dict[str, tuple[float | None, float | None]]:
        """The costs that are limited: name -> (lowest, highest)."""
        names = dict.fromkeys(field.name.partition("_")[2] for field in fields(self))
        ends = {n: (getattr(self, f"min_{n}", None), getattr(self, f"max_{n}", None)) for n in names}
        return {name: end for name, end in ends.items() if end != (None, None)}

    def windows(self) -> list[Window]:
        return list(self._windows)

    def fits(self, costs: Mapping[str, float]) -> bool:
        return all(window.excess(costs) == 0 for window in self._windows)

    @cached_property
    def _windows(self) -> list[Window]:  # needed for every architecture that a search draws
        return [Window(name, low, high) for name, (low, high) in self.limits().items()]

    def __str__(self) -> str:
        parts = []
        for name, (low, high) in self.limits().items():
            left = "" if low is None else f"{format_exactly(low)} <= "
            right = "" if high is None else f" <= {format_exactly(high)}"
            parts.append(f"{left}{name}{right}")
        return ", ".join(parts) or "no limit"


DRAWS = 200  # random archs: the first are references, all are starts of the walks to the smallest and largest


def references(node: Node, costs: Costs, budget: Budget, seed: int = 0, random: int = 1) -> dict[str, Arch]:
    """Random archs in the budget, and the smallest and largest, by their number of parameters.

    Args:
        random: How many random archs, all different: `random`, `random 2`, ... A small space may have fewer.
    """
    windows = budget.windows()
    drawn = [sample_feasible(node, Random(f"{seed} reference {k}"), costs, windows) for k in range(DRAWS)]
    ends = {name: _extreme(node, costs, budget, drawn, sign) for name, sign in (("smallest", 1), ("largest", -1))}
    different = list(dict.fromkeys(drawn))[:random]
    return {f"random {k}" if k > 1 else "random": arch for k, arch in enumerate(different, 1)} | ends


NEAR = 0.9
"""A uniform arch with this share of the budget's limit or more uses it well enough; of such, the most even counts."""


def uniform_arch(node: Struct, costs: Costs, budget: Budget) -> Arch | None:
    """The arch in the budget that has about the same share of everything: what one would cut without a search.

    Dimensions of one name, such as the heads of all stages, have the same share of their largest values. None if no
    such arch fits.
    """
    limits = {name: high for name, (_, high) in budget.limits().items() if high is not None}
    fitting = [(uneven, arch) for uneven, arch in uniform_archs(node) if budget.fits(costs(arch))]
    if not fitting or not limits:
        return node.largest() if fitting else None
    used = {arch: max(costs(arch)[name] / high for name, high in limits.items()) for _, arch in fitting}
    near = [(uneven, -used[arch], arch) for uneven, arch in fitting if used[arch] >= NEAR]
    return min(near, key=lambda item: item[:2])[2] if near else max(used, key=lambda arch: used[arch])


def uniform_archs(node: Struct) -> Iterator[tuple[float, Arch]]:
    """Archs that have equal shares of dimensions of one name, and how much these shares differ."""
    elastic: dict[str, dict[str, tuple[float, ...]]] = {}
    for name, choice in dimensions(node).items():
        numbers = [value for value in choice.values if isinstance(value, int | float) and value > 0]
        if len(numbers) > 1:
            elastic.setdefault(name.rpartition(".")[2], {})[name] = tuple(numbers)
    levels = [sorted({v / max(values) for values in dims.values() for v in values}) for dims in elastic.values()]
    for shares in product(*levels):
        chosen = {
            name: [min(values, key=lambda value: abs(value / max(values) - share))]
            for share, dims in zip(shares, elastic.values(), strict=True)
            for name, values in dims.items()
        }
        yield max(shares, default=1.0) - min(shares, default=1.0), with_choices(node, chosen).largest()


def _extreme(node: Node, costs: Costs, budget: Budget, drawn: list[Arch], sign: int) -> Arch:
    """Walks from the best of the ends and the draws by single steps that get better and stay in the budget."""

    def price(arch: Arch) -> float:
        return sign * costs(arch)["params"]

    ends = [arch for arch in (node.smallest(), node.largest()) if budget.fits(costs(arch))]
    best = min(ends + drawn, key=price)
    while True:
        better = [arch for arch in node.neighbours(best) if budget.fits(costs(arch)) and price(arch) < price(best)]
        if not better:
            return best
        best = min(better, key=price)
