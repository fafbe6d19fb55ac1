"""Archives: the best candidates so far, kept up to date one by one, from which an evolution breeds.

Each gives the first candidates of `Problem.best_first` over everything it was given. Sorting all candidates anew for
every generation would take longer and longer; with one objective or two, an archive's work does not grow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest

from nasformer.search.problem import Candidate, Problem

Member = tuple[tuple[float, ...], int, Candidate]  # costs and id, by which equally good ones are sorted
Entry = tuple[float, tuple[float, ...], int, Candidate]  # the same after how bad it is

ROUNDING = 1e-9  # more than a sum of logarithms can be off


class Archive(ABC):
    """The best `count` of the candidates it was given."""

    def __init__(self, problem: Problem, count: int) -> None:
        self.problem, self.count = problem, count

    def add(self, candidate: Candidate) -> None:
        """Takes a candidate, unless an objective is not finite. They come in the order of their ids."""
        point = self.problem.point(candidate.scores)
        if all(map(math.isfinite, point)):
            self._add(point, (self.problem.price(candidate), candidate.id, candidate))

    @abstractmethod
    def _add(self, point: tuple[float, ...], member: Member) -> None: ...

    @abstractmethod
    def best(self) -> list[Candidate]:
        """The best candidates, the best one first."""


def make_archive(problem: Problem, count: int) -> Archive:
    """The fastest archive for the objectives of a problem."""
    if len(problem.objectives) == 1:
        return TopArchive(problem, count)
    if len(problem.objectives) == 2:
        return ParetoArchive(problem, count) if problem.order == "pareto" else RankArchive(problem, count)
    return FullArchive(problem, count)


class FullArchive(Archive):
    """Keeps everything and sorts it on demand: for three objectives and more."""

    def __init__(self, problem: Problem, count: int) -> None:
        super().__init__(problem, count)
        self.candidates: list[Candidate] = []

    def _add(self, point: tuple[float, ...], member: Member) -> None:
        self.candidates.append(member[-1])

    def best(self) -> list[Candidate]:
        return self.problem.best_first(self.candidates)[: self.count]


class TopArchive(Archive):
    """A sorted list of the best: for one objective."""

    def __init__(self, problem: Problem, count: int) -> None:
        super().__init__(problem, count)
        self.entries: list[Entry] = []

    def _add(self, point: tuple[float, ...], member: Member) -> None:
        insort(self.entries, (-point[0], *member))
        del self.entries[self.count :]

    def best(self) -> list[Candidate]:
        return [entry[-1] for entry in self.entries]


class ParetoArchive(Archive):
    """The first fronts of NSGA-II's order: for two objectives.

    A new candidate only ever pushes others to worse fronts, and every front has a member. So what lies beyond the
    first `count` fronts can never be among the best `count` again, and is dropped.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        super().__init__(problem, count)
        self.fronts: list[Front] = []

    def _add(self, point: tuple[float, ...], member: Member) -> None:
        x, y = point
        rank = bisect_left(self.fronts, True, key=lambda front: not front.dominates(x, y))
        if rank < len(self.fronts) and self.fronts[rank].join(x, y, member):
            return
        ties = [Tie(x, y, [member])]
        while ties and rank < self.count:
            if rank == len(self.fronts):
                self.fronts.append(Front())
            ties = self.fronts[rank].insert(ties)
            rank += 1

    def best(self) -> list[Candidate]:
        entries: list[Entry] = []
        for front in self.fronts:
            if len(entries) < self.count:
                entries += front.best(self.count - len(entries))
        return [candidate for *_, candidate in entries]


