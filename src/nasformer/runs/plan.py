"""The plan of a run: what the budget leaves of the space, how long each stage will take here, how much disk it needs.

Times come from a few real steps on the real data; nothing is written but to a temporary folder.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import Batch, BatchSource, Split
from nasformer.models.base import Backbone
from nasformer.models.pretrained import is_supernet, source_arch, source_space
from nasformer.models.space import Space
from nasformer.results.folder import RunFolder
from nasformer.results.result import AGREEMENT
from nasformer.runs.base import Run, check_before_images, command_space, fit_to_data, resolve_shares
from nasformer.runs.baselines import check_baselines, drop_path_rate, fresh_timm
from nasformer.runs.options import PREFIX, PlanCommand, timm_name
from nasformer.runs.pools import step_memory, weight_copies
from nasformer.runs.pretrained import (
    LONG,
    Recipes,
    distillation_recipe,
    is_cuttable,
    knows_classes,
    pretrained_recipe,
    shorter_options,
    stage_recipes,
    training_size,
)
from nasformer.runs.search import check_search
from nasformer.search.options import SearchOptions
from nasformer.search.problem import Candidate, Proposal
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, check_satisfiable, sample_feasible
from nasformer.supernet.samplers import Sampler, make_sampler
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import evaluate, objective_of
from nasformer.train.loop import Trainer, teacher_of
from nasformer.train.recipe import Recipe
from nasformer.train.speed import enough_images
from nasformer.utils.cuda_graphs import CudaGraphs
from nasformer.utils.device import World, choose_device, cpu_threads
from nasformer.utils.progress import progress, say
from nasformer.utils.schema import to_json
from nasformer.utils.statistics import wilson

WARM_UP = 2  # steps, or batches
ENOUGH = 15.0  # seconds; slower steps differ little from each other, so that the second one counts
BATCHES = 3  # of an evaluation that are measured
EVALUATION_BATCH = 512
REST_SECONDS = 40.0
"""What a run from a pretrained net takes besides its stages, for reading images, sorting, reports and exports: on the
16 cores beside an H200 30 s and the end of an export that was not timed (docs/results.md)."""
COSTS = ("params", "macs", "latency_ms", "memory_bytes")


@dataclass(frozen=True)
class Share:
    """How many of random architectures fit, and the 95 % interval of the share in the space."""

    draws: int
    fitting: int
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """The smallest, median and largest of a cost."""

    smallest: float
    median: float
    largest: float


@dataclass(frozen=True)
class SpaceSurvey:
    """What a budget leaves of a space: the share that fits, and costs in the space and within the budget."""

    archs: str
    budget: str
    share: Share
    space: dict[str, Spread]
    within: dict[str, Spread]
    example: dict[str, Any]
    satisfiable: bool = True


@dataclass(frozen=True)
class StageTime:
    """How long a stage takes: a number of training steps or search candidates, and the seconds of each.

    Args:
        memory_bytes: What it needs of the device's memory at most, images aside; 0 where that was not measured.
    """

    count: int
    seconds_each: float
    unit: str = "step"
    name: str = ""
    memory_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.count * self.seconds_each

    def to_dict(self) -> dict[str, Any]:
        name = {"name": self.name} if self.name else {}
        counts = {f"{self.unit}s": self.count, f"seconds_per_{self.unit}": self.seconds_each}
        memory = {"memory_bytes": self.memory_bytes} if self.memory_bytes else {}
        return {**name, **counts, "seconds": self.seconds, **memory}


@dataclass(frozen=True)
class StageTimes:
    """How long the stages of a run take, and each baseline.

    Args:
        train: The supernet.
        retrain: The winner trained on its own; with --from, all trainings of its last stage.
        full: With --from, the fine-tuning of the full net.
        teacher: The fine-tuning of a larger teacher, where the recipe names one.
        rest_seconds: All else: reading, sorting, reports and exports, where it was measured.
    """

    train: StageTime
    search: StageTime
    retrain: StageTime
    baselines: list[StageTime]
    device: str
    note: str
    full: StageTime | None = None
    teacher: StageTime | None = None
    rest_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The seconds of all stages, baselines and the rest."""
        stages = (self.teacher, self.full, self.train, self.search, self.retrain, *self.baselines)
        return sum(stage.seconds for stage in stages if stage) + self.rest_seconds

    @property
    def candidates(self) -> int:
        return sum(stage.count for stage in (self.search, *self.baselines) if stage.unit == "candidate")


