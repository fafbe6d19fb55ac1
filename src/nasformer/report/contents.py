"""What a run folder holds, read and checked once, so that plots and page need not doubt it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from nasformer.errors import UserError
from nasformer.families.base import options_from_json
from nasformer.families.registry import get_space
from nasformer.families.space import Space
from nasformer.latency.finalists import how_measured
from nasformer.search.journal import read_journal
from nasformer.search.problem import RESERVED, Candidate, plain_scores
from nasformer.space.arch import Arch
from nasformer.space.feasible import Window
from nasformer.space.node import corners
from nasformer.train.log import TrainLog, is_rollback, is_snapshot
from nasformer.utils.files import read_json
from nasformer.utils.units import parse_quantity

Limits = Mapping[str, tuple[float | None, float | None]]
REPAIR = "restore it or start in another folder"


@dataclass(frozen=True)
class Model:
    """One line of the results: the winner, a reference, or a point of the front. `scores` may hold NaN."""

    name: str
    arch: Mapping[str, Any]
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Latency:
    """The best candidates by score as predicted and as measured, or none and a note why; `how` they run."""

    rows: list[Model]
    how: str
    note: str


@dataclass(frozen=True)
class Run:
    """The contents of a run folder; what is missing is empty.

    Args:
        log: Lines of the training, by step, each with "step", "epoch", "loss" and "lr".
        score: The name of the score that the search raised, such as "accuracy"; of several, the first.
        ranked: Where a search went by the ranks of several scores together, their names.
        proxies: The scores of untrained models, in a search without training.
        models: The winner first, then the references.
        limits: The budget: name of a cost -> (lowest, highest).
        options: Those of the model that was searched for.
        looks: At subnets of the supernet, each with "step", "epoch" and "subnets", the accuracies by name.
        alarms: What `nasformer doctor` found wrong, in words.
        rival: The candidates of a random search beside that of the run, where there was one.
        timm: Models of timm that fit the budget; their numbers are costs.
        baselines: The logs of models that were trained beside, by name.
        latency: The finalists, where the search went by a profile.
    """

    folder: Path
    config: Mapping[str, Any]
    log: list[dict[str, float]]
    candidates: list[Candidate]
    score: str
    ranked: list[str]
    proxies: list[str]
    limits: Limits
    models: list[Model]
    front: list[Model]
    budget: str
    note: str
    options: Mapping[str, Any] = field(default_factory=dict)
    looks: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    rival: list[Candidate] = field(default_factory=list)
    timm: list[Model] = field(default_factory=list)
    baselines: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    latency: Latency | None = None

    @property
    def winner(self) -> Model | None:
        return self.models[0] if self.models else None

    @property
    def raised(self) -> list[str]:
        """The scores that the search raised; a model's own accuracy has other names."""
        return [name for name in self.ranked or [self.score] if name != "accuracy"]

    def references(self, name: str) -> list[Model]:
        """The references of that kind: `random` stands for `random`, `random 2`, `random-3` ..."""
        return [model for model in self.models[1:] if model.name.lower().startswith(name)]

    def score_of(self, model: Model) -> float:
        """A model's score, comparable with that of the candidates; NaN where it is not known."""
        held_out = model.scores.get("holdout_accuracy", math.nan)
        if self.score == "accuracy" and not math.isnan(held_out):
            return held_out
        if self.score in model.scores:
            return model.scores[self.score]
        same = [c.scores.get(self.score, math.nan) for c in self.candidates if c.arch.to_dict() == model.arch]
        return same[0] if same else math.nan


