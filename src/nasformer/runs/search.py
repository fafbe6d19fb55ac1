"""The search of a run: archs of a space, judged by an evaluator, within a budget, in a run folder.

Whether archs inherit the weights of a supernet or are scored untrained is a matter of the evaluator alone; search,
baselines, measured finalists, result and report are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from nasformer.data.images import Data
from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError
from nasformer.latency.profile import Profile
from nasformer.latency.search import choose_winner, keep_profile, profile_settings
from nasformer.models.base import Backbone
from nasformer.models.space import Space
from nasformer.models.storage import fingerprint
from nasformer.proxies.scoring import Scorer
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.results.verdict import resolution_warning
from nasformer.runs.base import Run, check_holdout, check_options, normalize_as
from nasformer.runs.baselines import best_of_random, best_of_start, count_images, fitting_timm_models
from nasformer.runs.options import ExecutorOptions, RunCommand, SearchCommand, check_racing
from nasformer.runs.pools import Job, RayPool, Work
from nasformer.search.options import Racing, SearchOptions
from nasformer.search.pareto import Order
from nasformer.search.problem import ModelResult, Problem
from nasformer.search.run import Chunks, Executor, InProcess, Scores, SearchResult, search
from nasformer.search.strategy import Strategy, complete_options, find_strategy
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, check_satisfiable, references
from nasformer.supernet.health import check_up
from nasformer.supernet.storage import load_supernet, supernet_folder
from nasformer.supernet.supernet import CALIBRATION_IMAGES, Supernet
from nasformer.train.evaluate import CLASSIFICATION, SubnetEvaluator, objective_of
from nasformer.train.loop import as_batches
from nasformer.train.racing import CONFIDENCE, Race
from nasformer.train.recipe import Recipe
from nasformer.train.speed import threads_of_training
from nasformer.utils.device import World, cpu_threads, fastest_threads, threads_are_fixed
from nasformer.utils.progress import progress, say

CHECKED_SUBNETS = 20
"""Random subnets in the check-up of a supernet."""
CHUNK = 8
"""Archs of a task by proxies: scoring more of them together gains next to nothing on a CPU (AutoFormer micro by DSS and
NASWOT: 0.077 s an arch for 8, 0.072 s for 16), and a generation of 50 still keeps seven workers busy."""


class Evaluator(Protocol):
    """Judges archs for a run: their scores in the search, and what the result says of them."""

    space: Space
    objectives: tuple[str, ...]
    """What the search raises where the user does not say."""
    evaluations: int = 1000
    """Candidates of a random search where the user does not say."""
    chunk: int = 1
    """Archs of a task, where workers evaluate them."""

    def __call__(self, arch: Arch) -> Scores: ...

    def order(self, options: SearchOptions) -> Order:
        """What several objectives mean together."""
        return "pareto"

    def settings(self) -> Mapping[str, Any]:
        """What the scores depend on, for the journal."""

    def measure(self, arch: Arch) -> dict[str, float]:
        """The scores of an arch in the result, by name."""

    def model(self, arch: Arch) -> Backbone | None:
        """The arch as a model to ship, where there are weights."""

    def summary(self, search: SearchResult) -> dict[str, Any]:
        """Further fields of the result."""

    def job(self) -> Job:
        """The same evaluation for workers in other processes."""
        raise UserError("these candidates are evaluated in this process alone; leave --executor out")

    @property
    def device(self) -> torch.device:
        """The device on which archs are evaluated, here and by workers."""


class InheritedEvaluator(Evaluator):
    """Judges archs by the weights they inherit from a supernet, on images held out of its training."""

    objectives: tuple[str, ...] = ("accuracy",)

    def __init__(self, supernet: Supernet, batches: BatchSource, precision: str, calibration_images: int, seed: int):
        self.space, self.seed, self.calibration_images = supernet.space, seed, calibration_images
        self.subnets = SubnetEvaluator(supernet, batches, precision, calibration_images)
        self.objectives = (self.subnets.score,)

    def __call__(self, arch: Arch) -> Scores:
        return self.subnets(arch)

    def settings(self) -> dict[str, Any]:
        supernet = self.subnets.supernet
        # What has no effect is no setting: so it refuses no journal.
        calibration = {"calibration_images": self.calibration_images} if supernet.has_statistics else {}
        return {"space": self.space.name, **calibration, "supernet": fingerprint(supernet)}

    def measure(self, arch: Arch) -> dict[str, float]:
        splits = {f"{split}_{self.subnets.score}": split for split in ("holdout", "test")}
        return {name: self.subnets.accuracy(arch, split) for name, split in splits.items()}  # type: ignore[arg-type]

    def model(self, arch: Arch) -> Backbone:
        return self.subnets.model(arch)

    def summary(self, search: SearchResult) -> dict[str, Any]:
        done = count(1)
        with progress("check-up of the supernet", CHECKED_SUBNETS + 2) as report:

            def accuracy(arch: Arch) -> float:
                share = self.subnets.accuracy(arch)
                report(next(done))
                return share

            health = check_up(self.space, accuracy, self.seed, CHECKED_SUBNETS)
        return {"health": health, "images": count_images(self.subnets.batches)}

    def job(self) -> Job:
        return SubnetJob.of(self.subnets, self.calibration_images)

    @property
    def device(self) -> torch.device:
        return self.subnets.supernet.device


class UntrainedEvaluator(Evaluator):
    """Judges untrained archs by training-free proxies."""

    evaluations = 8000  # TF-TAS's
    chunk = CHUNK

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.space = scorer, scorer.space
        self.objectives = tuple(proxy.name for proxy in scorer.proxies)

    def __call__(self, arch: Arch) -> Scores:
        return self.scorer(arch)

    def many(self, archs: Sequence[Arch]) -> list[Scores]:
        return list(self.scorer.many(archs))

    def order(self, options: SearchOptions) -> Order:
        return "ranks" if not options.objectives and find_strategy(options.strategy).takes_ranks else "pareto"

    def settings(self) -> Mapping[str, Any]:
        return self.scorer.settings

    def measure(self, arch: Arch) -> dict[str, float]:
        return {proxy: score.mean for proxy, score in self.scorer.score(arch).items()}

    def model(self, arch: Arch) -> None:
        return None

    def summary(self, search: SearchResult) -> dict[str, Any]:
        return {"proxies": list(self.objectives), "candidates": len(search.candidates)}

    def job(self) -> Job:
        return ProxyJob(self.scorer)

    @property
    def device(self) -> torch.device:
        return self.scorer.device


# Jobs: the same evaluation by workers (`runs/pools.py`). A job is pickled, so it holds what it needs and nothing on a
# device. Images in memory travel with it; of images that are streamed the paths do, which must be valid on every node.


@dataclass(frozen=True)
class SubnetJob:
    """Judges archs by the weights that they inherit from a supernet."""

    space: Space
    weights: dict[str, Tensor]
    batches: BatchSource
    precision: str
    calibration_images: int
    compiled: bool

    @classmethod
    def of(cls, subnets: SubnetEvaluator, calibration_images: int) -> SubnetJob:
        supernet = subnets.supernet
        weights = {name: tensor.detach().cpu() for name, tensor in supernet.weights.state_dict().items()}
        compiled = supernet.compile_options is not None
        # Costs are counted here, not by workers: so a profile stays at home.
        space = replace(supernet.space, predicted=None)
        return cls(space, weights, subnets.batches, subnets.precision, calibration_images, compiled)

    def open(self, device: str) -> Work:
        supernet = Supernet(self.space)
        supernet.weights.load_state_dict(self.weights)
        supernet.to(device)
        if self.compiled:
            supernet.compile()
        subnets = SubnetEvaluator(supernet, self.batches.to(device), self.precision, self.calibration_images)
        return lambda archs: [subnets(arch) for arch in archs]


@dataclass(frozen=True)
class ProxyJob:
    """Scores untrained archs: means by proxy as a search wants them ("many"), or all values ("score_many")."""

    scorer: Scorer
    method: Literal["many", "score_many"] = "many"

    def open(self, device: str) -> Work:
        work: Work = getattr(self.scorer.to(device), self.method)
        return work


@dataclass
class ArchSearch:
    """A search and its result.

    Args:
        folder: The run folder, where it can be killed and goes on; None: nothing is written.
        data: The images, as they were named.
        profile: Where the budget speaks of latency or memory, what predicts them.
        settings: What else the scores depend on.
        executor: Where candidates are evaluated.
    """

    evaluator: Evaluator
    budget: Budget
    options: SearchOptions
    seed: int = 0
    folder: RunFolder | None = None
    data: str | None = None
    profile: Profile | None = None
    settings: Mapping[str, Any] | None = None
    quiet: bool = False
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)

    @classmethod
    def of(cls, run: Run, evaluator: Evaluator, options: SearchOptions, budget: Budget) -> ArchSearch:
        """A search in the folder of a run."""
        return cls(
            evaluator,
            budget,
            options,
            seed=run.options.seed,
            folder=run.folder,
            data=run.options.data,
            profile=run.profile,
            settings=run.settings,
            executor=run.executor,
        )

    @property
    def space(self) -> Space:
        return self.evaluator.space

    @property
    def objectives(self) -> tuple[str, ...]:
        return tuple(self.options.objectives) or self.evaluator.objectives

    def problem(self) -> Problem:
        space, order = self.space, self.evaluator.order(self.options)
        return Problem(space.root, space.costs, self.budget, self.objectives, self.seed, order)

    def run(self, on_open: Callable[[], None] | None = None) -> SearchResult:
        """Searches, or goes on with the journal in the folder.

        Args:
            on_open: Called when all checks before the search have passed.
        """

        def opened() -> None:
            keep_profile(self.profile, self.folder.path if self.folder else None)
            if on_open:
                on_open()

        return self.search(self.options, self.folder.journal if self.folder else None, opened)

    def search(
        self, options: SearchOptions, journal: Path | None, on_open: Callable[[], None] | None = None
    ) -> SearchResult:
        """Searches by any options, with a journal anywhere; a random baseline has others than the search itself."""
        race = self.make_race(options) if options.racing != "none" else None
        racing = {"racing": options.racing} if race else {}
        with self.open_executor(race) as executor:
            return search(
                self.space,
                race or self.evaluator,
                self.space.costs,
                strategy=options.strategy,
                options=options.for_strategy(self.evaluator.evaluations),
                budget=self.budget,
                objectives=self.objectives,
                order=self.evaluator.order(options),
                seed=self.seed,
                journal=journal,
                settings={
                    **self.evaluator.settings(),
                    **racing,
                    **(self.settings or {}),
                    **profile_settings(self.profile),
                },
                on_open=on_open,
                on_candidate=race.observe if race else None,
                quiet=self.quiet,
                executor=executor,
                asynchronous=self.asynchronous(options),
            )

    def make_race(self, options: SearchOptions) -> Race:
        """A race for the candidates of a search; in one without parents, such as a random search, against the best."""
        trained = isinstance(self.evaluator, InheritedEvaluator)
        check_racing(options, self.objectives, trained, self.executor.executor)
        assert isinstance(self.evaluator, InheritedEvaluator)
        subnets = self.evaluator.subnets
        chosen = complete_options(find_strategy(options.strategy), options.for_strategy())
        images, encode, parents = subnets.batches.held_out, self.space.root.encode, chosen.get("parents", 1)
        confidence = CONFIDENCE[options.racing]
        return Race(subnets.outcomes, images, encode, parents, self.seed, confidence, subnets.score)

    def asynchronous(self, options: SearchOptions) -> bool:
        """Whether candidates are bred without waiting for a generation; a random search needs none to wait for."""
        asynchronous = self.executor.asynchronous and options.strategy != "random"
        if asynchronous and not self.quiet:
            say("an asynchronous search: it depends on which worker is fast, so it cannot be repeated exactly")
        return asynchronous

    @contextmanager
    def open_executor(self, race: Race | None = None) -> Iterator[Executor]:
        """This process, or workers that end with the search."""
        if self.executor.executor == "local":
            yield InProcess(race or self.evaluator)
            return
        folder, gpu = self.folder.journal.parent if self.folder else None, self.evaluator.device.type == "cuda"
        pool = RayPool(self.evaluator.job(), self.executor, gpu, folder, self.executor.trial_timeout)
        with closing(pool):
            yield Chunks(pool, self.evaluator.chunk)

    def random_baseline(self, search: SearchResult) -> dict[str, Arch]:
        """The best of a random search with as many candidates, if asked for; else that of the search's random start."""
        if self.options.strategy == "random":
            return {}
        if self.options.baseline == "random":
            again = replace(self.options, strategy="random", options={"evaluations": len(search.candidates)})
            return best_of_random(self.search(again, self.folder.random_journal if self.folder else None))
        return best_of_start(self.problem(), search.candidates)

    def summarise(self, search: SearchResult, trained: Sequence[ModelResult] = ()) -> RunResult:
        """The result: the winner, random archs, the smallest and the largest in the budget, and further baselines.

        Args:
            trained: Models that were trained on their own.
        """
        chosen = choose_winner(self.profile, self.space, search, self.budget, self.folder.path if self.folder else None)
        drawn = self.options.random_references
        others = references(self.space.root, self.space.costs, self.budget, self.seed, drawn)
        others |= self.random_baseline(search)
        costs, classifies = self.space.costs(chosen.arch), self.space.model.task == "classify"
        winner, *rows = self.rows({"winner": chosen.arch, **others})
        return RunResult(
            space=self.space.name,
            data=self.data,
            budget=str(self.budget),
            winner=winner.with_scores(chosen.measured),
            references=[*rows, *trained],
            timm=fitting_timm_models(self.budget, costs["params"], self.space) if classifies else None,
            front=search.front,
            note=search.note,
            latency=chosen.latency,
            **self.evaluator.summary(search),
        )

    def rows(self, archs: Mapping[str, Arch]) -> list[ModelResult]:
        """The archs with their costs and scores, as the result shows them."""
        rows = []
        with progress("winner and references", len(archs), self.quiet) as report:
            for done, (name, arch) in enumerate(archs.items(), 1):
                try:
                    rows.append(self.row(name, arch))
                except Exception as error:
                    if self.executor.executor == "local" or name == "winner":
                        raise
                    # As among candidates: an arch that cannot be evaluated is no reason to lose all others.
                    say(f"{name} could not be evaluated and is left out ({type(error).__name__}: {error})")
                report(done)
        return rows

    def row(self, name: str, arch: Arch) -> ModelResult:
        return ModelResult(name, arch.to_dict(), {**self.space.costs(arch), **self.evaluator.measure(arch)})


