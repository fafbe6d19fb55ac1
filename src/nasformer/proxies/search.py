"""Search without training: score untrained nets inside a budget, keep the best. Needs no data and no supernet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nasformer.proxies.scoring import Scorer
from nasformer.search import Budget, SearchResult, find_strategy, search


def search_training_free(
    scorer: Scorer,
    *,
    budget: Budget | None = None,
    strategy: str = "random",
    options: Mapping[str, Any] | None = None,
    objectives: tuple[str, ...] = (),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> SearchResult:
    """The best arch in the budget by one proxy, or by the ranks that several give it together (as AZ-NAS does).

    TF-TAS is ``Scorer(space, "dss")`` with ``options={"evaluations": 8000}`` and a window of parameters.

    Args:
        objectives: Proxies and costs to raise or, with a minus, to lower, as a Pareto front; none: the proxies' ranks,
            or for "cyclic" the two proxies in the order given, first the topology's and then the size's.

    >>> import nasformer
    >>> scorer = Scorer(nasformer.get_space("autoformer-micro", img_size=16), "dss")
    >>> result = search_training_free(
    ...     scorer, budget=Budget(max_params=100_000), options={"evaluations": 8}, quiet=True
    ... )
    >>> result.best.scores["dss"] == max(one.scores["dss"] for one in result.candidates)
    True
    """
    by_ranks = not objectives and find_strategy(strategy).takes_ranks
    return search(
        scorer.space,
        scorer,
        scorer.space.costs,
        strategy=strategy,
        options=options,
        budget=budget or Budget(),
        objectives=objectives or tuple(proxy.name for proxy in scorer.proxies),
        order="ranks" if by_ranks else "pareto",
        seed=seed,
        journal=journal,
        settings={**scorer.settings, **(settings or {})},
        quiet=quiet,
    )
