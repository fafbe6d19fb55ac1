"""The search loop: ask, judge, write down, tell. What the journal already holds is not judged again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Protocol, runtime_checkable

from nasformer.errors import UserError
from nasformer.search.budget import Budget
from nasformer.search.journal import Journal
from nasformer.search.problem import Candidate, Order, Problem, Proposal, plain_scores
from nasformer.search.strategies.base import Strategy
from nasformer.search.strategies.registry import complete_options, find_strategy
from nasformer.space.arch import Arch
from nasformer.space.feasible import Costs, check_satisfiable, sample_feasible
from nasformer.space.node import Node
from nasformer.utils.progress import progress

# ----------------------------------------------------------------------------------------------------------------------
# What a winner must beat: a random arch, and the cheapest and the dearest one within the budget.
# ----------------------------------------------------------------------------------------------------------------------

DRAWS = 200


def references(node: Node, costs: Costs, budget: Budget, seed: int = 0) -> dict[str, Arch]:
    """A random arch, and the smallest and largest in the budget, by their number of parameters."""
    windows = budget.windows()
    drawn = [sample_feasible(node, Random(f"{seed} reference {k}"), costs, windows) for k in range(DRAWS)]
    found = {"random": drawn[0]}
    for name, sign in (("smallest", 1), ("largest", -1)):
        found[name] = _extreme(node, costs, budget, drawn, sign)
    return found


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


Scores = Mapping[str, float]
Evaluate = Callable[[Arch], Scores]


@runtime_checkable
class EvaluateMany(Protocol):
    """An evaluation that judges several architectures faster together than one by one."""

    def many(self, archs: Sequence[Arch]) -> list[Scores]: ...


class HasRoot(Protocol):
    """A family's space, as far as a search is concerned."""

    @property
    def root(self) -> Node: ...


@dataclass(frozen=True)
class SearchResult:
    """All candidates in order, the winner, the Pareto front (cheapest first), and why it ended early.

    `ranking` has the winner first, then the others as they follow by what decides.
    """

    candidates: list[Candidate]
    best: Candidate
    front: list[Candidate]
    note: str
    ranking: list[Candidate] = field(default_factory=list)


def search(
    space: Node | HasRoot,
    evaluate: Evaluate,
    costs: Costs,
    *,
    strategy: str | type[Strategy] = "evolution",
    options: Mapping[str, Any] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    objectives: tuple[str, ...] = ("accuracy",),
    order: Order = "pareto",
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
    quiet: bool = True,
) -> SearchResult:
    """Looks for the best architecture within the budget.

    With a journal the search can be killed at any moment: the same call goes on where it stopped, and ends
    with the same journal and winner as if nothing had happened (as long as `evaluate` is deterministic).

    Args:
        evaluate: Judges an architecture; gives scores by name, the objectives among them. One that has a method
            `many` gets all that a strategy asks for at a time, such as a generation.
        costs: The costs of an architecture by name; cheap, called for many more than are judged.
        strategy: A name in STRATEGIES, or a Strategy class; `options` are its keyword arguments.
        objectives: Scores or costs to raise, or with a leading minus to lower.
        order: What several objectives mean together: "pareto" or "ranks" (see `Problem`).
        settings: What else the scores depend on (checkpoint, data ...); a journal with others is refused.
        on_candidate: Called after each candidate, also for those read back from the journal.
        quiet: Shows no progress.

    >>> from nasformer.space import Choice, Struct
    >>> space = Struct(width=Choice(1, 2, 3, 4), depth=Choice(1, 2, 3, 4))
    >>> size = lambda arch: {"params": arch.width * arch.depth}
    >>> shape = lambda arch: {"accuracy": -abs(arch.width - arch.depth)}
    >>> result = search(space, shape, size, strategy="random", budget=Budget(min_params=5, max_params=12))
    >>> result.best.arch, len(result.candidates)
    (Arch(width=3, depth=3), 7)
    >>> result.note
    'stopped after 7 of 1000 candidates, found no other architecture within the budget (5 <= params <= 12)'
    """
    node = space if isinstance(space, Node) else space.root
    problem = Problem(node, lru_cache(maxsize=2**16)(costs), budget, tuple(objectives), seed, order)
    check_satisfiable(node, problem.costs, budget.windows())
    kind = find_strategy(strategy) if isinstance(strategy, str) else strategy
    name = strategy if isinstance(strategy, str) else strategy.__name__
    chosen = complete_options(kind, options or {})
    player = kind(problem, **chosen)
    header = {"strategy": name, "options": chosen, **_settings(problem), **(settings or {})}
    with Journal(journal, header) if journal else nullcontext() as book:
        clerk = _Clerk(problem, evaluate, book)
        with progress("search", player.evaluations, quiet) as report:
            best = -math.inf
            while not player.done:
                results = []
                for proposal, candidate in clerk.judge(player.ask()):
                    results.append((proposal, candidate.scores))
                    best = max(best, _first_objective(problem, candidate))
                    report(candidate.id + 1, f"best {problem.objectives[0]} {best:.4g}")
                    if on_candidate:
                        on_candidate(candidate)
                player.tell(results)
        clerk.check_all_used()
    judged, best_one = player.candidates, player.winner()
    others = [one for one in problem.ranked(judged) if one.arch != best_one.arch]
    return SearchResult(judged, best_one, problem.front(judged), player.note, [best_one, *others])