# Searches of a run: by the weights that archs inherit from its supernet, or by another evaluator


def search_weights(
    run: Run,
    supernet: Supernet,
    command: RunCommand | SearchCommand,
    trained: Sequence[ModelResult] = (),
    compiled: bool = False,
) -> RunResult:
    """Searches a supernet and publishes the winner with its references.

    Args:
        trained: Models that were trained on their own.
    """
    if compiled:
        supernet.compile()
    arch_search = ArchSearch.of(run, inherited_evaluator(run, supernet), command.search, command.budget())
    with threads_of_training(run.folder.train):
        return search_and_publish(run, arch_search, trained, lambda: warn_of_noise(run, supernet))


def inherited_evaluator(run: Run, supernet: Supernet) -> InheritedEvaluator:
    options = run.options
    return InheritedEvaluator(supernet, run.batches, run.recipe.precision, options.calibration_images, options.seed)


def search_and_publish(
    run: Run, arch_search: ArchSearch, trained: Sequence[ModelResult], on_open: Callable[[], None] | None = None
) -> RunResult:
    """Searches by any evaluator and publishes the winner with its references."""
    result = arch_search.summarise(arch_search.run(on_open), trained)
    run.publish(arch_search.evaluator.model(result.arch), result)
    return result


def open_supernet(run: Run, source: str | None = None) -> Supernet:
    """The supernet to search. What the command leaves open, such as a patch size, is as it was trained."""
    path = supernet_folder(Path(source or run.folder.supernet))
    supernet = load_supernet(path, run.space).to(run.device)
    check_holdout(run.options, path)
    check_options(run.options, run.batches, supernet.space)
    normalize_as(run.batches, RunFolder(path))
    run.trained_on = RunFolder(path).facts("trained_on").get("trained_on", {})
    run.space = supernet.space = replace(supernet.space, predicted=run.space.predicted)
    return supernet


