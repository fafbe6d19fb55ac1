"""The contents of a run folder, read and checked once, for reports and comparisons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest
from html import escape
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from nasformer.errors import UserError
from nasformer.latency.search import LatencyResult
from nasformer.models.base import options_from_json
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.models.storage import CONFIG as MODEL_CONFIG
from nasformer.results.folder import RunFolder
from nasformer.results.result import Diagnosis, RunResult, Snapshot
from nasformer.search.journal import JournalSettings, read_candidates
from nasformer.search.problem import Candidate, ModelResult
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Window
from nasformer.space.nodes import corners
from nasformer.train.log import LogLine, TrainLog, is_rollback, is_snapshot
from nasformer.utils.files import parse_json, read_json
from nasformer.utils.schema import REMEDY, from_json
from nasformer.utils.units import parse_quantity

Limits = Mapping[str, tuple[float | None, float | None]]
DRAWS, TRIES = 200, 1000  # of random members of a space
BATCHES = 20  # of a search without generations
MOST, BEST = 2_000, 100  # candidates that are drawn of a long search: at random, and by score


@dataclass(frozen=True)
class RunContents:
    """The contents of a run folder; what is missing is empty or None.

    Args:
        config: The options of the command.
        log: The training, by step.
        settings: Those of the search.
        candidates: All that the search judged.
        limits: The budget: name of a cost -> (lowest, highest).
        snapshots: The accuracies of the supernet's fixed subnets over its training.
        alarms: What `nasformer doctor` found wrong, in words.
        random_search: The candidates of a random search alongside, where there was one.
        baselines: The logs of models that were trained alongside, by name.
        incidents: How often workers were lost, tasks failed and so on, where the search had workers.
    """

    folder: RunFolder
    config: Mapping[str, Any]
    log: list[LogLine] = field(default_factory=list)
    settings: JournalSettings = field(default_factory=JournalSettings)
    candidates: list[Candidate] = field(default_factory=list)
    result: RunResult | None = None
    limits: Limits = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    random_search: list[Candidate] = field(default_factory=list)
    baselines: dict[str, list[LogLine]] = field(default_factory=dict)
    incidents: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_search(cls, search: SearchResult) -> RunContents:
        """The contents of a search without a folder, such as one in a notebook."""
        problem = search.problem
        settings = JournalSettings(list(problem.objectives), problem.order) if problem else JournalSettings()
        winner = ModelResult("winner", search.best.arch.to_dict(), dict(search.best.scores))
        return cls(
            RunFolder(""),
            {},
            settings=settings,
            candidates=search.candidates,
            result=RunResult("", None, winner, front=search.front),
            limits=problem.budget.limits() if problem else {},
        )

    def __repr__(self) -> str:
        result = f", {self.result!r}" if self.result else ""
        return f"RunContents({str(self.folder)!r}, {len(self.candidates):,} candidates{result})"

    def _repr_html_(self) -> str:
        """The models of the result, for notebooks."""
        return self.result._repr_html_() if self.result else f"<div>{escape(repr(self))}</div>"

    @property
    def models(self) -> list[ModelResult]:
        """The winner first, then the references."""
        return self.result.models if self.result else []

    @property
    def winner(self) -> ModelResult | None:
        """The winner with the weights by which it was chosen."""
        return self.result.winner if self.result else None

    @property
    def shipped(self) -> ModelResult | None:
        """The winner with its final weights."""
        return self.result.shipped if self.result else None

    @property
    def inherits(self) -> bool:
        """Whether the winner has the weights of the supernet, without a training of its own."""
        return self.result is not None and self.result.health is not None and self.result.finished is None

    def name_of(self, model: ModelResult) -> str:
        """The name of a model in tables, inherited weights marked where others were trained on their own."""
        return self.result.label(model) if self.result else model.name

    @property
    def front(self) -> list[ModelResult]:
        """The Pareto front of the search, its models named by the number of the candidate."""
        front = (self.result.front if self.result else None) or []
        return [ModelResult(f"#{member.id}", member.arch.to_dict(), dict(member.scores)) for member in front]

    @property
    def sizes(self) -> list[ModelResult]:
        """Further nets of the front that the run ships."""
        return (self.result.sizes if self.result else None) or []

    @property
    def timing(self) -> str:
        """How latencies of the result were measured."""
        return (self.result.timing if self.result else None) or ""

    @property
    def timm(self) -> list[ModelResult]:
        return (self.result.timm if self.result else None) or []

    @property
    def latency(self) -> LatencyResult | None:
        return self.result.latency if self.result else None

    @property
    def proxies(self) -> list[str]:
        """The scores of untrained models, in a search without training."""
        return (self.result.proxies if self.result else None) or []

    @property
    def budget(self) -> str:
        return (self.result.budget if self.result else None) or ""

    @property
    def note(self) -> str:
        return (self.result.note if self.result else None) or ""

    @cached_property
    def score(self) -> str:
        """The score that the search raised; of several, the first. Accuracy where there is one."""
        if any("accuracy" in candidate.scores for candidate in self.candidates[:1]):
            return "accuracy"
        return next(iter(self.settings.raised), "accuracy")

    @property
    def metric(self) -> str:
        """The metric of its models on held-out and test images, such as accuracy or miou."""
        return self.result.metric if self.result else self.score

    @property
    def ranked(self) -> list[str]:
        """The names of the scores whose ranks the search added up; empty for other searches."""
        names = self.settings.raised if self.settings.order == "ranks" else []
        return names if len(names) > 1 else []

    @property
    def raised(self) -> list[str]:
        """The scores that the search raised, without accuracy, which models have under other names."""
        return [name for name in self.ranked or [self.score] if name != "accuracy"]

    def references(self, name: str) -> list[ModelResult]:
        """The references of that kind: `random` stands for `random`, `random 2`, `random-3` ..."""
        return [model for model in self.models[1:] if model.name.lower().startswith(name)]

    @cached_property
    def judged(self) -> list[Candidate]:
        """The candidates that have a score, in the order of the search."""
        score = self.score
        return [candidate for candidate in self.candidates if math.isfinite(candidate.get(score))]

    @cached_property
    def plotted_costs(self) -> list[str]:
        """The costs with a limit; parameters where none has one."""
        costs = list(self.limits or ["params"])
        return [cost for cost in costs if any(math.isfinite(candidate.get(cost)) for candidate in self.judged)]

    @cached_property
    def drawn(self) -> list[Candidate]:
        """The candidates to draw: all of a short search; of a long one its fronts, the best, a sample of the others."""
        judged, score = self.judged, self.score
        if len(judged) <= MOST:
            return judged
        kept = {candidate.id for cost in self.plotted_costs for candidate in front(judged, cost, score)}
        kept |= {candidate.id for candidate in nlargest(BEST, judged, key=lambda candidate: candidate.scores[score])}
        others = [candidate for candidate in judged if candidate.id not in kept]
        kept |= {candidate.id for candidate in thinned(others, MOST)}
        return [candidate for candidate in judged if candidate.id in kept]

    def score_of(self, model: ModelResult) -> float:
        """A model's score, comparable with that of the candidates; NaN where unknown."""
        if not math.isnan(held_out := model.get(f"holdout_{self.score}")):
            return held_out
        if self.score in model.scores:
            return model[self.score]
        arch = Arch.from_dict(model.arch).to_json()
        same = (candidate.get(self.score) for candidate in self.candidates if candidate.arch.to_json() == arch)
        return next(same, math.nan)

    @property
    def model_options(self) -> Mapping[str, Any]:
        """The options of the model that the run ships, such as its image size; else those of the search."""
        path, space = self.folder.model / MODEL_CONFIG, self.space()
        if path.exists():
            return dict(read_json(path).get("options") or {})
        return space.full_options if space else self.settings.model_options

    def space(self) -> Space | None:
        """The space of the run; None for one of another version, or of a plugin that is not loaded."""
        try:
            return get_space(str(self.config.get("space")), **options_from_json(self.settings.model_options))
        except UserError:
            return None

    def extremes(self) -> list[Arch]:
        """The smallest and the largest member of the run's space, for every option of a OneOf; none if unknown."""
        space = self.space()
        if space is None:
            return []
        return [member for corner in corners(space.root) for member in (space.root.smallest(corner), corner)]

    def random_members(self) -> list[Arch]:
        """Random archs of the run's space within its budget, always the same; few where the budget is very narrow.

        Plain samples only: archs that are adjusted to fit a budget are not a fair sample of it.
        """
        space, rng = self.space(), Random(0)
        if space is None:
            return []
        drawn = (space.root.sample(rng) for _ in range(TRIES))
        return list(islice((arch for arch in drawn if self.fits(space, arch)), DRAWS))

    def fits(self, space: Space, arch: Arch) -> bool:
        """Whether an arch keeps the limits on what can be counted; latency, for one, would have to be measured."""
        costs = space.costs(arch) if self.limits else {}
        return all(Window(name, *ends).excess(costs) == 0 for name, ends in self.limits.items() if name in costs)

    def generations(self) -> tuple[list[tuple[int, list[Candidate]]], str]:
        """Candidates by generation, or in batches where the search has none; and the unit of the numbers."""
        numbers, unit = [candidate.generation for candidate in self.candidates], "generation"
        if len(set(numbers)) == 1 and len(numbers) > 1:
            size, unit = -(-len(numbers) // BATCHES), "candidates judged"
            numbers = [min(len(numbers), size * (index // size + 1)) for index in range(len(numbers))]
        groups: dict[int, list[Candidate]] = {}
        for number, candidate in zip(numbers, self.candidates, strict=True):
            groups.setdefault(number, []).append(candidate)
        return sorted(groups.items()), unit


def front(candidates: Sequence[Candidate], cost: str, score: str) -> list[Candidate]:
    """The Pareto front of a score and a cost, cheapest first."""
    counted = [candidate for candidate in candidates if math.isfinite(candidate.get(cost))]
    rising: list[Candidate] = []
    for candidate in sorted(counted, key=lambda candidate: (candidate.scores[cost], -candidate.scores[score])):
        if not rising or candidate.scores[score] > rising[-1].scores[score]:
            rising.append(candidate)
    return rising


def thinned(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """A random sample of at most `most` candidates in their order, always the same."""
    if len(candidates) <= most:
        return list(candidates)
    return [candidates[index] for index in sorted(Random(0).sample(range(len(candidates)), most))]


def read_run(path: str | Path) -> RunContents:
    """Reads a run folder; only config.json must be there."""
    folder = RunFolder(path)
    config = folder.read_config()
    settings, candidates = read_candidates(folder.journal)
    result = RunResult.load(folder.result) if folder.result.exists() else None
    snapshots, alarms = read_health(folder)
    return RunContents(
        folder=folder,
        config={**({"space": result.space} if result else {}), **config.settings},
        log=read_log(folder.log),
        settings=settings,
        candidates=candidates,
        result=result,
        limits=read_limits(config.budget or settings.budget, folder.config),
        snapshots=snapshots,
        alarms=alarms,
        random_search=read_candidates(folder.random_journal)[1],
        baselines={path.parent.name: read_log(path) for path in sorted(folder.baselines.glob("*/log.jsonl"))},
        incidents=read_incidents(folder.workers),
    )


def read_log(path: Path) -> list[LogLine]:
    """The training log by step; of repeated steps the line written last."""
    records = [line for line in TrainLog.read(path) if not (is_snapshot(line) or is_rollback(line))]
    lines = [from_json(LogLine, record, path) for record in records]
    return [line for _, line in sorted({line.step: line for line in lines}.items())]


@dataclass(frozen=True)
class Incident:
    """A line of workers.jsonl, as far as a report needs it."""

    event: str


def read_incidents(path: Path) -> dict[str, int]:
    """The number of events of each kind among the workers of a search; a torn last line is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = enumerate((line for line in lines if line.endswith(b"\n")), 1)
    events = [from_json(Incident, parse_json(line, path), f"{path}, line {number}") for number, line in whole]
    return dict(Counter(event.event for event in events))


def read_health(folder: RunFolder) -> tuple[list[Snapshot], list[str]]:
    """Snapshots of the training (or else the doctor's), and alarms of the doctor unless further steps followed."""
    log = TrainLog.read(folder.log)
    snapshots = [from_json(Snapshot, line, folder.log) for line in log if "subnets" in line]
    diagnosis = Diagnosis.load(folder.health) if folder.health.exists() else None
    if diagnosis is None or not log or diagnosis.step != log[-1].get("step"):
        return snapshots, []
    return snapshots or diagnosis.looks, [alarm.finding for alarm in diagnosis.alarms]


def read_limits(budget: Mapping[str, str | float | None], path: Path) -> Limits:
    """The limits of a budget, from a config or a journal."""
    try:
        counts = {name: parse_quantity(value) for name, value in budget.items() if value is not None}
    except UserError as error:
        raise UserError(f"{path}: budget is wrong ({error}); {REMEDY}") from None
    costs = dict.fromkeys(name[4:] for name in counts if name[:4] in ("min_", "max_"))
    return {cost: (counts.get(f"min_{cost}"), counts.get(f"max_{cost}")) for cost in costs}