def _first_objective(problem: Problem, candidate: Candidate) -> float:
    value = problem.point(candidate.scores)[0]
    return value if math.isfinite(value) else -math.inf


def _settings(problem: Problem) -> dict[str, Any]:
    limits = {name: value for name, value in asdict(problem.budget).items() if value is not None}
    order = {"order": problem.order} if problem.order != "pareto" else {}
    return {
        "seed": problem.seed,
        "objectives": problem.objectives,
        **order,
        "budget": limits,
        "space_size": problem.node.cardinality,
    }


class _Clerk:
    """Looks the scores of a proposal up in the journal, or has them made and writes them down."""

    def __init__(self, problem: Problem, evaluate: Evaluate, journal: Journal | None) -> None:
        self.problem, self.evaluate, self.journal = problem, evaluate, journal
        self.recorded: Iterator[dict[str, Any]] = iter(journal.records if journal else ())
        self.count = 0

    def judge(self, proposals: Sequence[Proposal]) -> Iterator[tuple[Proposal, Candidate]]:
        """The candidates in order; what is in the journal is read, the rest is made."""
        recorded = [record for _, record in zip(proposals, self.recorded, strict=False)]
        recalled = [self._recall(*pair) for pair in enumerate(zip(proposals, recorded, strict=False), self.count)]
        yield from zip(proposals, recalled, strict=False)
        missing = proposals[len(recalled) :]
        self.count += len(recalled)
        if missing and isinstance(self.evaluate, EvaluateMany):
            # All of them again, so that the scores do not depend on where a search was killed.
            scores = self.evaluate.many([proposal.arch for proposal in proposals])[len(recalled) :]
            yield from self._write(missing, scores)
        else:
            for proposal in missing:
                yield from self._write([proposal], [self.evaluate(proposal.arch)])

    def _write(self, proposals: Sequence[Proposal], scores: Sequence[Scores]) -> Iterator[tuple[Proposal, Candidate]]:
        """Candidates that were just judged, put into the journal together."""
        pairs = enumerate(zip(proposals, scores, strict=True), self.count)
        candidates = [
            Candidate.judged(id, proposal, self._scores(proposal.arch, found)) for id, (proposal, found) in pairs
        ]
        if self.journal:
            self.journal.append(*(candidate.to_dict() for candidate in candidates))
        self.count += len(candidates)
        yield from zip(proposals, candidates, strict=True)

    def _scores(self, arch: Arch, scores: Scores) -> dict[str, float]:
        costs = self.problem.costs(arch)
        if clash := [name for name in costs.keys() & scores.keys() if costs[name] != scores[name]]:
            raise ValueError(f"the evaluation and the costs disagree on {min(clash)!r}; rename one of the two")
        merged = plain_scores({**costs, **scores})
        self.problem.point(merged)  # a misspelt objective shows at the first candidate, not after the last
        return merged

    def _recall(self, id: int, pair: tuple[Proposal, Mapping[str, Any]]) -> Candidate:
        proposal, record = pair
        expected = Candidate.judged(id, proposal, {}).to_dict()
        if any(record.get(name) != value for name, value in expected.items()):
            raise self._stray(id)
        return Candidate.from_dict(record)

    def check_all_used(self) -> None:
        if next(self.recorded, None) is not None:
            raise self._stray(self.count)

    def _stray(self, count: int) -> UserError:
        path = self.journal.path if self.journal else None
        return UserError(
            f"{path}, line {count + 2} is not what this search would have judged there: the space, the costs "
            "or nasformer itself has changed; use another --out folder"
        )