@dataclass(frozen=True)
class Plan:
    """Forecast of a run; `disk` has bytes by what is kept, their total and what is free."""

    name: str
    data: str
    space: SpaceSurvey
    time: StageTimes
    disk: dict[str, int]
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {name: to_json(value) for name, value in vars(self).items()}


def make_plan(command: PlanCommand) -> Plan:
    """Forecasts a run: surveys the space, times a few steps of each stage, adds up the disk space."""
    space, full_arch = command_space(command), source_arch(command.from_) if command.from_ else None
    if command.from_:
        command = replace(command, train=pretrained_recipe(command.train))
    recipe = command.train
    check_before_images(resolve_shares(command, space, full_arch), space, choose_device(command.device).type)
    with tempfile.TemporaryDirectory() as folder:
        answers = space.full_options["num_classes"] if command.no_training else None
        run = Run(RunFolder(folder), command, space, recipe, World(), answers, list_bad=False)
        command = resolve_shares(command, run.space, full_arch)
        budget = command.budget()
        run.use_profile(command, command.search.objectives)
        check_search(run.space, command.search, budget, command.seed, usual_objectives(run))
        next(iter(run.batches.evaluation("holdout", 1)))
        costs = check_baselines(run, command.baseline)
        survey = survey_space(run.space, budget, command.draws, command.seed)
        with cpu_threads(supernet_threads(run, recipe)):
            stages = time_pretrained if command.from_ else time_stages
            times = stages(run, command, budget, costs)
    example, params = run.space.arch(survey.example), [cost["params"] for cost in costs.values()]
    if times.full:
        params += [run.space.cost(run.space.root.largest()).params] * (1 + finish_trainings(command))
    disk = disk_needed(run.space, recipe, times.candidates, Path(command.out or "."), example, params)
    warnings = [*warnings_of(survey, disk), *shorter_ways(command, run.space, times)]
    return Plan(space.name, command.data, survey, times, disk, warnings)


def share_of(fitting: int, draws: int) -> Share:
    """The share that fits, with Wilson's interval.

    >>> share = share_of(0, 100)
    >>> share.low, round(share.high, 3)
    (0.0, 0.037)
    """
    return Share(draws, fitting, *wilson(fitting / draws, draws))


def survey_space(space: Space, budget: Budget, draws: int, seed: int) -> SpaceSurvey:
    """What fits, and the smallest, median and largest costs: in the space, and within the budget."""
    windows, rng = budget.windows(), random.Random(f"plan {seed}")
    check_satisfiable(space.root, space.costs, windows)
    example = sample_feasible(space.root, random.Random(f"plan example {seed}"), space.costs, windows)
    drawn = []
    with progress("architectures", draws) as report:
        for number in range(draws):
            drawn.append(space.costs(space.root.sample(rng)))
            report(number + 1)
    fitting = [costs for costs in drawn if budget.fits(costs)]
    ends = [space.costs(space.root.smallest()), space.costs(space.root.largest())]
    inside = fitting + [costs for costs in [*ends, space.costs(example)] if budget.fits(costs)]
    names = [name for name in COSTS if name in ends[0]]
    return SpaceSurvey(
        archs=str(space.root.cardinality),
        budget=str(budget),
        share=share_of(len(fitting), draws),
        space={name: spread([*ends, *drawn], drawn, name) for name in names},
        within={name: spread(inside, fitting or inside, name) for name in names},
        example=example.to_dict(),
    )


def spread(all_costs: Sequence[dict[str, float]], drawn: Sequence[dict[str, float]], name: str) -> Spread:
    values = [costs[name] for costs in all_costs]
    return Spread(min(values), median(costs[name] for costs in drawn), max(values))


