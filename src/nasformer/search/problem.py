"""What a search is asked to solve: where to look, within which budget, and what counts as better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from random import Random
from typing import Any, Literal

from nasformer.errors import UserError
from nasformer.search.budget import Budget
from nasformer.search.pareto import crowding_distance, non_dominated_rank, pareto_front
from nasformer.space.arch import Arch
from nasformer.space.feasible import Costs, sample_feasible
from nasformer.space.node import Node

# ----------------------------------------------------------------------------------------------------------------------
# The two records of a search: what a strategy proposes, and what became of it.
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposal:
    """An architecture that a strategy wants judged; `parents` are ids of the candidates it descends from."""

    arch: Arch
    origin: str
    generation: int = 0
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A judged architecture; `scores` holds its costs and what the evaluation said, by name.

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
    def judged(cls, id: int, proposal: Proposal, scores: Mapping[str, float]) -> Candidate:
        return cls(id, proposal.generation, proposal.origin, proposal.parents, proposal.arch, scores)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no word for infinity and NaN: such scores become None."""
        scores = {name: value if math.isfinite(value) else None for name, value in self.scores.items()}
        head = {"id": self.id, "generation": self.generation, "origin": self.origin}
        return {**head, "parents": list(self.parents), "arch": self.arch.to_dict(), **scores}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Candidate:
        scores = dict(record)
        head = {name: scores.pop(name) for name in ("id", "generation", "origin")}
        parents, arch = tuple(scores.pop("parents")), Arch.from_dict(scores.pop("arch"))
        return cls(**head, parents=parents, arch=arch, scores=plain_scores(scores))


RESERVED = frozenset({"id", "generation", "origin", "parents", "arch"})


def plain_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Scores as Python numbers, whatever the evaluation returned; None, NaN and the infinities become NaN."""
    if clash := RESERVED & scores.keys():
        raise ValueError(f"a score cannot be named {min(clash)!r}, that is a field of the candidate")
    return {name: _number(value) for name, value in scores.items()}


def _number(value: Any) -> float:
    if isinstance(value, Integral):
        return int(value)
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


# ----------------------------------------------------------------------------------------------------------------------
# Several scores made one: candidates are ranked by each, and a low rank in any of them counts heavily (AZ-NAS).
# ----------------------------------------------------------------------------------------------------------------------


def aggregate_ranks(columns: Sequence[Sequence[float]]) -> list[float]:
    """For each candidate, the sum over scores of log(rank / m): 0 for the best in everything, lower for others.

    Ranks go from 1 (worst) to m (best), m is the number of candidates, and equal scores share their average rank.
    A candidate with a score that is not finite gets -inf and takes no part in the ranking of the others.

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
        for index, rank in zip(valid, _ranks([column[index] for index in valid]), strict=True):
            totals[index] += math.log(rank / len(valid))
    return totals


def _ranks(scores: Sequence[float]) -> list[float]:
    """From 1 for the smallest; equal ones share the average of their places."""
    places: dict[float, list[int]] = {}
    for place, score in enumerate(sorted(scores), start=1):
        places.setdefault(score, []).append(place)
    return [sum(places[score]) / len(places[score]) for score in scores]


Order = Literal["pareto", "ranks"]


@dataclass(frozen=True)
class Problem:
    """The task that all strategies share.

    `objectives` names scores to raise or, with a leading minus, to lower: `("accuracy", "-params")`. With several,
    `order` says what is better: "pareto" goes by front and then by the room around a candidate, as NSGA-II does;
    "ranks" sums up the logarithms of the ranks among all candidates, as AZ-NAS does, and so asks for one winner that
    is good by every measure.
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
        """A generator of its own for every purpose, the same in every process."""
        return Random(f"{self.seed} {label}")

    def sample(self, rng: Random) -> Arch:
        """A random architecture within the budget."""
        return sample_feasible(self.node, rng, self.costs, self.budget.windows())

    def fits(self, arch: Arch) -> bool:
        return self.budget.fits(self.costs(arch))

    def point(self, scores: Mapping[str, float]) -> tuple[float, ...]:
        """The values of the objectives, turned so that larger is better."""
        point = []
        for objective in self.objectives:
            name = objective.removeprefix("-")
            if name not in scores:
                raise UserError(f"objective {name!r} is not among the scores: {', '.join(scores)}")
            point.append(scores[name] if name == objective else -scores[name])
        return tuple(point)

    def sound(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose objectives are all finite; no other may breed or win."""
        return [one for one in candidates if all(map(math.isfinite, self.point(one.scores)))]

    def best_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The sound candidates, best first; of equal ones the cheaper, then the older."""
        sound = self.sound(candidates)
        points = [self.point(one.scores) for one in sound]
        badness = _badness(points, self.order)
        keys = [(bad, self._price(one), one.id) for bad, one in zip(badness, sound, strict=True)]
        return [sound[index] for index in sorted(range(len(sound)), key=keys.__getitem__)]

    def winner(self, candidates: Sequence[Candidate]) -> Candidate:
        """The best by the first objective, or by all ranks together."""
        sound = self.sound(candidates)
        if not sound:
            wanted = ", ".join(self.objectives)
            raise UserError(f"no candidate has a finite score ({wanted}); look for NaN in the evaluation")
        return self.ranked(sound)[0]

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The sound candidates as they would win: by the first objective, or by all ranks together."""
        deciding = self.objectives if self.order == "ranks" else self.objectives[:1]
        return replace(self, objectives=deciding).best_first(candidates)

    def front(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The sound candidates that no other dominates, cheapest first.

        A single objective is weighed against the first cost, as in a plot of accuracy over parameters; so are
        several that go by their ranks, as one.
        """
        if self.order == "ranks" and len(self.objectives) > 1:
            return self._front_of_ranks(self.sound(candidates))
        if len(self.objectives) == 1 and candidates:
            costs = (f"-{name}" for name in self.costs(candidates[0].arch))
            both = (*self.objectives, next(costs, self.objectives[0]))
            return replace(self, objectives=both, order="pareto").front(candidates)
        sound = self.sound(candidates)
        best = [sound[index] for index in pareto_front([self.point(one.scores) for one in sound])]
        return sorted(best, key=lambda one: (self._price(one), one.id))

    def _front_of_ranks(self, sound: Sequence[Candidate]) -> list[Candidate]:
        together = aggregate_ranks(list(zip(*(self.point(one.scores) for one in sound), strict=True)))
        points = [(rank, *(-cost for cost in self._price(one)[:1])) for rank, one in zip(together, sound, strict=True)]
        return sorted((sound[index] for index in pareto_front(points)), key=lambda one: (self._price(one), one.id))

    def _price(self, candidate: Candidate) -> tuple[float, ...]:
        return tuple(self.costs(candidate.arch).values())


def _badness(points: Sequence[tuple[float, ...]], order: Order) -> list[tuple[float, ...]]:
    """Sort keys, the best first."""
    if not points or len(points[0]) == 1:
        return [(-point[0],) for point in points]
    if order == "pareto":
        return _nsga2(points)
    return [(-rank,) for rank in aggregate_ranks(list(zip(*points, strict=True)))]


def _nsga2(points: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Sort keys: the better front first, within a front the points with more room around them."""
    ranks = non_dominated_rank(points)
    keys: list[tuple[float, ...]] = [()] * len(points)
    for rank in set(ranks):
        front = [index for index, its in enumerate(ranks) if its == rank]
        for index, room in zip(front, crowding_distance([points[index] for index in front]), strict=True):
            keys[index] = (rank, -room)
    return keys