def warn_of_noise(run: Run, supernet: Supernet) -> None:
    """Warns before a search where the held-out images are too few to tell its candidates apart."""
    batches = run.batches
    if objective_of(batches) is not CLASSIFICATION:  # its score is no share of images
        return
    images = count_images(batches)
    if resolution_warning(0.5, images):  # the largest error there can be: no need to measure otherwise
        subnets = inherited_evaluator(run, supernet).subnets
        accuracy = subnets.accuracy(supernet.space.root.largest(), "holdout")
        if warning := resolution_warning(accuracy, images):
            say(f"warning: {warning}")


# The same in Python, without a run


def search_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    *,
    budget: Budget | None = None,
    strategy: str = "evolution",
    options: Mapping[str, Any] | None = None,
    objectives: tuple[str, ...] = (),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: str = "auto",
    quiet: bool = False,
    calibration_images: int = CALIBRATION_IMAGES,
    racing: Racing = "none",
    executor: ExecutorOptions | None = None,
) -> SearchResult:
    """Searches the space by accuracy with inherited weights on the held-out images, never the test set.

    Where there is batch norm, an arch's own statistics are estimated on so many training images first. With `racing`
    candidates that cannot reach the parents are dropped after a part of the images (see `Race`).
    """
    batches = as_batches(data, Recipe(), seed, World(), supernet.device)
    evaluator = InheritedEvaluator(supernet, batches, precision, calibration_images, seed)
    given = complete_options(find_strategy(strategy), options or {})
    chosen = SearchOptions(strategy, racing=racing, objectives=list(objectives), options=given)
    arch_search = ArchSearch(
        evaluator,
        budget or Budget(),
        chosen,
        seed,
        settings=settings,
        quiet=quiet,
        executor=executor or ExecutorOptions(),
    )
    with search_threads(evaluator, supernet.device.type):
        return arch_search.search(chosen, Path(journal) if journal else None)