def supernet_threads(run: Run, recipe: Recipe) -> int:
    """The threads that the training of the supernet would choose."""
    supernet = Supernet(run.space, run.options.seed).to(run.device)
    sampler = make_sampler(run.space, recipe.sampler, recipe.sandwich, run.options.seed)
    return Trainer(supernet, run.batches, recipe, sampler=sampler, seed=run.options.seed).choose_threads()


def time_stages(run: Run, command: PlanCommand, budget: Budget, timm_names: Iterable[str]) -> StageTimes:
    """Seconds of supernet training, search, retraining and baselines, from a few steps of each."""
    recipe, supernet = command.train, Supernet(run.space, run.options.seed).to(run.device)
    train = time_training(run, "supernet", supernet, recipe, command.steps)
    arch = example_arch(run, budget)
    search = time_search(run, command.search, budget, supernet, arch)
    return StageTimes(
        train=train,
        search=search,
        retrain=time_training(run, "retraining", run.space.build(arch).to(run.device), recipe, command.steps),
        baselines=time_baselines(run, command, recipe, search, timm_names),
        device=str(run.device),
        note="measured without compilation, which is faster once it is done" if recipe.compile else "",
    )


def time_pretrained(run: Run, command: PlanCommand, budget: Budget, timm_names: Iterable[str]) -> StageTimes:
    """The stages of a run from a pretrained net; its weights do not matter for that, so none are downloaded."""
    space, arch, measure = run.space, example_arch(run, budget), partial(time_training, run, steps=command.steps)
    full = space.build(space.root.largest()).to(run.device)
    supernet = Supernet(space, run.options.seed).to(run.device)
    recipes, tuned_teacher = planned_recipes(run, command), untuned_teacher(run, command.train)
    teacher_time = None
    if tuned_teacher is not None:
        teacher_time, recipes = measure("teacher", tuned_teacher, recipes.alone), recipes.without_teacher()
    teacher = tuned_teacher or (None if command.train.teacher else full)
    full_time = supernet_time = winner_time = StageTime(0, 0.0)
    if not command.no_training:
        full_time = measure("full net", full, recipes.full, teacher=tuned_teacher)
        supernet_time = measure("supernet", supernet, recipes.supernet, teacher=teacher)
    if trainings := finish_trainings(command):
        winner_time = measure("winner", space.build(arch).to(run.device), recipes.finish, teacher=teacher)
        winner_time = replace(winner_time, count=trainings * winner_time.count)
    search = time_search(run, command.search, budget, supernet, arch)
    return StageTimes(
        full=full_time,
        teacher=teacher_time,
        train=supernet_time,
        search=search,
        retrain=winner_time,
        baselines=time_baselines(run, command, recipes.alone, search, timm_names),
        device=str(run.device),
        note="",
        rest_seconds=REST_SECONDS,
    )


def planned_recipes(run: Run, command: PlanCommand) -> Recipes:
    """The recipes of the stages of a run from a pretrained net."""
    recipe = command.train
    recipes = stage_recipes(recipe, training_size(run.batches, recipe), run.batches.steps_per_epoch)
    return replace(recipes, finish=distillation_recipe(recipe, run.batches)) if command.no_training else recipes


def untuned_teacher(run: Run, recipe: Recipe) -> Backbone | None:
    """The recipe's teacher, with weights at random, where it is one that has to be fine-tuned first."""
    name = recipe.teacher or ""
    if not name.startswith("timm:") or not is_cuttable(name) or knows_classes(source_space(name), run):
        return None
    space = fit_to_data(source_space(name), run.batches, run.options)
    return space.build(space.root.largest()).to(run.device)


def finish_trainings(command: PlanCommand) -> int:
    """How many trainings the last stage of a run from a pretrained net has: of the winner, and of each size."""
    if command.no_training:
        starts = int(command.finish == "finetune")
    else:
        both = 1 if is_supernet(command.from_ or "") else 2  # slices of the supernet, and of the full net
        starts = {"auto": both, "none": 0}.get(command.finish, 1)
    return starts * (1 + command.front)


