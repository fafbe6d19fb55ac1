"""The end of a run: the winner is trained on its own, since the weights it inherits serve all archs; sizes; the export.

Each start (the weights inherited from the supernet, those of a pretrained net, or fresh ones) is trained in
OUT/finish/NAME. What is shipped is the best of them on the held-out images. The inherited weights are kept only where
they are better there by more than a standard error: the search chose them by these very images, which flatters them.

OUT/front/NAME    with `--front 5`, further sizes from the same search: each a run folder with model, report and export
OUT/export        the model for use elsewhere
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.export.bundle import CARD, FORMATS, Exported, export_model
from nasformer.latency.measure import time_archs
from nasformer.latency.search import measure as measure_finalists, why_unmeasurable
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.models.storage import CONFIG, WEIGHTS, facts_in, fingerprint, fresh_model, load_model
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder
from nasformer.results.result import AGREEMENT, FinishResult, RunResult
from nasformer.results.verdict import judge
from nasformer.runs.base import Run, publish
from nasformer.runs.baselines import fresh_timm, split_accuracies
from nasformer.runs.options import PREFIX, RunCommand
from nasformer.runs.pools import Work, kept_bytes, run_tasks, training_memory
from nasformer.search.options import BudgetOptions
from nasformer.search.problem import Candidate, ModelResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, uniform_arch
from nasformer.supernet.supernet import Supernet, recalibrate
from nasformer.tasks.options import split_scores
from nasformer.train.evaluate import objective_of
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.files import draft_path, read_json, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json, to_json
from nasformer.utils.statistics import standard_error
from nasformer.utils.units import format_quantity

Measure = Callable[[Backbone, Sequence[Split]], dict[str, float]]
"""Scores of a model on splits, by names such as holdout_accuracy."""


@dataclass(frozen=True)
class Start:
    """Weights that a winner's own training starts from, its recipe and its teacher."""

    model: Backbone
    recipe: Recipe
    teacher: nn.Module | None = None


def single_recipe(recipe: Recipe, **changes: object) -> Recipe:
    """A supernet's recipe for one of its members on its own."""
    plain = {"sandwich": 0, "inplace_distillation": False, "decay": "all", "freeze": "optimizer", "watch_epochs": 0.0}
    return replace(recipe, **{**plain, **changes})  # type: ignore[arg-type]


def supernet_starts(run: Run, supernet: Supernet, result: RunResult, method: str, recipe: Recipe) -> dict[str, Start]:
    """How the winner of a supernet trained from scratch is finished: from its inherited weights, or from fresh ones."""
    recipes = finish_recipes(method, recipe)
    if "retrained" in recipes:
        model = fresh_model(run.space, result.arch, run.options.seed)
        return {"retrained": Start(model.to(run.device), recipes["retrained"])}
    if "finetuned" in recipes:
        inherited = supernet.extract(result.arch)
        recalibrate(inherited, run.batches, run.options.calibration_images)
        return {"finetuned": Start(inherited, recipes["finetuned"])}
    return {}


FINETUNE_LR = 0.3
"""Learning rate of weights that are trained on, as a share of the rate they were trained with."""


def finish_recipes(method: str, recipe: Recipe) -> dict[str, Recipe]:
    """The recipe of the winner's own training, by the name of its weights in the results."""
    if method == "none":
        return {}
    if method == "retrain":
        return {"retrained": single_recipe(recipe)}
    return {"finetuned": single_recipe(recipe, lr=FINETUNE_LR * recipe.lr)}


