"""Random search as a baseline: for nothing, as the start of another search; or at equal budget, beside it."""

from __future__ import annotations

from collections.abc import Sequence

from nasformer.search import Candidate, Problem, SearchResult
from nasformer.space import Arch

RANDOM = "random.jsonl"
"""The journal of a random search beside another one."""


def best_of_start(problem: Problem, candidates: Sequence[Candidate]) -> dict[str, Arch]:
    """The best of the random candidates that a search began with, by a name that says of how many.

    These are all that it says of random search without a further evaluation. Of a search that was random throughout,
    or that had nothing random in it, there is nothing to say.
    """
    start = [one for one in candidates if one.origin == "random" and one.generation == 0]
    if len(start) in (0, len(candidates)) or not problem.sound(start):
        return {}
    return {name_of(len(start)): problem.winner(start).arch}


def best_of_search(result: SearchResult) -> dict[str, Arch]:
    """What a random search found, by a name that says with how many candidates."""
    return {name_of(len(result.candidates)): result.best.arch}


def name_of(count: int) -> str:
    """
    >>> name_of(1000)
    'best of 1,000 random'
    """
    return f"best of {count:,} random"