def example_arch(run: Run, budget: Budget) -> Arch:
    space = run.space
    return sample_feasible(space.root, random.Random(f"plan net {run.options.seed}"), space.costs, budget.windows())


def time_search(run: Run, options: SearchOptions, budget: Budget, supernet: Supernet, arch: Arch) -> StageTime:
    candidates = check_search(run.space, options, budget, run.options.seed, usual_objectives(run)).evaluations
    say("timing a candidate of the search")
    return StageTime(candidates, evaluation_seconds(run, supernet, arch), "candidate")


def usual_objectives(run: Run) -> tuple[str, ...]:
    return (AGREEMENT,) if run.options.no_training else (objective_of(run.batches).score,)


def time_baselines(
    run: Run, command: PlanCommand, recipe: Recipe, search: StageTime, timm_names: Iterable[str]
) -> list[StageTime]:
    """The baselines of the command: a random search, and models of timm."""
    options = command.search
    has_random_search = options.baseline == "random" and options.strategy != "random"
    random_search = [replace(search, name="random search beside")] if has_random_search else []
    return random_search + [time_timm(run, name, recipe, command.steps) for name in timm_names]


def time_training(
    run: Run, name: str, model: nn.Module, recipe: Recipe, steps: int, teacher: nn.Module | None = None
) -> StageTime:
    """A training by a recipe: its steps, the median time of a few, and the memory it needs."""
    sampler = None
    if isinstance(model, Supernet):
        sampler = make_sampler(run.space, recipe.sampler, recipe.sandwich, run.options.seed)
        build_skeletons(model, sampler, range(WARM_UP + steps))
    taught_by = teacher_of(recipe, run.batches, run.device, teacher)
    trainer = Trainer(model, run.batches, recipe, sampler=sampler, teacher=taught_by, seed=run.options.seed, quiet=True)
    # With graphs the same steps run twice: first recorded, then replayed, as those of a long training are.
    warm_up = steps if trainer.graphs else WARM_UP
    batches = run.batches.train_batches(0)
    seconds = median(timed_steps(trainer, batches, warm_up, steps, f"steps of the {name}"))
    trainer.graphs = None  # what they need beyond is taken only where it is to spare
    images, targets, share = timed_part(*next(batches), run.device)
    memory = round(step_memory(trainer, warm_up + steps, images, targets, teacher) / share)
    return StageTime(recipe.total_steps(run.batches.steps_per_epoch), seconds, memory_bytes=memory)


def build_skeletons(supernet: Supernet, sampler: Sampler, steps: Iterable[int]) -> None:
    """Builds the layers of some steps ahead, as each is built only once, at some time in a long training."""
    for arch in (arch for step in steps for arch in sampler(step)):
        for segment in supernet.space.plan(arch):
            supernet.skeleton(segment)


def timed_steps(trainer: Trainer, batches: Iterator[Batch], warm_up: int, steps: int, label: str) -> list[float]:
    """Seconds of each step after the warm-up, the loading of images included; of slow ones the second is enough."""
    if trainer.graphs:
        trainer.graphs.warmup_runs = 0
    trainer.model.train()
    seconds = list[float]()
    with ExitStack() as closing, progress(label, warm_up + steps) as report:
        trainer.use_graphs(closing)
        for step in range(warm_up + steps):
            start = time.perf_counter()
            images, targets, share = timed_part(*next(batches), trainer.device)
            loaded, start = time.perf_counter() - start, time.perf_counter()
            trainer.step(step % steps if trainer.graphs else step, images, targets)
            synchronize(trainer.device)
            seconds.append(loaded + (time.perf_counter() - start) / share)
            report(step + 1)
            if not trainer.graphs and step and sum(seconds) > ENOUGH:
                break
    return seconds[min(warm_up, len(seconds) - 1) :]


def timed_part(images: Any, targets: Any, device: torch.device) -> tuple[Any, Any, float]:
    """As much of a batch as a step is timed on, and its share of the batch; all of it but for large images on a CPU."""
    count = enough_images(*images.shape[1:]) if isinstance(images, Tensor) and isinstance(targets, Tensor) else 0
    if device.type != "cpu" or not 0 < count < len(images):
        return images, targets, 1.0
    return images[:count], targets[:count], count / len(images)


