"""The search loop: ask, judge, write down, tell. What the journal already holds is not judged again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from nasformer.errors import UserError
from nasformer.search.budget import Budget
from nasformer.search.candidate import Candidate, Proposal, plain_scores
from nasformer.search.journal import Journal
from nasformer.search.problem import Problem
from nasformer.search.registry import complete_options, find_strategy
from nasformer.search.strategy import Strategy
from nasformer.space import Arch, Node, check_satisfiable
from nasformer.space.feasible import Costs

Evaluate = Callable[[Arch], Mapping[str, float]]


class HasRoot(Protocol):
    """A family's space, as far as a search is concerned."""

    @property
    def root(self) -> Node: ...


@dataclass(frozen=True)
class SearchResult:
    """All candidates in order, the winner, the Pareto front (cheapest first), and why it ended early."""

    candidates: list[Candidate]
    best: Candidate
    front: list[Candidate]
    note: str


def search(
    space: Node | HasRoot,
    evaluate: Evaluate,
    costs: Costs,
    *,
    strategy: str | type[Strategy] = "evolution",
    options: Mapping[str, Any] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    objectives: tuple[str, ...] = ("accuracy",),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> SearchResult:
    """Looks for the best architecture within the budget.

    With a journal the search can be killed at any moment: the same call goes on where it stopped, and ends
    with the same journal and winner as if nothing had happened (as long as `evaluate` is deterministic).

    Args:
        evaluate: Judges an architecture; gives scores by name, the objectives among them.
        costs: The costs of an architecture by name; cheap, called for many more than are judged.
        strategy: A name in STRATEGIES, or a Strategy class; `options` are its keyword arguments.
        objectives: Scores or costs to raise, or with a leading minus to lower.
        settings: What else the scores depend on (checkpoint, data ...); a journal with others is refused.
        on_candidate: Called after each candidate, also for those read back from the journal.

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
    problem = Problem(node, lru_cache(maxsize=2**16)(costs), budget, tuple(objectives), seed)
    check_satisfiable(node, problem.costs, budget.windows())
    kind = find_strategy(strategy) if isinstance(strategy, str) else strategy
    name = strategy if isinstance(strategy, str) else strategy.__name__
    chosen = complete_options(kind, options or {})
    player = kind(problem, **chosen)
    header = {"strategy": name, "options": chosen, **_settings(problem), **(settings or {})}
    with Journal(journal, header) if journal else nullcontext() as book:
        clerk = _Clerk(problem, evaluate, book)
        while not player.done:
            results = []
            for proposal in player.ask():
                candidate = clerk.judge(proposal)
                results.append((proposal, candidate.scores))
                if on_candidate:
                    on_candidate(candidate)
            player.tell(results)
        clerk.check_all_used()
    judged = player.candidates
    return SearchResult(judged, problem.winner(judged), problem.front(judged), player.note)


def _settings(problem: Problem) -> dict[str, Any]:
    limits = {name: value for name, value in asdict(problem.budget).items() if value is not None}
    return {
        "seed": problem.seed,
        "objectives": problem.objectives,
        "budget": limits,
        "space_size": problem.node.cardinality,
    }


class _Clerk:
    """Looks the scores of a proposal up in the journal, or has them made and writes them down."""

    def __init__(self, problem: Problem, evaluate: Evaluate, journal: Journal | None) -> None:
        self.problem, self.evaluate, self.journal = problem, evaluate, journal
        self.recorded: Iterator[dict[str, Any]] = iter(journal.records if journal else ())
        self.count = 0

    def judge(self, proposal: Proposal) -> Candidate:
        record = next(self.recorded, None)
        if record is not None:
            candidate = self._recall(proposal, record)
        else:
            candidate = Candidate.judged(self.count, proposal, self._scores(proposal.arch))
            if self.journal:
                self.journal.append(candidate.to_dict())
        self.count += 1
        return candidate

    def _scores(self, arch: Arch) -> dict[str, float]:
        costs, scores = self.problem.costs(arch), self.evaluate(arch)
        if clash := costs.keys() & scores.keys():
            raise ValueError(f"the evaluation and the costs both give {min(clash)!r}; rename one of the two")
        merged = plain_scores({**costs, **scores})
        self.problem.point(merged)  # a misspelt objective shows at the first candidate, not after the last
        return merged

    def _recall(self, proposal: Proposal, record: Mapping[str, Any]) -> Candidate:
        expected = Candidate.judged(self.count, proposal, {}).to_dict()
        if any(record.get(name) != value for name, value in expected.items()):
            raise self._stray(self.count)
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
