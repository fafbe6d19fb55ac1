"""Problem: the space, the budget and the objectives of a search; its candidates, and models of results."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from random import Random
from statistics import fmean, stdev
from typing import Any

from nasformer.errors import UserError
from nasformer.search.pareto import Order, aggregate_ranks, pareto_front, sort_keys
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, Costs, sample_feasible
from nasformer.space.nodes import Node


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
        """The start of its JSON, before the scores, as a journal writes it.

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
    """Scores as Python numbers; None, NaN and the infinities become NaN."""
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
        keys = sort_keys([self.point(candidate.scores) for candidate in finite], self.order)
        keys = [(*key, *self.price(candidate), candidate.id) for key, candidate in zip(keys, finite, strict=True)]
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
        """Reads a model; texts among its numbers are skipped, candidates of a front have an id in place of a name."""
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