def time_timm(run: Run, name: str, recipe: Recipe, steps: int) -> StageTime:
    """A baseline from timm, which is trained for as many steps as the supernet."""
    model = fresh_timm(name, run.image_shape, run.options.seed, drop_path_rate(run.space)).to(run.device)
    name = timm_name(name)
    return replace(time_training(run, f"baseline {name}", model, recipe, steps), name=f"{PREFIX}{name}")


def evaluation_seconds(run: Run, supernet: Supernet, arch: Arch) -> float:
    """One candidate of the search: the held-out images, and training images for batch norm where there is some."""
    images = run.batches.held_out + (run.options.calibration_images if supernet.has_statistics else 0)
    few: Any = FirstBatches(run.batches)
    size, graphs = min(EVALUATION_BATCH, objective_of(run.batches).batch_size), CudaGraphs.on(run.device)
    if graphs:
        graphs.warmup_runs = 0
    with supernet.replaying(graphs):
        for _ in range(WARM_UP):  # the second time counts
            start, few.images = time.perf_counter(), 0
            evaluate(supernet, few, "holdout", arch=arch, batch_size=size, precision=run.recipe.precision)
            synchronize(run.device)
            seconds = time.perf_counter() - start
    return seconds / few.images * images


class FirstBatches:
    """The first batches of an evaluation, and how many images they had."""

    def __init__(self, batches: BatchSource) -> None:
        self.batches, self.images = batches, 0

    def __getattr__(self, name: str) -> Any:  # the task's objective, and what its metric asks for
        return getattr(self.batches, name)

    def evaluation(self, split: Split, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, labels in islice(self.batches.evaluation(split, batch_size), BATCHES):
            self.images += len(labels)
            yield x, labels


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def disk_needed(
    space: Space, recipe: Recipe, candidates: int, folder: Path, example: Arch, baselines: Sequence[int] = ()
) -> dict[str, int]:
    """Bytes by what is kept; `baselines` are their numbers of parameters.

    While a checkpoint is written, two before it are still there. One of a finished training stays.
    """
    weights = 4 * sum(tensor.numel() for tensor in Supernet(space).shared().values())
    copies = weight_copies(recipe)
    largest = 4 * space.costs(space.root.largest())["params"]
    needed = {
        "checkpoints": 3 * copies * weights,
        "supernet": weights,
        "model": round(largest),
        "journal": candidates * journal_line(space, example),
    }
    if baselines:
        needed["baselines"] = 4 * copies * (sum(baselines) + 2 * max(baselines))
    free = shutil.disk_usage(nearest_existing(folder)).free
    return {**needed, "total": sum(needed.values()), "free": free}


def journal_line(space: Space, arch: Arch) -> int:
    """The bytes of a candidate in the journal."""
    proposal = Proposal(arch, "crossover", 10, (100, 101))
    scores = {**space.costs(arch), "accuracy": 1 / 3, "loss": 1 / 3}
    return len(json.dumps(Candidate.from_proposal(1000, proposal, scores).to_dict())) + 1


def nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest ancestor that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def warnings_of(survey: SpaceSurvey, disk: dict[str, int]) -> Iterator[str]:
    """Warnings to consider before starting."""
    if disk["total"] > disk["free"]:
        yield "the disk has too little room: free some, or choose another --out"
    if survey.share.fitting == 0:
        yield f"none of {survey.share.draws} random architectures fits: the budget is very narrow"


def shorter_ways(command: PlanCommand, space: Space, times: StageTimes) -> Iterator[str]:
    """What else a user can do where a run from a pretrained net takes hours, as it does on a CPU."""
    if times.full is None or command.no_training or times.seconds < LONG:
        return
    front = f"leave --front {command.front} out, " if command.front else ""
    yield f"this takes hours on {times.device}; shorter: {front}{shorter_options(space, times.device)}"
