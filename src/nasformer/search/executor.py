"""Executors: where the archs that a strategy asks for are evaluated. Results come in the order asked, wherever that is.

`InProcess` is the default. `Chunks` sends them to a pool of workers (see `runs/ray_pool.py`) in chunks of a fixed size,
so that scores do not depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from nasformer.errors import UserError
from nasformer.space.arch import Arch

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

    def evaluate(self, archs: Sequence[Arch], known: int = 0) -> Iterator[Sequence[Outcome]]:
        """The scores of all archs but the first `known`, which the journal has; in order, as they come."""


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

    def evaluate(self, archs: Sequence[Arch], known: int = 0) -> Iterator[Sequence[Outcome]]:
        if known == len(archs):
            return
        if isinstance(self.scores_of, EvaluateMany):
            # All of them again, so that the scores do not depend on where a search was killed.
            scores = self.scores_of.many(archs)
            yield [each for _, each in zip(archs, scores, strict=True)][known:]
        else:
            yield from ([self.scores_of(arch)] for arch in archs[known:])

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

    def evaluate(self, archs: Sequence[Arch], known: int = 0) -> Iterator[Sequence[Outcome]]:
        first = known // self.size * self.size
        chunks = [archs[start : start + self.size] for start in range(first, len(archs), self.size)]
        outcomes = self.pool.map(chunks) if self.size == 1 else iter(self._one_by_one(chunks))
        skip = known - first
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
