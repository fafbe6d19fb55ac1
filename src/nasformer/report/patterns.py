"""What emerged: the winners of several searches of one space, tabulated by stage beside random archs of that space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.report.stages import Reading, pool, read, table
from nasformer.report.verdicts import Verdict, judge
from nasformer.search import Budget
from nasformer.space import Arch, sample_feasible

DRAWS = 300
TRIES = 200  # plain samples for each draw, before single steps lead into the budget


@dataclass(frozen=True)
class Patterns:
    """The winners beside the random archs.

    Args:
        winners: How many there are.
        draws: How many random archs they are compared with.
        repaired: How many of these were led into a narrow budget, and are not quite a fair sample of it.
        found: What the winners chose, by stage.
        random: What the random archs chose.
        verdicts: On the patterns that the family's paper reports, if it does.
    """

    space: str
    budget: str
    winners: int
    draws: int
    repaired: int
    found: Reading
    random: Reading
    verdicts: list[Verdict]

    @property
    def together(self) -> Reading:
        """All that was chosen by anyone: what there is to show."""
        return pool([self.found, self.random])

    def to_dict(self) -> dict[str, Any]:
        """Shares, means and spreads in place of the single choices, ready for JSON."""
        facts = {name: getattr(self, name) for name in ("space", "budget", "winners", "draws", "repaired")}
        tables = {"found": table(self.found), "random": table(self.random)}
        return {**facts, **tables, "verdicts": [asdict(verdict) for verdict in self.verdicts]}


def find_patterns(space: Space, winners: Sequence[Arch], budget: Budget, draws: int = DRAWS, seed: int = 0) -> Patterns:
    """Compares winners of searches with random archs of the same space and budget.

    >>> from nasformer import get_space
    >>> space = get_space("esformer-s0")
    >>> found = find_patterns(space, [space.presets["edgenext-like-xxs"]], Budget(max_params=2_000_000), draws=20)
    >>> {verdict.pattern: verdict.verdict for verdict in found.verdicts}["kernels_grow"]
    'appears'
    """
    if not winners:
        raise UserError("there are no winners to compare; give the archs of one search or more")
    drawn, repaired = draw(space, budget, draws, seed)
    found, random = ([read(space.root, arch) for arch in archs] for archs in (winners, drawn))
    return Patterns(
        space=space.name,
        budget=str(budget),
        winners=len(winners),
        draws=draws,
        repaired=repaired,
        found=pool(found),
        random=pool(random),
        verdicts=judge(space.model.family, found, random, seed),
    )


def draw(space: Space, budget: Budget, count: int, seed: int) -> tuple[list[Arch], int]:
    """Random archs within the budget, and how many of them needed more than plain sampling."""
    rng, windows, asked = Random(seed), budget.windows(), 0

    def costs(arch: Arch) -> dict[str, float]:
        nonlocal asked
        asked += 1
        return space.costs(arch)

    drawn, repaired = [], 0
    for _ in range(count):
        before = asked
        drawn.append(sample_feasible(space.root, rng, costs, windows, TRIES))
        repaired += asked - before > TRIES
    return drawn, repaired
