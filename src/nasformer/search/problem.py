"""Problem: which architectures are searched, within which budget, and what counts as better."""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from random import Random
from statistics import fmean, stdev
from typing import Any, Literal

from nasformer.errors import UserError
from nasformer.search.budget import Budget
from nasformer.space.arch import Arch
from nasformer.space.feasible import Costs, sample_feasible
from nasformer.space.node import Node

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


@dataclass(frozen=True, slots=True)
class Proposal:
    """An architecture that a strategy wants evaluated; `parents` are ids of the candidates it descends from."""

    arch: Arch
    origin: str
    generation: int = 0
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An evaluated architecture; `scores` has its costs and the scores of the evaluation, by name.

    >>> candidate = Candidate(7, 1, "mutation", (3,), Arch(depth=12), {"params": 500, "accuracy": 0.75})
    >>> list(candidate.to_dict())
    ['id', 'generation', 'origin', 'parents', 'arch', 'params', 'accuracy']
    >>> Candidate.from_dict(candidate.to_dict()) == candidate
    True
    """

    id: int
    generation: int
    origin: str
    parents: tuple[int, ...]
    arch: Arch
    scores: Mapping[str, float] = field(hash=False)

    @classmethod
    def from_proposal(cls, id: int, proposal: Proposal, scores: Mapping[str, float]) -> Candidate:
        return cls(id, proposal.generation, proposal.origin, proposal.parents, proposal.arch, scores)

    def get(self, score: str) -> float:
        """A cost or score; NaN where there is none."""
        return self.scores.get(score, math.nan)

    def proposal(self) -> Proposal:
        return Proposal(self.arch, self.origin, self.generation, self.parents)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no infinity and no NaN: such scores become None."""
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        head = {"id": self.id, "generation": self.generation, "origin": self.origin}
        return {**head, "parents": list(self.parents), "arch": self.arch.to_dict(), **scores}

    def json_start(self) -> str:
        """What JSON has of it before the scores, as a journal writes it.

        >>> Candidate(7, 1, "mutation", (3,), Arch(depth=12), {}).json_start()
        '{"id":7,"generation":1,"origin":"mutation","parents":[3],"arch":{"depth":12}'
        """
        origin, parents = json.dumps(self.origin), ",".join(map(str, self.parents))
        head = f'"id":{self.id},"generation":{self.generation},"origin":{origin},"parents":[{parents}]'
        return f'{{{head},"arch":{self.arch.to_json()}'

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Candidate:
        """Reads a candidate; KeyError, TypeError or ValueError for anything else."""
        id, generation, origin, parents = (record[name] for name in ("id", "generation", "origin", "parents"))
        if not isinstance(parents, list) or any(type(number) is not int for number in (id, generation, *parents)):
            raise ValueError("id, generation and parents are no integers")
        if not isinstance(origin, str):
            raise ValueError("origin is no text")
        if not isinstance(record["arch"], dict):
            raise ValueError("arch is no object")
        return cls(
            id, generation, sys.intern(origin), tuple(parents), Arch.from_plain(record["arch"]), recorded_scores(record)
        )


RESERVED = frozenset({"id", "generation", "origin", "parents", "arch"})
_IN_JSON = frozenset({int, float, type(None)})


def shown_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Costs and scores, without what relative positions cost."""
    return {name: value for name, value in scores.items() if not name.startswith("position_")}


def recorded_scores(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores in the record of a candidate; TypeError or ValueError for what is no number."""
    scores = {name: value for name, value in record.items() if name not in RESERVED}
    if not _IN_JSON.issuperset(map(type, scores.values())):
        raise ValueError("a score is no number")
    return {sys.intern(name): _number(value) for name, value in scores.items()}  # a name for each line would be 30 MB