class RankArchive(ParetoArchive):
    """The order by aggregated ranks: for two objectives.

    Whoever dominates a candidate has the better ranks, so that the best `count` are in the first `count` fronts.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        super().__init__(problem, count)
        self.columns: tuple[list[float], list[float]] = ([], [])  # all values of the two objectives, sorted

    def _add(self, point: tuple[float, ...], member: Member) -> None:
        super()._add(point, member)
        for column, value in zip(self.columns, point, strict=True):
            insort(column, value)

    def best(self) -> list[Candidate]:
        """Halves the most promising stretch of a front until it is a single point, as often as it takes."""
        heap = [self._stretch(rank, 0, len(front.ties)) for rank, front in enumerate(self.fronts)]
        heapify(heap)
        entries: list[Entry] = []
        worst = -math.inf
        while heap and (len(entries) < self.count or heap[0][0] <= worst):
            _, rank, start, end = heappop(heap)
            if end - start == 1:
                tie = self.fronts[rank].ties[start]
                badness = self._badness(tie.x, tie.y)
                entries += [(badness, *member) for member in tie.members]
                worst = max(worst, badness)
            else:
                middle = (start + end) // 2
                heappush(heap, self._stretch(rank, start, middle))
                heappush(heap, self._stretch(rank, middle, end))
        return [candidate for *_, candidate in nsmallest(self.count, entries)]

    def _stretch(self, rank: int, start: int, end: int) -> tuple[float, int, int, int]:
        """Neighbouring points of a front, after a bound on how good they are: its last in x and its first in y."""
        ties = self.fronts[rank].ties
        return self._badness(ties[end - 1].x, ties[start].y) - ROUNDING, rank, start, end

    def _badness(self, x: float, y: float) -> float:
        """The negative of what `aggregate_ranks` gives, where equal values share their average rank."""
        total = 0.0
        for column, value in zip(self.columns, (x, y), strict=True):
            rank = (bisect_left(column, value) + 1 + bisect_right(column, value)) / 2
            total += math.log(rank / len(column))
        return -total


@dataclass(slots=True)
class Tie:
    """Candidates with the same point, the oldest first."""

    x: float
    y: float
    members: list[Member]


class Front:
    """One front of points with two objectives: the higher the first one, the lower the second.

    `order` has all members by falling crowding distance. It is made when it is first asked for; from then on a new
    point changes just the entries of its neighbours, unless it is a new end, by which all distances are scaled.
    """

    def __init__(self) -> None:
        self.ties: list[Tie] = []  # by rising x
        self.order: list[Entry] | None = None

    def dominates(self, x: float, y: float) -> bool:
        index = bisect_left(self.ties, x, key=_x)  # of all that are as good in x, this one has the highest y
        if index == len(self.ties):
            return False
        other = self.ties[index]
        return other.y >= y and (other.x, other.y) != (x, y)

    def join(self, x: float, y: float, member: Member) -> bool:
        """Adds a candidate to those with the same point, if there are any."""
        index = bisect_left(self.ties, x, key=_x)
        if index == len(self.ties) or (self.ties[index].x, self.ties[index].y) != (x, y):
            return False
        self.ties[index].members.append(member)
        if self.order is not None:
            insort(self.order, (0.0, *member))
        return True

    def insert(self, ties: list[Tie]) -> list[Tie]:
        """Puts neighbouring points into the front, which dominates none of them; returns those that they dominate."""
        start = bisect_left(self.ties, -ties[0].y, key=lambda tie: -tie.y)
        end = bisect_right(self.ties, ties[-1].x, key=_x)
        if start == 0 or end == len(self.ties):
            self.order = None
        self._remove_entries(start - 1, end + 1)
        dominated, self.ties[start:end] = self.ties[start:end], ties
        self._insert_entries(start - 1, start + len(ties) + 1)
        return dominated

    def best(self, count: int) -> list[Entry]:
        """The members with the largest crowding distance; of equal ones the cheaper, then the older."""
        if self.order is None:
            self.order = sorted(entry for index in range(len(self.ties)) for entry in self._entries(index))
        return self.order[:count]

    def _remove_entries(self, start: int, end: int) -> None:
        if self.order is not None:
            for entry in [entry for index in range(start, end) for entry in self._entries(index)]:
                del self.order[bisect_left(self.order, entry)]

    def _insert_entries(self, start: int, end: int) -> None:
        if self.order is not None:
            for entry in [entry for index in range(start, end) for entry in self._entries(index)]:
                insort(self.order, entry)

    def _entries(self, index: int) -> Iterator[Entry]:
        """The members of a tie as they stand in the order; the oldest has the distance, the others none."""
        first, *others = self.ties[index].members
        yield -self._distance(index), *first
        for member in others:
            yield 0.0, *member

    def _distance(self, index: int) -> float:
        """The `crowding_distance` of a point."""
        if index in (0, len(self.ties) - 1):
            return math.inf
        low, high, first, last = self.ties[index - 1], self.ties[index + 1], self.ties[0], self.ties[-1]
        return (high.x - low.x) / (last.x - first.x) + (low.y - high.y) / (first.y - last.y)


def _x(tie: Tie) -> float:
    return tie.x
