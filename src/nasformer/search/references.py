"""Reference architectures that a winner must beat: a random one, and the smallest and the largest within the budget."""

from __future__ import annotations

from random import Random

from nasformer.search.budget import Budget
from nasformer.space.arch import Arch
from nasformer.space.feasible import Costs, sample_feasible
from nasformer.space.node import Node

DRAWS = 200


def references(node: Node, costs: Costs, budget: Budget, seed: int = 0) -> dict[str, Arch]:
    """A random arch, and the smallest and largest in the budget, by their number of parameters."""
    windows = budget.windows()
    drawn = [sample_feasible(node, Random(f"{seed} reference {k}"), costs, windows) for k in range(DRAWS)]
    ends = {name: _extreme(node, costs, budget, drawn, sign) for name, sign in (("smallest", 1), ("largest", -1))}
    return {"random": drawn[0], **ends}


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
