"""The search loop: ask, evaluate, write to the journal, tell. Candidates in the journal are not evaluated again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nasformer.errors import UserError, last_line
from nasformer.search.journal import Journal, parse_line
from nasformer.search.pareto import Order
from nasformer.search.problem import Candidate, Problem, Proposal, plain_scores, recorded_scores, shown_scores
from nasformer.search.strategy import Strategy, complete_options, find_strategy
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, Costs, check_satisfiable
from nasformer.space.nodes import Node
from nasformer.utils.files import write_text
from nasformer.utils.progress import progress
from nasformer.utils.tables import html_row, html_table

# Executors: where the archs that a strategy asks for are evaluated. Results come in the order asked, wherever that is.
#
# `InProcess` is the default. `Chunks` sends them to a pool of workers (see `runs/pools.py`) in chunks of a fixed
# size, so that scores do not depend on how many workers there are.

Scores = Mapping[str, float]
Evaluate = Callable[[Arch], Scores]


@runtime_checkable
class EvaluateMany(Protocol):
    """An evaluation that scores several architectures faster together than one by one."""

    def many(self, archs: Sequence[Arch]) -> list[Scores]: ...


@dataclass(frozen=True)
class Failed:
    """A task that failed for good: how often it was tried, and what the last attempt said."""

    attempts: int
    traceback: str


Outcome = Scores | Failed


class Executor(Protocol):
    """Evaluates batches of archs."""

    @property
    def status(self) -> str:
        """A few words on the workers, for the progress bar."""

    def stream(self, more: Callable[[], Sequence[Arch]]) -> Iterator[tuple[int, Outcome]]:
        """The scores of archs that `more` gives, with their numbers, as they come."""

    def evaluate(self, archs: Sequence[Arch], recorded: int = 0) -> Iterator[Sequence[Outcome]]:
        """The scores of all archs but the first `recorded`, which the journal has; in order, as they come."""


class Pool(Protocol):
    """Workers that do tasks in parallel."""

    @property
    def status(self) -> str: ...

    def map(self, tasks: Sequence[Any]) -> Iterator[Any]:
        """The results of tasks in their order; `Failed` for one that cannot be done."""

    def stream(self, more: Callable[[], Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        """Results with the numbers of their tasks, as they come."""


class InProcess:
    """Evaluates in this process; an evaluation that raises ends the search."""

    status = ""

    def __init__(self, evaluate: Evaluate) -> None:
        self.scores_of = evaluate

    def evaluate(self, archs: Sequence[Arch], recorded: int = 0) -> Iterator[Sequence[Outcome]]:
        if recorded == len(archs):
            return
        if isinstance(self.scores_of, EvaluateMany):
            # All of them again, so that the scores do not depend on where a search was killed.
            scores = self.scores_of.many(archs)
            yield [score for _, score in zip(archs, scores, strict=True)][recorded:]
        else:
            yield from ([self.scores_of(arch)] for arch in archs[recorded:])

    def stream(self, more: Callable[[], Sequence[Arch]]) -> Iterator[tuple[int, Outcome]]:
        raise UserError("an asynchronous search needs workers: --executor ray")


class Chunks:
    """Evaluates on a pool of workers, whose tasks are lists of archs.

    Args:
        size: Archs of a task. Chunks start at the same archs whatever is known already, since archs that are scored
            together may be rounded otherwise than alone.
    """

    def __init__(self, pool: Pool, size: int = 1) -> None:
        self.pool, self.size = pool, size

    @property
    def status(self) -> str:
        return self.pool.status

    def evaluate(self, archs: Sequence[Arch], recorded: int = 0) -> Iterator[Sequence[Outcome]]:
        first = recorded // self.size * self.size
        chunks = [archs[start : start + self.size] for start in range(first, len(archs), self.size)]
        outcomes = self.pool.map(chunks) if self.size == 1 else iter(self._one_by_one(chunks))
        skip = recorded - first
        for outcome in outcomes:
            scores = [outcome] if isinstance(outcome, Failed) else outcome
            yield scores[skip:]
            skip = 0

    def stream(self, more: Callable[[], Sequence[Arch]]) -> Iterator[tuple[int, Outcome]]:
        for number, outcome in self.pool.stream(lambda: [[arch] for arch in more()]):
            yield number, outcome if isinstance(outcome, Failed) else outcome[0]

    def _one_by_one(self, chunks: Sequence[Sequence[Arch]]) -> list[Any]:
        """The results of chunks; of one that failed, those of its archs alone, so that one arch fails no others."""
        outcomes: list[Any] = list(self.pool.map(chunks))
        failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Failed)]
        alone = self.pool.map([[arch] for number in failed for arch in chunks[number]])
        for number in failed:
            results = [next(alone) for _ in chunks[number]]
            outcomes[number] = [result if isinstance(result, Failed) else result[0] for result in results]
        return outcomes


# Costs are needed when an arch is drawn, when it is proposed and when it is scored, all within one batch.
CACHED_COSTS = 2**13
SHOWN = 20  # candidates of the front, in notebooks

FIRST_FAILURES = 5
"""After so many failures and no success, the evaluation itself must be at fault."""


class HasRoot(Protocol):
    """A space of a family: all that a search needs of it is its root."""

    @property
    def root(self) -> Node: ...


@dataclass(frozen=True)
class SearchResult:
    """All candidates in order, the winner, the Pareto front (cheapest first), and why it ended early.

    `ranking` has the winner first, then the others as they follow by what decides; `problem` is what was searched for.
    """

    candidates: list[Candidate]
    best: Candidate
    front: list[Candidate]
    note: str
    ranking: list[Candidate] = field(default_factory=list)
    problem: Problem | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        best = ", ".join(f"{name} {value:.5g}" for name, value in shown_scores(self.best.scores).items())
        return f"SearchResult({len(self.candidates):,} candidates, {len(self.front)} on the front, best: {best})"

    def _repr_html_(self) -> str:
        """The best candidate and the front, for notebooks."""
        models = {"best": self.best, **{f"#{candidate.id}": candidate for candidate in self.front[:SHOWN]}}
        scores = list(shown_scores(self.best.scores))
        head = ["candidate", *scores]
        rows = [html_row([name, *(f"{model.get(score):.5g}" for score in scores)]) for name, model in models.items()]
        title = f"{len(self.candidates):,} candidates; the best, and the front ({len(self.front)})"
        return f"<div>{escape(title)}{html_table(head, rows)}</div>"


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
    on_open: Callable[[], None] | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
    quiet: bool = True,
    executor: Executor | None = None,
    asynchronous: bool = False,
) -> SearchResult:
    """Looks for the best architecture within the budget.

    With a journal the search can be killed at any moment: the same call goes on where it stopped, and ends
    with the same journal and winner as if nothing had happened (as long as `evaluate` is deterministic).

    Args:
        evaluate: Scores an architecture; gives scores by name, the objectives among them. One that has a method
            `many` gets all that a strategy asks for at a time, such as a generation.
        costs: The costs of an architecture by name; cheap, called for many more than are evaluated.
        strategy: The name of a registered strategy, or a Strategy class; `options` are its keyword arguments.
        objectives: Scores or costs to raise, or with a leading minus to lower.
        order: What several objectives mean together: "pareto" or "ranks" (see `Problem`).
        settings: What else the scores depend on (checkpoint, data ...); a journal with others is refused.
        on_open: Called when options, budget and journal have been checked.
        on_candidate: Called after each candidate, also for those read back from the journal.
        quiet: Shows no progress.
        executor: Where archs are evaluated, such as on the workers of a cluster; None: in this process, by `evaluate`.
        asynchronous: Breeds the next candidates as soon as workers are idle, from what is known by then. Faster with
            many workers, but no two searches are alike. For strategies that say they can.

    >>> from nasformer import Choice, Struct
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
    problem = Problem(node, lru_cache(CACHED_COSTS)(costs), budget, tuple(objectives), seed, order)
    check_satisfiable(node, problem.costs, budget.windows())
    strategy_class = find_strategy(strategy) if isinstance(strategy, str) else strategy
    chosen = complete_options(strategy_class, options or {})
    if asynchronous and not strategy_class.asynchronous:
        raise UserError(f"{strategy_class.__name__} waits for all it has asked for; leave --asynchronous out")
    instance = strategy_class(problem, **chosen)
    name = strategy if isinstance(strategy, str) else strategy.__name__
    header = {"strategy": name, "options": chosen, **_settings(problem), **(settings or {})}
    header |= {"asynchronous": True} if asynchronous else {}
    with Journal(journal, header) if journal else nullcontext() as opened:
        if on_open:
            on_open()
        evaluator = JournaledEvaluator(problem, executor or InProcess(evaluate), opened)
        (_run_asynchronously if asynchronous else _run)(instance, evaluator, on_candidate, quiet)
        evaluator.check_all_used()
    return _result(instance)


