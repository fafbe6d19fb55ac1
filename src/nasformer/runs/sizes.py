"""Several sizes from one search (`--front 5`), and how long nets take here.

OUT/front/NAME    a size: a run folder with its model, report and export
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from nasformer.families.base import Backbone
from nasformer.families.space import Space
from nasformer.latency.finalists import measure as measure_finalists
from nasformer.latency.finalists import why_unmeasurable
from nasformer.latency.measure import time_archs
from nasformer.results.result import RunResult
from nasformer.runs.baselines import PREFIX, fresh_timm
from nasformer.runs.finish import Measure, Start, StartTraining, finish_winner, ship, train_side_by_side
from nasformer.runs.options import RunCommand
from nasformer.runs.run import Run
from nasformer.runs.search import publish
from nasformer.search.budget import Budget, uniform_arch
from nasformer.search.options import BudgetOptions
from nasformer.search.problem import Candidate, ModelResult
from nasformer.space.arch import Arch
from nasformer.utils.files import draft_path, read_json, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json, to_json
from nasformer.utils.units import format_quantity

USEFUL = 0.5
"""Share of the winner's score below which a size is of no use."""


def with_cost_objective(command: RunCommand, score: str) -> RunCommand:
    """The command; where several sizes are wanted and nothing else is said, the search also lowers what is limited."""
    if not command.front or command.search.objectives:
        return command
    return replace(command, search=replace(command.search, objectives=[score, f"-{size_cost(command)}"]))


def size_cost(options: BudgetOptions) -> str:
    """The cost by which sizes differ: the one that is limited, else MACs.

    >>> size_cost(BudgetOptions(min_params=1000, max_latency="5ms", max_macs="50%")), size_cost(BudgetOptions())
    ('macs', 'macs')
    """
    limited = [name.removeprefix("max_") for name in options.limits() if name.startswith("max_")]
    return limited[0] if limited else "macs"


def choose_sizes(front: Sequence[Candidate], score: str, cost: str, count: int) -> list[Candidate]:
    """So many members of a Pareto front, evenly spread over the cost of those that are of use, cheapest first."""
    best = max(candidate.scores[score] for candidate in front)
    useful = [candidate for candidate in front if candidate.scores[score] >= USEFUL * best]
    low, high = (end(candidate.scores[cost] for candidate in useful) for end in (min, max))
    targets = [low + (high - low) * number / max(count - 1, 1) for number in range(count)]
    nearest = [min(useful, key=lambda candidate: abs(candidate.scores[cost] - target)) for target in targets]
    return sorted({size.arch: size for size in nearest}.values(), key=lambda size: size.scores[cost])


@dataclass(frozen=True)
class Finisher:
    """Finishes and exports what the run of a pretrained net ships: its winner, and further sizes along the front.

    Args:
        cut: The arch with the weights it was searched with.
        starts: The weights that its own training starts from.
        measure: Its scores.
        score: The one that decides, on held-out images.
    """

    run: Run
    command: RunCommand
    cut: Callable[[Arch], Backbone]
    starts: Callable[[Arch], Mapping[str, Start]]
    measure: Measure
    score: str

    def uniform_reference(self, budget: Budget) -> list[ModelResult]:
        """The net that is cut alike everywhere to the same budget, with the weights of the search, if one fits."""
        arch = uniform_arch(self.run.space.root, self.run.space.costs, budget)
        return [] if arch is None else [self.measured("uniform", self.cut(arch))]

    def measured(self, name: str, model: Backbone) -> ModelResult:
        scores = {**self.run.space.costs(model.arch), **self.measure(model, ("holdout", "test"))}
        return ModelResult(name, model.arch.to_dict(), scores)

    def finish(self, result: RunResult) -> RunResult:
        """The winner trained on its own."""
        return self.finish_in(self.run, result, self.starts(result.arch))

    def finish_in(self, run: Run, result: RunResult, starts: Mapping[str, Start]) -> RunResult:
        return finish_winner(run, result, starts, self.measure, f"holdout_{self.score}")

    def ship(self, result: RunResult) -> RunResult:
        """Makes the sizes that are asked for, measures all latencies, writes the result, and exports the winner."""
        if self.command.front and result.front:
            chosen = choose_sizes(result.front, self.score, size_cost(self.command), self.command.front)
            result = replace(result, sizes=self.make_sizes(result, [candidate.arch for candidate in chosen]))
        result = with_latencies(self.run, result)
        publish(self.run.folder, result)
        if self.command.export:
            ship(self.run.folder)
        return result

    def make_sizes(self, result: RunResult, archs: Sequence[Arch]) -> list[ModelResult]:
        """All sizes, as they are shipped; their trainings side by side, where that is asked for."""
        if result.arch in archs:
            self.keep_trainings(result.arch)
        if self.run.side_by_side:
            trainings = [(self.run_of(arch), self.starts(arch)) for arch in archs]
            all_starts = [StartTraining.of(size, *start) for size, starts in trainings for start in starts.items()]
            train_side_by_side(self.run, all_starts)
        return [self.make_size(result, arch) for arch in archs]

    def keep_trainings(self, winner: Arch) -> None:
        """Gives the winner, where it is one of the sizes, the trainings that it had: they would be the same again."""
        done, copied = (run.folder.path / "finish" for run in (self.run, self.run_of(winner)))
        if done.is_dir() and not copied.exists():
            draft = draft_path(copied)  # renamed when it is whole: a killed run must not leave a part of it
            shutil.copytree(done, draft, dirs_exist_ok=True)
            draft.replace(copied)

    def run_of(self, arch: Arch) -> Run:
        """The run of a size, in its folder."""
        return self.run.inside(f"front/{self.name(arch)}", self.run.space)

    def name(self, arch: Arch) -> str:
        return format_quantity(self.run.space.costs(arch)["macs"])

    def make_size(self, result: RunResult, arch: Arch) -> ModelResult:
        name, size = self.name(arch), self.run_of(arch)
        say(f"size {name} MACs: {size.folder}")
        model = self.cut(arch)
        own = RunResult(result.space, result.data, self.measured("winner", model))
        own = replace(own, references=result.trained, budget=result.budget, images=result.images)
        size.folder.record("model", self.run.options, self.run.space.name)
        size.save(model, own)
        if starts := self.starts(arch) if self.run.world.size == 1 else {}:
            own = self.finish_in(size, own, starts)
        else:
            publish(size.folder, own)
        if self.command.export:
            ship(size.folder)
        return replace(own.shipped, name=f"front/{name}")


