"""Search: find the best architecture of a space within a budget, resumable at any moment. No torch here."""

from __future__ import annotations

from nasformer.search.budget import Budget, format_quantity, parse_quantity
from nasformer.search.journal import Journal, read_journal
from nasformer.search.pareto import crowding_distance, non_dominated_rank, pareto_front
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.search.run import SearchResult, references, search
from nasformer.search.strategies.base import Strategy
from nasformer.search.strategies.cyclic import Cyclic
from nasformer.search.strategies.evolution import Evolution
from nasformer.search.strategies.random import RandomSearch
from nasformer.search.strategies.registry import STRATEGIES, complete_options, find_strategy

__all__ = [
    "STRATEGIES",
    "Budget",
    "Candidate",
    "Cyclic",
    "Evolution",
    "Journal",
    "Problem",
    "Proposal",
    "RandomSearch",
    "SearchResult",
    "Strategy",
    "complete_options",
    "crowding_distance",
    "find_strategy",
    "format_quantity",
    "non_dominated_rank",
    "pareto_front",
    "parse_quantity",
    "read_journal",
    "references",
    "search",
]
