"""Search: find the best architecture of a space within a budget, resumable at any moment. No torch here."""

from __future__ import annotations

from nasformer.search.budget import Budget, references
from nasformer.search.journal import Journal, read_journal
from nasformer.search.options import SearchOptions
from nasformer.search.problem import Candidate, Problem, Proposal, crowding_distance, non_dominated_rank, pareto_front
from nasformer.search.run import SearchResult, search
from nasformer.search.strategies.base import RandomSearch, Strategy
from nasformer.search.strategies.cyclic import Cyclic
from nasformer.search.strategies.evolution import Evolution
from nasformer.search.strategies.registry import (
    complete_options,
    find_strategy,
    list_strategies,
    register_strategy,
    strategy_options,
)

__all__ = [
    "Budget",
    "Candidate",
    "Cyclic",
    "Evolution",
    "Journal",
    "Problem",
    "Proposal",
    "RandomSearch",
    "SearchOptions",
    "SearchResult",
    "Strategy",
    "complete_options",
    "crowding_distance",
    "find_strategy",
    "list_strategies",
    "non_dominated_rank",
    "pareto_front",
    "read_journal",
    "references",
    "register_strategy",
    "search",
    "strategy_options",
]