def finish_winner(
    run: Run,
    result: RunResult,
    starts: Mapping[str, Start],
    measure: Measure | None = None,
    score: str | None = None,
) -> RunResult:
    """Trains the winner from each start and ships the best on held-out images; the result says which it was.

    Args:
        measure: Scores of a model on splits; None: its accuracies.
        score: What decides on held-out images; None: the score of the task.
    """
    if not starts:
        return result
    if run.world.size > 1:
        say(f"the winner keeps its inherited weights; to train it on: nasformer finetune {run.folder} --out NEW")
        return result
    measure, criterion = measure or accuracies(run), f"holdout_{score or objective_of(run.batches).score}"
    models = train_starts(run, starts)
    tried = {"inherited": result.winner.get(criterion)}
    tried |= {name: measure(model, ("holdout",))[criterion] for name, model in models.items()}
    # Agreement with the full net is taken as it is: unlike an accuracy it is no share of images with noise of its own.
    chosen = choose_weights(tried, None if score == AGREEMENT else run.batches.held_out)
    if chosen == "inherited":
        say("training the winner on its own did not make it better on the held-out images; it keeps its weights")
        result = replace(result, finish=FinishResult(chosen, tried))
        publish(run.folder, result)
        return result
    model = models[chosen]
    scores = {**run.space.costs(model.arch), **measure(model, ("holdout", "test"))}
    finished = ModelResult(f"winner, {chosen}", result.winner.arch, scores)
    result = replace(result, finished=finished, finish=FinishResult(chosen, tried))
    run.publish(model, result)
    return result


def choose_weights(tried: Mapping[str, float], images: int | None) -> str:
    """The name of the best trained weights, or "inherited" where these are better by more than a standard error.

    Args:
        tried: Scores by name.
        images: How many the scores are from; None: they have no standard error.

    >>> [choose_weights({"inherited": inherited, "finetuned": 0.2}, images=26) for inherited in (0.2, 0.25, 0.5)]
    ['finetuned', 'finetuned', 'inherited']
    >>> choose_weights({"inherited": 0.25, "finetuned": 0.2}, images=None)
    'inherited'
    """
    inherited, best = tried["inherited"], max((name for name in tried if name != "inherited"), key=tried.__getitem__)
    noise = 0.0 if images is None else standard_error(inherited, images)
    return best if tried[best] >= inherited - noise else "inherited"


def accuracies(run: Run) -> Measure:
    """Accuracy on the run's images, or the score of its task."""
    return lambda model, splits: split_accuracies(model, run.batches, run.recipe.precision, splits=splits)


@dataclass(frozen=True)
class StartTraining:
    """The training of a start in its folder; a finished training is left as it is."""

    start: Start
    folder: Path
    seed: int
    settings: dict[str, Any]
    label: str

    @classmethod
    def of(cls, run: Run, name: str, start: Start) -> StartTraining:
        settings = {**run.settings, "space": run.space.name, "weights": fingerprint(start.model)}
        settings |= teacher_settings(start.teacher)
        return cls(start, (run.folder / f"finish/{name}").train, run.options.seed, settings, f"winner, {name}")

    def train(self, batches: BatchSource) -> Backbone:
        train_model(
            self.start.model,
            batches,
            self.start.recipe,
            folder=self.folder,
            seed=self.seed,
            settings=self.settings,
            teacher=self.start.teacher,
            label=self.label,
        )
        return self.start.model.eval()

    def is_done(self, batches: BatchSource) -> bool:
        """Whether its last checkpoint is there; a training that was stopped early counts as not done."""
        return (self.folder / f"checkpoints/step-{self.start.recipe.total_steps(batches.steps_per_epoch)}").is_dir()


def train_starts(run: Run, starts: Mapping[str, Start]) -> dict[str, Backbone]:
    """The trained models of starts by name."""
    trainings = {name: StartTraining.of(run, name, start) for name, start in starts.items()}
    if run.side_by_side:
        train_side_by_side(run, list(trainings.values()))
    return {name: training.train(run.batches) for name, training in trainings.items()}


def teacher_settings(teacher: nn.Module | None) -> dict[str, str]:
    """The setting of a training that depends on a teacher."""
    return {"teacher_weights": fingerprint(teacher)} if teacher is not None else {}


@dataclass(frozen=True)
class StartJob:
    """Trains starts in other processes; what they end with is in their folders."""

    batches: BatchSource

    def open(self, device: str) -> Work:
        batches = self.batches.to(device)

        def train(training: StartTraining) -> None:
            training.train(batches)

        return train


