"""Budget: limits on what a model may cost, sampling within them, and reference architectures a winner must beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from random import Random

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions, with_choices
from nasformer.space.nodes import FIRST, LAST, Node, Rng, Struct
from nasformer.utils.units import format_digits, format_exactly

Costs = Callable[[Arch], Mapping[str, float]]


@dataclass(frozen=True)
class Window:
    """Inclusive limits on one named cost, such as "params" or "macs"; None means no limit.

    >>> print(Window("params", high=3_000_000), "|", Window("macs", low=1e9, high=1.25e9))
    params <= 3M | macs between 1G and 1.25G
    """

    name: str
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None:
            return self.name if self.high is None else f"{self.name} <= {format_exactly(self.high)}"
        if self.high is None:
            return f"{self.name} >= {format_exactly(self.low)}"
        return f"{self.name} between {format_exactly(self.low)} and {format_exactly(self.high)}"

    def cost(self, costs: Mapping[str, float]) -> float:
        if self.name not in costs:
            raise UserError(f"there is no cost {self.name!r} to limit, known costs: {', '.join(costs)}")
        return costs[self.name]

    def excess(self, costs: Mapping[str, float]) -> float:
        """How far the cost lies outside, relative to the limit: negative below, positive above, 0 inside."""
        cost = self.cost(costs)
        if self.low is not None and cost < self.low:
            return (cost - self.low) / (abs(self.low) or 1)
        if self.high is not None and cost > self.high:
            return (cost - self.high) / (abs(self.high) or 1)
        return 0.0

    def flag(self, end: str) -> str:
        """The option of the command line that sets one end ("min" or "max"); units are given with its value."""
        return f"--{end}-{self.name.removesuffix('_ms').removesuffix('_bytes').replace('_', '-')}"


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


# Sampling within a budget, with bounded work: refuse the impossible, draw, repair, or say what to widen.

RESTARTS = 50  # of the repair walk
STEPS = 1000  # of one walk; real spaces need about as many as they have genes


def check_satisfiable(node: Node, costs: Costs, windows: Sequence[Window]) -> None:
    """Raise a UserError at once when a window lies outside what the space can reach.

    Costs grow with every choice, so the smallest and the largest member bound them. Only the options of a
    OneOf and fields under a rule have no such order; therefore single steps from either end look for a wider
    bound. Passing is necessary, not sufficient: a window may fall between two members, or contradict another.
    """
    for window in windows:
        _check_window(node, costs, window)


def _check_window(node: Node, costs: Costs, window: Window) -> None:
    low, high = window.low, window.high
    if low is not None and high is not None and low > high:
        ends = f"{window.flag('min')} {format_digits(low)} is above {window.flag('max')} {format_digits(high)}"
        raise UserError(f"{ends}; lower the first or raise the second")
    least = _lowest(node, FIRST, lambda arch: window.cost(costs(arch)))
    most = -_lowest(node, LAST, lambda arch: -window.cost(costs(arch)))
    if high is not None and least > high:
        advice = f"raise {window.flag('max')}"
    elif low is not None and most < low:
        advice = f"lower {window.flag('min')}"
    else:
        return
    reach = f"the smallest has {format_digits(least)} and the largest {format_digits(most)}"
    raise UserError(f"no architecture fits {window}: {reach}; {advice} or choose another space")


def _lowest(node: Node, end: Rng, cost: Callable[[Arch], float]) -> float:
    """The lowest cost that single steps reach from the member at one end of the space."""
    arch = node.sample(end)
    best = cost(arch)
    while True:
        steps = ((step, lower) for step in node.neighbours(arch, end) if (lower := cost(step)) < best)
        better = next(steps, None)
        if better is None:
            return best
        arch, best = better


def sample_feasible(node: Node, rng: Random, costs: Costs, windows: Sequence[Window], tries: int = 200) -> Arch:
    """A random member whose costs lie in all the windows.

    The first `tries` draws are plain samples: what they accept has exactly the space's distribution under the
    condition. Only when all of them miss does a repair walk take over. From a random member it takes random
    single steps, each bringing the costs nearer to the windows. What the walk returns is biased: it stops at the
    first member inside, so it favours the rim of the windows that faces the bulk of the space, and members with
    many ways leading to them. Good enough to seed an evolution, not to estimate averages.

    The work is bounded. When nothing fits, a UserError says how close it came and what to widen.
    """
    violations = _Violations(costs, windows)
    for _ in range(tries):
        arch = node.sample(rng)
        if violations.measure(arch) == 0:
            return arch
    for _ in range(RESTARTS):
        repaired = _repair(node, node.sample(rng), violations, rng)
        if repaired is not None:
            return repaired
    raise UserError(violations.message())


def _repair(node: Node, arch: Arch, violations: _Violations, rng: Random) -> Arch | None:
    """Walk from a member into the windows; None when no single step comes nearer any more."""
    violation = violations.measure(arch)
    for _ in range(STEPS):
        if violation == 0:
            return arch
        steps = list(node.neighbours(arch))
        rng.shuffle(steps)  # so that the first step that comes nearer is a uniform pick among all that do
        nearer = next(((step, lower) for step in steps if (lower := violations.measure(step)) < violation), None)
        if nearer is None:
            return None
        arch, violation = nearer
    return None


class _Violations:
    """Measures how far members lie outside the windows and remembers the closest, for the error message."""

    def __init__(self, costs: Costs, windows: Sequence[Window]) -> None:
        self.costs, self.windows = costs, windows
        self.closest: dict[tuple[Window, str], tuple[float, float]] = {}  # (window, side) -> (violation, cost)

    def measure(self, arch: Arch) -> float:
        """How far outside the windows the member lies in all; 0 when it fits."""
        costs = self.costs(arch)
        excesses = [window.excess(costs) for window in self.windows]
        violation = sum(map(abs, excesses))
        for window, excess in zip(self.windows, excesses, strict=True):
            if excess:
                key = window, "below" if excess < 0 else "above"
                seen = violation, window.cost(costs)
                self.closest[key] = min(self.closest.get(key, seen), seen)
        return violation

    def message(self) -> str:
        wanted = " and ".join(map(str, self.windows))
        seen = ", ".join(f"{w.name} {format_digits(cost)} {side}" for (w, side), (_, cost) in self.closest.items())
        change = {"below": ("lower", "min"), "above": ("raise", "max")}
        advice = " or ".join(f"{change[side][0]} {w.flag(change[side][1])}" for w, side in self.closest)
        return f"found no architecture with {wanted}; the closest seen: {seen}; {advice}"


# References within a budget: random archs, the smallest and largest, and an even cut.

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
    """The arch in the budget with about the same share of every dimension: a cut without a search.

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