def plain_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Scores as Python numbers, whatever the evaluation returned; None, NaN and the infinities become NaN."""
    if clash := RESERVED & scores.keys():
        raise ValueError(f"a score cannot be named {min(clash)!r}, that is a field of the candidate")
    return {name: _number(value) for name, value in scores.items()}


def _number(value: Any) -> float:
    if type(value) is float:  # most are, and asking for Integral takes its time
        return value if math.isfinite(value) else math.nan
    if type(value) is int:
        return value
    if isinstance(value, Integral):
        return int(value)
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


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


Order = Literal["pareto", "ranks"]


@dataclass(frozen=True)
class Problem:
    """The task that all strategies share.

    `objectives` names scores to raise or, with a leading minus, to lower: `("accuracy", "-params")`. With several,
    `order` says what is better: "pareto" goes by front and then by crowding distance, as NSGA-II does; "ranks" sums up
    the logarithms of the ranks among all candidates, as AZ-NAS does, and so asks for one winner that is good by every
    measure.
    """

    node: Node
    costs: Costs
    budget: Budget = Budget()  # noqa: RUF009 - frozen
    objectives: tuple[str, ...] = ("accuracy",)
    seed: int = 0
    order: Order = "pareto"

    def __post_init__(self) -> None:
        if not self.objectives:
            raise UserError("a search needs at least one objective, such as accuracy")

    def rng(self, label: str) -> Random:
        """A random generator for one purpose, the same in every process."""
        return Random(f"{self.seed} {label}")

    def sample(self, rng: Random) -> Arch:
        """A random architecture within the budget."""
        return sample_feasible(self.node, rng, self.costs, self.budget.windows())

    def fits(self, arch: Arch) -> bool:
        return self.budget.fits(self.costs(arch))

    def point(self, scores: Mapping[str, float]) -> tuple[float, ...]:
        """The values of the objectives, negated where lower is better."""
        try:
            return tuple([-scores[name] if lower else scores[name] for name, lower in self._terms])
        except KeyError as error:
            raise UserError(f"objective {error} is not among the scores: {', '.join(scores)}") from None

    @cached_property
    def _terms(self) -> list[tuple[str, bool]]:
        """The names of the objectives, and whether lower is better."""
        return [(objective.removeprefix("-"), objective.startswith("-")) for objective in self.objectives]

    def finite(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose objectives are all finite; no other may breed or win."""
        return [candidate for candidate in candidates if all(map(math.isfinite, self.point(candidate.scores)))]

    def best_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The finite candidates, best first; of equal ones the cheaper, then the older."""
        finite = self.finite(candidates)
        badness = _badness([self.point(candidate.scores) for candidate in finite], self.order)
        keys = [(*bad, *self.price(candidate), candidate.id) for bad, candidate in zip(badness, finite, strict=True)]
        return [finite[index] for index in sorted(range(len(finite)), key=keys.__getitem__)]

    def winner(self, candidates: Sequence[Candidate]) -> Candidate:
        """The best by the first objective, or by all ranks together."""
        ranked = self.ranked(self.finite(candidates))
        if not ranked:
            wanted = ", ".join(self.objectives)
            raise UserError(
                f"no candidate has a finite score ({wanted}): all {len(candidates)} evaluations gave NaN, infinity or "
                "None; evaluate one architecture by hand to see why"
            )
        return ranked[0]

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The finite candidates in the order of winning: by the first objective, or by all ranks together."""
        deciding = self.objectives if self.order == "ranks" else self.objectives[:1]
        return replace(self, objectives=deciding).best_first(candidates)

    def front(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The finite candidates that no other dominates, cheapest first.

        A single objective is weighed against the first cost, as in a plot of accuracy over parameters; so are
        several that go by their ranks, as one.
        """
        finite = self.finite(candidates)
        front = [finite[index] for index in pareto_front(self._front_points(finite))]
        return sorted(front, key=lambda candidate: (self.price(candidate), candidate.id))

    def _front_points(self, finite: Sequence[Candidate]) -> list[tuple[float, ...]]:
        points = [self.point(candidate.scores) for candidate in finite]
        if len(self.objectives) > 1 and self.order == "pareto":
            return points
        if len(self.objectives) > 1:
            points = [(rank,) for rank in aggregate_ranks(list(zip(*points, strict=True)))]
        return [
            (*point, *(-cost for cost in self.price(candidate)[:1]))
            for point, candidate in zip(points, finite, strict=True)
        ]

    def price(self, candidate: Candidate) -> tuple[float, ...]:
        """The costs of a candidate; a search has put them among its scores."""
        try:
            return tuple([candidate.scores[name] for name in self._cost_names])
        except KeyError:
            return tuple(self.costs(candidate.arch).values())

    @cached_property
    def _cost_names(self) -> tuple[str, ...]:
        return tuple(self.costs(self.node.smallest()))


def _badness(points: Sequence[tuple[float, ...]], order: Order) -> list[tuple[float, ...]]:
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


# A model in the results of a run: its name, architecture and numbers.

NOT_SCORES = frozenset({"name", "arch", "id", "generation", "origin", "parents"})


@dataclass(frozen=True)
class ModelResult:
    """A model of the results: its architecture, and its costs and scores by name (NaN where unknown).

    >>> model = ModelResult("winner", {"depth": 12}, {"params": 500, "test_accuracy": 0.75})
    >>> model.to_dict()
    {'name': 'winner', 'arch': {'depth': 12}, 'params': 500, 'test_accuracy': 0.75}
    """

    name: str
    arch: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, score: str) -> float:
        return self.scores[score]

    def get(self, score: str) -> float:
        """A cost or score; NaN where the run did not find it."""
        return self.scores.get(score, math.nan)

    def with_scores(self, scores: Mapping[str, float]) -> ModelResult:
        return replace(self, scores={**self.scores, **scores})

    def to_dict(self) -> dict[str, Any]:
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        return {"name": self.name, "arch": self.arch, **scores}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> ModelResult:
        """Reads a model; texts among its numbers are let be, candidates of a front have an id in place of a name."""
        if not isinstance(arch := {} if entry.get("arch") is None else entry["arch"], dict):
            raise ValueError("arch is not an object")
        numbers = {key: value for key, value in entry.items() if key not in NOT_SCORES and is_number(key, value)}
        name = entry.get("name") or (f"#{entry['id']}" if "id" in entry else "model")
        return cls(str(name), arch, plain_scores(numbers))


def is_number(name: str, value: Any) -> bool:
    if isinstance(value, int | float | None) and not isinstance(value, bool):
        return True
    if name in ("params", "macs") or "accuracy" in name:
        raise ValueError(f"{name} is {value!r}, expected a number")
    return False


@dataclass(frozen=True)
class MeanScore:
    """The mean of a score over models, and the standard error of that mean (NaN for fewer than two models).

    >>> models = [ModelResult("random", scores={"accuracy": value}) for value in (0.75, 0.5, 0.25)]
    >>> found = MeanScore.of(models, "accuracy")
    >>> found.mean, round(found.error, 3), found.count
    (0.5, 0.144, 3)
    """

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, models: Sequence[ModelResult], score: str) -> MeanScore:
        """The mean over the models that have the score."""
        values = [value for model in models if math.isfinite(value := model.get(score))]
        count = len(values)
        error = stdev(values) / math.sqrt(count) if count > 1 else math.nan
        return cls(fmean(values) if values else math.nan, error, count)