def train_side_by_side(run: Run, trainings: Sequence[StartTraining]) -> None:
    """Trains starts in other processes, several at a time; `StartTraining.train` then loads what they end with."""
    left = [training for training in trainings if not training.is_done(run.batches)]
    if len(left) < 2:
        return

    def memory() -> int:
        largest = max((training.start for training in left), key=lambda start: kept_bytes(start.model))
        return training_memory(run.batches, deepcopy(largest.model), largest.recipe, run.device, largest.teacher)

    job, folder = StartJob(run.batches), run.folder.path
    run_tasks(job, left, run.executor, run.device, folder, "trainings of winners", memory)


# Several sizes from one search

USEFUL = 0.5
"""Share of the winner's score below which a size is of no use."""


def with_cost_objective(command: RunCommand, score: str) -> RunCommand:
    """The command, whose search also lowers the limited cost where several sizes and no objectives are asked for."""
    if not command.front or command.search.objectives:
        return command
    return replace(command, search=replace(command.search, objectives=[score, f"-{size_cost(command)}"]))


def size_cost(options: BudgetOptions) -> str:
    """The cost by which sizes differ: the first that is limited, else MACs.

    >>> size_cost(BudgetOptions(min_params=1000, max_latency="5ms", max_macs="50%")), size_cost(BudgetOptions())
    ('macs', 'macs')
    """
    limited = [name.removeprefix("max_") for name in options.limits() if name.startswith("max_")]
    return limited[0] if limited else "macs"


def choose_sizes(front: Sequence[Candidate], score: str, cost: str, count: int) -> list[Candidate]:
    """`count` members of a Pareto front, spread evenly over the costs of its useful part, cheapest first."""
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
        score: The name of the score that decides, on held-out images.
    """

    run: Run
    command: RunCommand
    cut: Callable[[Arch], Backbone]
    starts: Callable[[Arch], Mapping[str, Start]]
    measure: Measure
    score: str

    def uniform_reference(self, budget: Budget) -> list[ModelResult]:
        """The net with equal blocks that fits the budget, with the weights of the search; none where none fits."""
        arch = uniform_arch(self.run.space.root, self.run.space.costs, budget)
        return [] if arch is None else [self.measured("uniform", self.cut(arch))]

    def measured(self, name: str, model: Backbone) -> ModelResult:
        scores = {**self.run.space.costs(model.arch), **self.measure(model, ("holdout", "test"))}
        return ModelResult(name, model.arch.to_dict(), scores)

    def finish(self, result: RunResult) -> RunResult:
        """The winner trained on its own."""
        return self.finish_in(self.run, result, self.starts(result.arch))

    def finish_in(self, run: Run, result: RunResult, starts: Mapping[str, Start]) -> RunResult:
        return finish_winner(run, result, starts, self.measure, self.score)

    def ship(self, result: RunResult) -> RunResult:
        """Makes the sizes of `--front`, measures all latencies, writes the result, and exports the winner."""
        if self.command.front and result.front:
            chosen = choose_sizes(result.front, self.score, size_cost(self.command), self.command.front)
            result = replace(result, sizes=self.make_sizes(result, [candidate.arch for candidate in chosen]))
        result = with_latencies(self.run, result)
        publish(self.run.folder, result)
        if self.command.export:
            ship(self.run.folder)
        return result

    def make_sizes(self, result: RunResult, archs: Sequence[Arch]) -> list[ModelResult]:
        """All sizes as they are shipped; with `--jobs` their trainings go side by side."""
        if result.arch in archs:
            self.keep_trainings(result.arch)
        if self.run.side_by_side:
            trainings = [(self.run_of(arch), self.starts(arch)) for arch in archs]
            all_starts = [StartTraining.of(size, *start) for size, starts in trainings for start in starts.items()]
            train_side_by_side(self.run, all_starts)
        return [self.make_size(result, arch) for arch in archs]

    def keep_trainings(self, winner: Arch) -> None:
        """Copies the winner's trainings to the size of the same arch, which would only repeat them."""
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
        """A size in a run folder of its own, finished and exported as the winner is; its result."""
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


