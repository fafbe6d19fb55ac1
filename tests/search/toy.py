"""A small space whose best member is known, so that searches can be checked; no model, no data."""

from __future__ import annotations

import inspect
import sys
import time
from pathlib import Path
from typing import Any

from nasformer.search.problem import Problem
from nasformer.search.run import SearchResult, search
from nasformer.search.strategy import find_strategy, list_strategies
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.space.nodes import Choice, Repeat, Struct

# Those that take any objectives, and evaluate as many as they say unless the space is exhausted.
GENERAL = [name for name, kind in list_strategies().items() if kind.takes_ranks]
OBJECTIVES = {name: ("accuracy",) if name in GENERAL else ("accuracy", "params") for name in list_strategies()}

BLOCK = Struct(num_heads=Choice(3, 4, role="topology"), mlp_ratio=Choice(3.5, 4.0))
SPACE = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(BLOCK, depth=Choice(6, 7, 8)))
BEST = Arch(
    embed_dim=216,
    blocks=[{"num_heads": 3 + layer % 2, "mlp_ratio": 4.0 if layer < 4 else 3.5} for layer in range(7)],
)
BUDGET = Budget(min_params=1_500_000, max_params=3_800_000)


def costs(arch: Arch) -> dict[str, int]:
    """Grows with every choice, as real parameters do."""
    per_block = [arch.embed_dim * (4 * 64 * b.num_heads + 2 * arch.embed_dim * b.mlp_ratio) for b in arch.blocks]
    return {"params": int(sum(per_block)), "macs": int(197 * sum(per_block))}


def accuracy(arch: Arch) -> dict[str, float]:
    """100 for BEST and for nothing else; every gene that differs from it costs something."""
    wrong = 3.0 * (arch.embed_dim != BEST.embed_dim) + 2.0 * abs(len(arch.blocks) - len(BEST.blocks))
    for mine, best in zip(arch.blocks, BEST.blocks, strict=False):
        wrong += 1.0 * (mine.num_heads != best.num_heads) + 1.1 * (mine.mlp_ratio != best.mlp_ratio)
    return {"accuracy": 100 - wrong}


def small(name: str) -> dict[str, Any]:
    """Options that keep the strategy short: 48 evaluations if it is general, for whatever options it has."""
    options = {"population": 12, "generations": 4, "parents": 4, "evaluations": 48, "steps": 4, "cycles": 2}
    known = inspect.signature(find_strategy(name)).parameters
    return {option: value for option, value in options.items() if option in known}


def problem(name: str, seed: int = 0) -> Problem:
    return Problem(SPACE, costs, BUDGET, OBJECTIVES[name], seed)


def run(name: str, journal: Path | str | None = None, **changes: Any) -> SearchResult:
    arguments: dict[str, Any] = {
        "strategy": name,
        "evaluate": accuracy,
        "costs": costs,
        "options": small(name),
        "budget": BUDGET,
        "objectives": OBJECTIVES[name],
    }
    return search(SPACE, journal=journal, **{**arguments, **changes})


if __name__ == "__main__":  # what the crash tests kill: python -m search.toy STRATEGY JOURNAL SECONDS

    def slow(arch: Arch) -> dict[str, float]:
        time.sleep(float(sys.argv[3]))
        return accuracy(arch)

    run(sys.argv[1], sys.argv[2], evaluate=slow)