def search_threads(evaluator: Evaluator, device: str) -> AbstractContextManager[None]:
    """Context with one CPU thread or all of them, whichever judges an arch faster; a number chosen before stays."""
    if device != "cpu" or threads_are_fixed():
        return nullcontext()
    return cpu_threads(fastest_threads(lambda: evaluator(evaluator.space.root.smallest())))


def search_training_free(
    scorer: Scorer,
    *,
    budget: Budget | None = None,
    strategy: str = "random",
    options: Mapping[str, Any] | None = None,
    objectives: tuple[str, ...] = (),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    executor: ExecutorOptions | None = None,
) -> SearchResult:
    """The best arch in the budget by one proxy, or by the ranks that several give it together (as AZ-NAS does).

    TF-TAS is ``Scorer(space, "dss")`` with ``options={"evaluations": 8000}`` and a window of parameters.

    Args:
        objectives: Proxies and costs to raise or, with a minus, to lower, as a Pareto front; none: the proxies' ranks,
            or for "cyclic" the two proxies in the order given, first the topology's and then the size's.

    >>> import nasformer
    >>> scorer = Scorer(nasformer.get_space("autoformer-micro", img_size=16), "dss")
    >>> result = search_training_free(
    ...     scorer, budget=Budget(max_params=100_000), options={"evaluations": 8}, quiet=True
    ... )
    >>> result.best.scores["dss"] == max(candidate.scores["dss"] for candidate in result.candidates)
    True
    """
    given = complete_options(find_strategy(strategy), options or {})
    chosen = SearchOptions(strategy, objectives=list(objectives), options=given)
    arch_search = ArchSearch(
        UntrainedEvaluator(scorer),
        budget or Budget(),
        chosen,
        seed,
        settings=settings,
        quiet=quiet,
        executor=executor or ExecutorOptions(),
    )
    return arch_search.search(chosen, Path(journal) if journal else None)


def check_search(
    space: Space,
    options: SearchOptions,
    budget: Budget,
    seed: int,
    usual: tuple[str, ...] = InheritedEvaluator.objectives,
) -> Strategy:
    """Raises now what the search of a supernet would raise after a long training; returns the untouched strategy."""
    check_satisfiable(space.root, space.costs, budget.windows())
    objectives = tuple(options.objectives) or usual
    check_racing(options, objectives, trained=True)
    problem = Problem(space.root, space.costs, budget, objectives, seed)
    problem.point({**dict.fromkeys((*usual, "loss"), 0.0), **space.costs(space.root.smallest())})
    strategy = find_strategy(options.strategy)
    return strategy(problem, **complete_options(strategy, options.for_strategy()))