# How long nets take here


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

    def timed(model: ModelResult) -> ModelResult:
        ms = latencies.ms.get(model_arch(model).to_json() if model.arch else model.name)
        return model if ms is None else model.with_scores({"measured_latency_ms": ms})

    return replace(
        result,
        winner=timed(result.winner),
        finished=timed(result.finished) if result.finished else None,
        references=[timed(model) for model in result.references],
        sizes=[timed(model) for model in result.sizes] if result.sizes else None,
        timing=latencies.how,
    )


def model_arch(model: ModelResult) -> Arch:
    return Arch.from_dict(model.arch)


def is_profiled(run: Run) -> bool:
    """Whether nets are measured as the profile was; models of timm, which have other layers, then are not."""
    return run.profile is not None and not why_unmeasurable(run.profile)


def measure_latencies(run: Run, archs: Sequence[Arch], timm: Sequence[str]) -> Latencies:
    """Latencies by the profile of the search, or else of one image, eager, on the CPU by one thread."""
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
    """The space without options that only training needs."""
    return space.with_options(drop_path_rate=0.0) if "drop_path_rate" in space.full_options else space


# The export


ORIGINS = {"retrained": "trained from scratch", "finetuned": "inherited, then trained further"}
"""Where the weights of a single model come from, by its name in the results."""


def export_folder(source: Path, to: str | Path, formats: Sequence[str] = tuple(FORMATS)) -> Exported:
    """Exports the model of a folder, with the facts of its training and of its run."""
    model, origin = load_model(source), origin_of(source)
    facts = facts_in(source) | ({"provenance": origin} if origin else {})
    return export_model(model, to, facts, formats, quiet=False)


def provenance(folder: Path) -> dict[str, Any]:
    """How the model of a folder was made, if it lies in a run: data, seed, recipe, accuracies and versions."""
    run = RunFolder(folder.parent if folder.name == "model" else folder)
    if not run.result.exists() or not run.config.exists():
        return {}
    config, shipped = run.read_config().settings, run.read_result().shipped
    settings = {name: config[name] for name in ("data", "holdout", "seed", "budget", "versions") if config.get(name)}
    accuracies = {name: shipped[name] for name in split_scores() if math.isfinite(shipped.get(name))}
    name = shipped.name.removeprefix("winner, ")
    weights = ORIGINS.get(name, name if name.startswith("from ") else "inherited from a trained supernet")
    made = {"weights": weights, **settings, **accuracies}
    return {**made, "seed": config.get("seed", 0), "recipe": config.get("train", {})}


def ship(run: RunFolder) -> None:
    """Exports a run's model, unless that was done before. A failed export is reported and does not fail the run."""
    for draft in run.path.glob(f".{run.export.name}.*.tmp"):  # of an export that was killed
        shutil.rmtree(draft, ignore_errors=True)
    try:
        if is_exported(run.model, run.export):
            return
        say(f"exporting the model in every format and checking each: {run.export}")
        exported = export_folder(run.model, run.export)
    except OSError:  # a full disk: reported elsewhere, and the same command resumes
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        advice = f"Try: nasformer export {run} --to DIR"
        say(f"warning: the model was not exported ({reason}); it is in {run.model}. {advice}")
        return
    for note in exported.notes:
        say(note)


def is_exported(model: Path, target: Path) -> bool:
    """Whether the folder is an export of this model as it is now: the same weights, and the same facts about it."""
    if not all((target / name).exists() for name in (WEIGHTS, CONFIG, CARD)):
        return False
    if (target / WEIGHTS).read_bytes() != (model / WEIGHTS).read_bytes():
        return False
    exported, current = read_json(target / CONFIG), read_json(model / CONFIG)
    same = all(exported.get(name) == value for name, value in current.items())
    return same and exported.get("provenance", {}) == origin_of(model)


def origin_of(model: Path) -> dict[str, Any]:
    """How the model of a folder was made, with the verdict on the run that it lies in."""
    origin, run = provenance(model), model.parent if model.name == "model" else model
    verdict = judge(read_run(run)) if origin else None
    return {**origin, "verdict": verdict.sentences} if verdict else origin
