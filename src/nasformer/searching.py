"""What a command's options ask of the search through a supernet: its problem and its strategy, checked beforehand."""

from __future__ import annotations

from nasformer.families import Space
from nasformer.options import SearchOptions
from nasformer.search import Budget, Problem, complete_options, find_strategy
from nasformer.search.strategy import Strategy
from nasformer.space import check_satisfiable


def objectives_of(options: SearchOptions) -> tuple[str, ...]:
    return tuple(options.objectives) or ("accuracy",)


def problem_of(space: Space, options: SearchOptions, budget: Budget, seed: int) -> Problem:
    return Problem(space.root, space.costs, budget, objectives_of(options), seed)


def strategy_of(problem: Problem, options: SearchOptions) -> Strategy:
    """The strategy before its first question; it knows how many candidates it will ask for at most."""
    kind = find_strategy(options.strategy)
    return kind(problem, **complete_options(kind, options.options()))


def check_search(space: Space, options: SearchOptions, budget: Budget, seed: int) -> None:
    """Raises now what the search would raise after a long training."""
    check_satisfiable(space.root, space.costs, budget.windows())
    problem = problem_of(space, options, budget, seed)
    problem.point({"accuracy": 0.0, **space.costs(space.root.smallest())})
    strategy_of(problem, options)
