"""What a search is asked to solve: where to look, within which budget, and what counts as better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from nasformer.errors import UserError
from nasformer.search.aggregate import aggregate_ranks
from nasformer.search.budget import Budget
from nasformer.search.candidate import Candidate
from nasformer.search.pareto import crowding_distance, non_dominated_rank, pareto_front
from nasformer.space import Arch, Node, sample_feasible
from nasformer.space.feasible import Costs

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