OnCandidate = Callable[[Candidate], None] | None


def _run(strategy: Strategy, evaluator: JournaledEvaluator, on_candidate: OnCandidate, quiet: bool) -> None:
    """Asks the strategy, evaluates and tells, until it is done."""
    with _reporting(strategy, evaluator, on_candidate, quiet) as report:
        while not strategy.done:
            proposals = strategy.ask()
            scores = []
            for candidate in evaluator.evaluate(proposals):
                scores.append(candidate.scores)
                report(candidate)
            strategy.tell(list(zip(proposals, scores, strict=True)))


def _run_asynchronously(
    strategy: Strategy, evaluator: JournaledEvaluator, on_candidate: OnCandidate, quiet: bool
) -> None:
    """Asks again when the last of a batch is being evaluated and half of it is scored; tells the scores so far."""
    proposals: list[Proposal] = []  # all of them, by the number of their task
    scored: list[tuple[Proposal, Scores]] = []  # since the strategy was told
    half_a_batch = 0

    def more() -> list[Arch]:
        nonlocal half_a_batch
        if strategy.done or len(scored) < half_a_batch:
            return []
        if scored:
            strategy.tell(scored)
            scored.clear()
        batch = [] if strategy.done else strategy.ask()
        proposals.extend(batch)
        half_a_batch = max(1, len(batch) // 2)
        return [proposal.arch for proposal in batch]

    with _reporting(strategy, evaluator, on_candidate, quiet) as report:
        strategy.adopt([(proposal, report(candidate).scores) for proposal, candidate in evaluator.restore_all()])
        for number, outcome in evaluator.executor.stream(more):
            (candidate,) = evaluator.write([proposals[number]], [outcome])
            scored.append((proposals[number], report(candidate).scores))
    strategy.tell(scored)


@contextmanager
def _reporting(
    strategy: Strategy, evaluator: JournaledEvaluator, on_candidate: OnCandidate, quiet: bool
) -> Iterator[Callable[[Candidate], Candidate]]:
    """Progress of a search: a function to call with each candidate."""
    objective, best = strategy.problem.objectives[0], -math.inf
    with progress("search", strategy.evaluations, quiet) as show:

        def report(candidate: Candidate) -> Candidate:
            nonlocal best
            value = strategy.problem.point(candidate.scores)[0]
            best = max(best, value if math.isfinite(value) else -math.inf)
            show(candidate.id + 1, f"best {objective} {best:.4g}  {evaluator.executor.status}".rstrip())
            if on_candidate:
                on_candidate(candidate)
            return candidate

        yield report


def _result(strategy: Strategy) -> SearchResult:
    candidates, winner, problem = strategy.candidates, strategy.winner(), strategy.problem
    others = [candidate for candidate in problem.ranked(candidates) if candidate.arch != winner.arch]
    return SearchResult(candidates, winner, problem.front(candidates), strategy.note, [winner, *others], problem)


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


class JournaledEvaluator:
    """Evaluates proposals, or reads their scores from the journal of an interrupted search."""

    def __init__(self, problem: Problem, executor: Executor, journal: Journal | None) -> None:
        self.problem, self.executor, self.journal = problem, executor, journal
        self.lines: Iterator[bytes] = iter(journal.lines if journal else ())
        self.count = self.failures = 0  # of candidates so far

    def evaluate(self, proposals: Sequence[Proposal]) -> Iterator[Candidate]:
        """The candidates in order: those in the journal first, then the others, each written before it is given."""
        read = 0
        for proposal, line in zip(proposals, self.lines, strict=False):
            yield self._restore(proposal, line)
            read += 1
        for outcomes in self.executor.evaluate([proposal.arch for proposal in proposals], read):
            yield from self.write(proposals[read : read + len(outcomes)], outcomes)
            read += len(outcomes)

    def write(self, proposals: Sequence[Proposal], outcomes: Sequence[Outcome]) -> list[Candidate]:
        """Candidates that were just evaluated, put into the journal together."""
        candidates = [
            Candidate.from_proposal(id, proposal, self._with_costs(proposal.arch, self._scores(id, outcome)))
            for id, (proposal, outcome) in enumerate(zip(proposals, outcomes, strict=True), self.count)
        ]
        if self.journal:
            self.journal.append(*(candidate.to_dict() for candidate in candidates))
        self.count += len(candidates)
        return candidates

    def _scores(self, id: int, outcome: Outcome) -> Scores:
        """The scores; NaN for a candidate that failed, whose traceback goes into a file beside the journal."""
        if not isinstance(outcome, Failed):
            return outcome
        self.failures += 1
        where = ""
        if self.journal:
            path = self.journal.path.parent / "failures" / f"{self.journal.path.stem}-{id}.txt"
            write_text(path, outcome.traceback)
            where = f" (traceback: {path})"
        if self.failures == id + 1 == FIRST_FAILURES:
            reason = last_line(outcome.traceback)
            raise UserError(f"the first {FIRST_FAILURES} candidates all failed, the last with: {reason}{where}")
        costs = self.problem.costs(self.problem.node.smallest())
        names = [name.removeprefix("-") for name in self.problem.objectives]
        return {name: math.nan for name in names if name not in costs} | {"failures": outcome.attempts}

    def _with_costs(self, arch: Arch, scores: Scores) -> dict[str, float]:
        costs = self.problem.costs(arch)
        if clash := [name for name in costs.keys() & scores.keys() if costs[name] != scores[name]]:
            raise ValueError(f"the evaluation and the costs disagree on {min(clash)!r}; rename one of the two")
        merged = plain_scores({**costs, **scores})
        self.problem.point(merged)  # a misspelt objective shows at the first candidate, not after the last
        return merged

    def restore_all(self) -> Iterator[tuple[Proposal, Candidate]]:
        """All candidates of the journal of an asynchronous search, whose order only the journal knows."""
        for line in self.lines:
            try:
                proposal = Candidate.from_dict(self._parse(line)).proposal()
            except (KeyError, TypeError, ValueError):
                raise self._wrong_line() from None
            yield proposal, self._restore(proposal, line)

    def _restore(self, proposal: Proposal, line: bytes) -> Candidate:
        """The candidate of a line. Where the line begins as it would be written now, only the scores are parsed."""
        expected = Candidate.from_proposal(self.count, proposal, {})
        start = f"{expected.json_start()},".encode()
        is_same = line.startswith(start)
        record = self._parse(b"{" + line[len(start) :] if is_same else line)
        if not is_same and any(record.get(name) != value for name, value in expected.to_dict().items()):
            raise self._wrong_line()
        try:
            scores = recorded_scores(record)
            self.problem.point(scores)
        except (TypeError, ValueError, UserError):
            raise self._wrong_line() from None
        candidate = Candidate.from_proposal(self.count, proposal, scores)
        self.count += 1
        return candidate

    def _parse(self, line: bytes) -> dict[str, Any]:
        return parse_line(line, self.journal.path if self.journal else Path(), self.count + 2)

    def check_all_used(self) -> None:
        if next(self.lines, None) is not None:
            raise self._wrong_line()

    def _wrong_line(self) -> UserError:
        path = self.journal.path if self.journal else None
        return UserError(
            f"{path}, line {self.count + 2} is not what this search would have evaluated there: the space, the costs "
            "or nasformer itself has changed; use another --out folder"
        )