# How long nets take


@dataclass(frozen=True)
class Latencies:
    """Milliseconds of nets by their arch as JSON, or by their name if they are timm's (RUN/search/latency.json), and
    how they were measured.
    """

    how: str = ""
    ms: dict[str, float] = field(default_factory=dict)


def with_latencies(run: Run, result: RunResult) -> RunResult:
    """The result with the measured latency of the full net, the winner, the sizes, the uniform cut and models of timm.

    What was measured before is not measured again, so that a finished run stays as it is.
    """
    references = [model for model in result.references if model.name.startswith(("full net", "uniform"))]
    models = [result.winner, *(result.sizes or []), *references]
    archs = list({model_arch(model): None for model in models})
    path = run.folder.journal.parent / "latency.json"
    latencies = from_json(Latencies, read_json(path), path) if path.exists() else Latencies()
    timm = [] if is_profiled(run) else [model.name for model in result.references if model.name.startswith(PREFIX)]
    if {*timm, *(arch.to_json() for arch in archs)} - latencies.ms.keys():
        latencies = measure_latencies(run, archs, timm)
        write_json(path, to_json(latencies))
    timed = {id(model): timed_model(model, latencies) for model in [*result.models, *(result.sizes or [])]}
    return replace(
        result,
        winner=timed[id(result.winner)],
        finished=timed[id(result.finished)] if result.finished else None,
        references=[timed[id(model)] for model in result.references],
        sizes=[timed[id(model)] for model in result.sizes] if result.sizes else None,
        timing=latencies.how,
    )


def model_arch(model: ModelResult) -> Arch:
    return Arch.from_dict(model.arch)


def timed_model(model: ModelResult, latencies: Latencies) -> ModelResult:
    ms = latencies.ms.get(model_arch(model).to_json() if model.arch else model.name)
    return model if ms is None else model.with_scores({"measured_latency_ms": ms})


def is_profiled(run: Run) -> bool:
    """Whether nets are measured as the profile was; models of timm, which have other layers, then are not."""
    return run.profile is not None and not why_unmeasurable(run.profile)


def measure_latencies(run: Run, archs: Sequence[Arch], timm: Sequence[str]) -> Latencies:
    """By the profile that the search went by, or else plainly: one image, on the CPU by one thread."""
    names = [*(arch.to_json() for arch in archs), *timm]
    say(f"measuring the latency of {len(names)} nets")
    if run.profile is not None and is_profiled(run):
        times = [finalist.measured_latency_ms for finalist in measure_finalists(run.profile, run.space, archs)]
        setup = run.profile.setup
        how = f"{setup.backend} on {setup.device}, batch {setup.batch_size}, threads {setup.threads}"
    else:
        others = [fresh_timm(name.removeprefix(PREFIX), run.image_shape, seed=0) for name in timm]
        times = [1000 * seconds for seconds in time_archs(plain_space(run.space), archs, run.device, others=others)]
        how = f"eager on {torch.device(run.device).type}, batch 1, threads 1"
    return Latencies(how, {name: round(ms, 4) for name, ms in zip(names, times, strict=True)})


def plain_space(space: Space) -> Space:
    """Without what training alone needs."""
    return space.with_options(drop_path_rate=0.0) if "drop_path_rate" in space.full_options else space
