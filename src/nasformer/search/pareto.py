"""Order by several objectives: Pareto fronts, crowding and ranks; and archives of the best candidates so far."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nasformer.search.problem import Candidate, Problem

Order = Literal["pareto", "ranks"]
"""What several objectives mean together (see `Problem`)."""

# Non-dominated sorting and crowding distance (NSGA-II), in plain Python.
#
# A point is a tuple of finite numbers, each of which should be large. Equal points do not dominate each other.

Point = Sequence[float]


def dominates(a: Point, b: Point) -> bool:
    """Whether `a` is nowhere worse than `b` and somewhere better.

    >>> dominates((2, 1), (1, 1)), dominates((2, 1), (1, 2)), dominates((1, 1), (1, 1))
    (True, False, False)
    """
    return all(x >= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def non_dominated_rank(points: Sequence[Point]) -> list[int]:
    """The front each point belongs to: 0 for the Pareto front, 1 for the front without that one, and so on.

    >>> non_dominated_rank([(1, 3), (3, 1), (1, 1), (0, 2), (0, 0)])
    [0, 0, 1, 1, 2]
    """
    ranks = [0] * len(points)
    fronts: list[list[Point]] = []
    for index in _best_first(points):
        point = points[index]
        # What a front dominates, every better front dominates too.
        ranks[index] = bisect_left(fronts, True, key=lambda front: not _dominated(point, front))
        if ranks[index] == len(fronts):
            fronts.append([])
        fronts[ranks[index]].append(point)
    return ranks


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Indices, ascending, of the points that no other point dominates.

    >>> pareto_front([(1, 3), (0, 0), (3, 1), (1, 3)])
    [0, 2, 3]
    """
    indices: list[int] = []
    front: list[Point] = []
    for index in _best_first(points):
        if not _dominated(points[index], front):
            indices.append(index)
            front.append(points[index])
    return sorted(indices)


def _best_first(points: Sequence[Point]) -> list[int]:
    """Indices in an order in which a point can be dominated only by points before it."""
    return sorted(range(len(points)), key=lambda index: tuple(points[index]), reverse=True)


def _dominated(point: Point, front: Sequence[Point]) -> bool:
    """Whether a front, filled best first, dominates a point that comes after its members."""
    # With two objectives the latest member is the best in the second one: if it does not dominate, none does.
    return any(dominates(other, point) for other in (front[-1:] if len(point) <= 2 else front))


def crowding_distance(points: Sequence[Point]) -> list[float]:
    """How far apart the neighbours of each point of one front are: infinity at the ends, 0 for repeats of a point.

    Neighbours are the next lower and next higher *different* value of each objective, so the order of the
    points does not matter; only among equal points does the first one keep the distance.

    >>> crowding_distance([(0, 4), (1, 2), (1, 2), (4, 0)])
    [inf, 2.0, 0.0, inf]
    """
    first = {tuple(point): index for index, point in reversed(list(enumerate(points)))}
    distances = [0.0] * len(points)
    if len(first) == 1:
        distances[0] = math.inf
        return distances
    for objective in range(len(points[0]) if points else 0):
        gaps = _gaps({point[objective] for point in first})
        for point, index in first.items():
            distances[index] += gaps[point[objective]]
    return distances


def _gaps(values: set[float]) -> dict[float, float]:
    """For each value the distance between its two neighbours, as a part of the whole range."""
    ordered = sorted(values)
    if len(ordered) == 1:  # an objective on which all agree says nothing about crowding
        return {ordered[0]: 0.0}
    gaps = dict.fromkeys(ordered, math.inf)
    spread = ordered[-1] - ordered[0]
    for (low, middle), (_, high) in pairwise(pairwise(ordered)):
        gaps[middle] = (high - low) / spread
    return gaps


# Several scores as one, by their ranks.


def aggregate_ranks(columns: Sequence[Sequence[float]]) -> list[float]:
    """Several scores as one (AZ-NAS): for each candidate, the sum over scores of log(rank / m).

    It is 0 for the best in everything, and a low rank in any score counts heavily. Ranks go from 1 (worst) to m (best),
    m is the number of candidates, and equal scores share their average rank. A candidate with a score that is not
    finite gets -inf and takes no part in the ranking of the others.

    >>> accuracy, speed = [0.7, 0.8, 0.9], [30.0, 20.0, 10.0]
    >>> [round(score, 3) for score in aggregate_ranks([accuracy, speed])]
    [-1.099, -0.811, -1.099]
    >>> aggregate_ranks([[1.0, 2.0, float("nan")]])[1:]
    [0.0, -inf]

    Args:
        columns: One sequence a proxy, with the scores of all candidates in the same order; larger is better.
    """
    candidates = list(zip(*columns, strict=True))
    valid = [index for index, scores in enumerate(candidates) if all(map(math.isfinite, scores))]
    totals = [-math.inf] * len(candidates)
    for index in valid:
        totals[index] = 0.0
    for column in columns:
        for index, rank in zip(valid, _average_ranks([column[index] for index in valid]), strict=True):
            totals[index] += math.log(rank / len(valid))
    return totals


def _average_ranks(scores: Sequence[float]) -> list[float]:
    """Ranks from 1 for the smallest value; equal ones share the average of their ranks."""
    ranks: dict[float, list[int]] = {}
    for rank, score in enumerate(sorted(scores), start=1):
        ranks.setdefault(score, []).append(rank)
    return [(ranks[score][0] + ranks[score][-1]) / 2 for score in scores]


def sort_keys(points: Sequence[tuple[float, ...]], order: Order) -> list[tuple[float, ...]]:
    """Sort keys, the best first."""
    if not points or len(points[0]) == 1:
        return [(-point[0],) for point in points]
    if order == "pareto":
        return _nsga2(points)
    return [(-rank,) for rank in aggregate_ranks(list(zip(*points, strict=True)))]


def _nsga2(points: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Sort keys: the better front first, within a front the larger crowding distance."""
    fronts: dict[int, list[int]] = {}
    for index, rank in enumerate(non_dominated_rank(points)):
        fronts.setdefault(rank, []).append(index)
    keys: list[tuple[float, ...]] = [()] * len(points)
    for rank, front in fronts.items():
        for index, distance in zip(front, crowding_distance([points[index] for index in front]), strict=True):
            keys[index] = (rank, -distance)
    return keys


# Archives: the best candidates so far, kept up to date one by one, from which an evolution breeds.
#
# Each gives the first candidates of `Problem.best_first` over everything it was given. Sorting all candidates anew for
# every generation would take longer and longer; with one objective or two, an archive's work does not grow.

Member = tuple[tuple[float, ...], int, "Candidate"]  # costs and id, by which equally good ones are sorted
Entry = tuple[float, tuple[float, ...], int, "Candidate"]  # the same after how bad it is

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
        """A stretch of a front behind a bound on its badness: that of its last x and its first y."""
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