def read_run(folder: Path) -> Run:
    """Reads a run folder; only config.json must be there."""
    config = _object(folder / "config.json")
    settings, candidates = _search(folder / "search" / "journal.jsonl")
    path = folder / "result.json"
    result = _object(path) if path.exists() else {}
    winner, references = result.get("winner"), _list(result, "references", path)
    budget = config.get("budget") or settings.get("budget") or {}
    return Run(
        folder=folder,
        config={"space": result.get("space"), **config} if result.get("space") else config,
        log=_training(folder / "train" / "log.jsonl"),
        candidates=candidates,
        options=options_from_json(settings.get("model_options") or {}),
        score=_score_name(settings, candidates),
        ranked=_ranked(settings),
        proxies=[str(name) for name in _list(result, "proxies", path)],
        limits=_limits(budget, folder / "config.json"),
        models=[_model(entry, path, "winner") for entry in ([winner, *references] if winner else [])],
        front=[_model(entry, path, "candidate") for entry in _list(result, "front", path)],
        budget=str(result.get("budget") or ""),
        note=str(result.get("note") or ""),
        rival=_search(folder / "search" / "random.jsonl")[1],
        baselines={path.parent.name: _training(path) for path in sorted(folder.glob("baselines/*/log.jsonl"))},
        timm=[_model(entry, path, "timm") for entry in _list(result, "timm", path)],
        latency=_latency(result.get("latency"), path),
        **_health(folder),
    )


def _health(folder: Path) -> dict[str, Any]:
    """Looks during the training, or else the doctor's own; what the doctor found before further steps is outdated."""
    log, path = TrainLog.read(folder / "train" / "log.jsonl"), folder / "health.json"
    looks = [line for line in log if isinstance(line, dict) and "subnets" in line]
    known = _object(path) if path.exists() else {}
    if not log or known.get("step") != log[-1].get("step"):
        return {"looks": looks}
    try:
        return {"looks": looks or known["looks"], "alarms": [str(alarm["finding"]) for alarm in known["alarms"]]}
    except (KeyError, TypeError):
        raise UserError(f"{path} is damaged; run nasformer doctor again") from None


def _latency(found: Any, path: Path) -> Latency | None:
    if not found:
        return None
    try:
        rows = [_model(entry, path, f"number {place}") for place, entry in enumerate(found["finalists"], 1)]
        return Latency(rows, how_measured(found), str(found["note"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged (latency is not as a search writes it); {REPAIR}") from None


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (holds no JSON object); {REPAIR}")
    return content


def _list(content: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    entries = content.get(name) or []
    if not isinstance(entries, list):
        raise UserError(f"{path} is damaged ({name} is not a list); {REPAIR}")
    return entries


def _training(path: Path) -> list[dict[str, float]]:
    """The log by step. Should steps come twice, what was written last counts."""
    try:
        records = TrainLog.read(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {REPAIR}") from None
    lines = [_log_line(record, path) for record in records if not (is_snapshot(record) or is_rollback(record))]
    return [line for _, line in sorted({line["step"]: line for line in lines}.items())]


def _log_line(record: Any, path: Path) -> dict[str, float]:
    try:
        line = plain_scores({name: record.get(name) for name in ("step", "epoch", "loss", "lr")})
    except (ValueError, TypeError, AttributeError):
        line = {"step": math.nan}
    if math.isnan(line["step"]):
        raise UserError(f"{path} is damaged (step, epoch, loss and lr must be numbers: {record}); {REPAIR}")
    return line


def _search(path: Path) -> tuple[dict[str, Any], list[Candidate]]:
    if not path.exists():
        return {}, []
    try:
        settings, records = read_journal(path)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); {REPAIR}") from None
    return settings, [_candidate(record, f"{path}, line {number}") for number, record in enumerate(records, 2)]


def _candidate(record: Mapping[str, Any], where: str) -> Candidate:
    try:
        candidate = Candidate.from_dict(record)
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{where} is damaged (not a candidate: {error}); {REPAIR}") from None
    if type(candidate.generation) is not int:
        raise UserError(f"{where} is damaged (generation is {candidate.generation!r}); {REPAIR}")
    return candidate


def _score_name(settings: Mapping[str, Any], candidates: list[Candidate]) -> str:
    """Accuracy where there is one, else the first objective that is to be raised."""
    if any("accuracy" in candidate.scores for candidate in candidates):
        return "accuracy"
    return next(iter(_raised(settings)), "accuracy")


def _raised(settings: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in settings.get("objectives") or [] if not str(name).startswith("-")]


def _ranked(settings: Mapping[str, Any]) -> list[str]:
    names = _raised(settings) if settings.get("order") == "ranks" else []
    return names if len(names) > 1 else []


def _limits(budget: Any, path: Path) -> Limits:
    if not isinstance(budget, dict):
        raise UserError(f'{path} is damaged (budget is not like {{"max_params": 150000}}); {REPAIR}')
    ends = {name: parse_quantity(value) for name, value in budget.items() if value is not None}
    costs = dict.fromkeys(name[4:] for name in ends if name[:4] in ("min_", "max_"))
    return {cost: (ends.get(f"min_{cost}"), ends.get(f"max_{cost}")) for cost in costs}


def _model(entry: Any, path: Path, name: str) -> Model:
    """A model of the results. Numbers are its scores; texts and the like, such as a file name, are let be."""
    if not isinstance(entry, dict) or not isinstance(entry.get("arch") or {}, dict):
        raise UserError(f'{path} is damaged (expected models like {{"name", "arch", "params"}}); {REPAIR}')
    scores = {key: value for key, value in entry.items() if key not in RESERVED | {"name"}}
    for key, value in scores.items():
        if not isinstance(value, int | float | None) and (key in ("params", "macs") or "accuracy" in key):
            raise UserError(f"{path} is damaged ({key} is {value!r}, expected a number); {REPAIR}")
    numbers = {key: value for key, value in scores.items() if isinstance(value, int | float | None)}
    label = entry.get("name") or (f"#{entry['id']}" if "id" in entry else name)
    return Model(str(label), entry.get("arch") or {}, plain_scores(numbers))


# ----------------------------------------------------------------------------------------------------------------------
# What the space of a run holds, so that a figure can show a net among all that it might have been.
# ----------------------------------------------------------------------------------------------------------------------

DRAWS, TRIES = 200, 1000


def members(run: Run) -> list[Arch]:
    """The smallest and the largest member of the run's space, for every option of a OneOf; none if it is unknown."""
    space = _space(run)
    if space is None:
        return []
    return [member for corner in corners(space.root) for member in (space.root.smallest(corner), corner)]


def random_members(run: Run) -> list[Arch]:
    """Random archs of the run's space within its budget, always the same; in a very narrow budget they are few.

    Nothing but plain samples: archs that are led into a budget are not a fair picture of it.
    """
    space, rng = _space(run), Random(0)
    if space is None:
        return []
    drawn = (space.root.sample(rng) for _ in range(TRIES))
    return list(islice((arch for arch in drawn if _fits(space, arch, run)), DRAWS))


def _fits(space: Space, arch: Arch, run: Run) -> bool:
    """Within the limits on what can be counted; latency, for one, would have to be measured."""
    costs = space.costs(arch) if run.limits else {}
    return all(Window(name, *ends).excess(costs) == 0 for name, ends in run.limits.items() if name in costs)


def _space(run: Run) -> Space | None:
    """None for a space of another version, or an evolved one: what the run folder says must do."""
    try:
        return get_space(str(run.config.get("space")), **run.options)
    except UserError:
        return None


# ----------------------------------------------------------------------------------------------------------------------
# The course of a search: its candidates by generation, or in batches where it has no generations.
# ----------------------------------------------------------------------------------------------------------------------

BATCHES = 20


def steps(run: Run) -> tuple[list[tuple[int, list[Candidate]]], str]:
    """Candidates by step, and what steps count: generations, or the candidates judged so far."""
    numbers, unit = [candidate.generation for candidate in run.candidates], "generation"
    if len(set(numbers)) == 1 and len(numbers) > 1:
        size, unit = -(-len(numbers) // BATCHES), "candidates judged"
        numbers = [min(len(numbers), size * (index // size + 1)) for index in range(len(numbers))]
    found: dict[int, list[Candidate]] = {}
    for number, candidate in zip(numbers, run.candidates, strict=True):
        found.setdefault(number, []).append(candidate)
    return sorted(found.items()), unit
