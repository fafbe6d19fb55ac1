"""A run from start to end: train a supernet, search it, finish and export the winner.

`run_supernet` is `nasformer run`; `train_run`, `search_run` and `training_free_run` are its parts and its variant
without training; `evolve_run` does the first two for one space after the other. Each stage goes on where a killed run
stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from nasformer.data.files import USUAL_SIZE
from nasformer.data.loaders import BatchSource
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.errors import UserError
from nasformer.latency.search import with_profile
from nasformer.models.registry import SpaceOptions
from nasformer.models.space import Space
from nasformer.models.storage import fingerprint
from nasformer.proxies.scoring import Scorer
from nasformer.report.page import write_report
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.runs.base import Run, check_before_images, command_space, fit_to_data, load_batches, open_run, publish
from nasformer.runs.baselines import check_baselines, train_baselines
from nasformer.runs.finish import finish_recipes, finish_winner, ship, supernet_starts
from nasformer.runs.options import EvolveCommand, RunCommand, SearchCommand, TrainCommand
from nasformer.runs.search import (
    ArchSearch,
    UntrainedEvaluator,
    check_search,
    inherited_evaluator,
    open_supernet,
    search_weights,
)
from nasformer.runs.tracking import tracking
from nasformer.search.journal import read_candidates
from nasformer.search.options import SearchOptions
from nasformer.search.problem import Candidate, Problem
from nasformer.search.strategy import Strategy
from nasformer.space.budget import sample_feasible
from nasformer.space_search import Step, evolve, read_evolution
from nasformer.supernet.storage import Carried, carry_over, load_supernet
from nasformer.supernet.supernet import Supernet, has_batch_norm
from nasformer.tasks.registry import space_for
from nasformer.train.evaluate import objective_of
from nasformer.train.log import TrainLog
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, choose_device
from nasformer.utils.files import read_json, write_json
from nasformer.utils.progress import run_stages


def run_supernet(command: RunCommand) -> RunResult | None:
    """Trains a supernet, searches it, finishes and exports the winner; the result, in the main process."""
    with open_run(command, "supernet") as run:
        run.measure_profile(command)
        with stages(run, command, command.train, finish_recipes(command.finish, command.train)):
            run.train(command.train)
            trained = train_baselines(run, command.baseline, command.train)
            if not run.world.main:
                return None
            supernet = open_supernet(run)
            result = search_weights(run, supernet, command, trained, compiled=command.train.compile is True)
            result = finish_winner(run, result, supernet_starts(run, supernet, result, command.finish, command.train))
        if command.export:
            ship(run.folder)
    return result


def train_run(command: TrainCommand) -> tuple[Run, float]:
    """Trains a supernet; returns the run and the last loss."""
    with open_run(command, "supernet") as run:
        run.train(command.train)
        return run, TrainLog.last_loss(run.folder.log)


def search_run(command: SearchCommand) -> RunResult | None:
    """Searches the supernet that a run folder has, or another one; the result, in the main process."""
    command = replace(command, data=command.data or "digits")
    with open_run(command, "supernet") as run:
        if not run.world.main:
            return None
        run.use_profile(command, command.search.objectives)
        return search_weights(run, open_supernet(run, command.supernet), command, compiled=command.compile)


def training_free_run(command: SearchCommand) -> RunResult:
    """Searches untrained archs by proxies; in a run folder, a killed search resumes."""
    space, device = space_for(command_space(command), command), choose_device(command.device).type
    command = command.with_shares(command.source_costs(space))
    check_before_images(command, space, device)
    scorer = make_scorer(command, space)
    scorer.space, profile = with_profile(scorer.space, command, command.search.objectives, device)
    folder = RunFolder(command.out) if command.out else None
    arch_search = ArchSearch(
        UntrainedEvaluator(scorer),
        command.budget(),
        command.search,
        seed=command.seed,
        folder=folder,
        data=command.data or None,
        profile=profile,
        settings={"data": command.data},
        executor=command,
    )
    if folder is None:
        return arch_search.summarise(arch_search.run())
    folder.check_own("training-free")
    recording = folder.recording("training-free", command, scorer.space.name)
    with folder.lock(), recording, tracking(folder, command.track):
        result = arch_search.summarise(arch_search.run())
        publish(folder, result)
    return result


class ScoringCommand(Protocol):
    """A command that scores archs by proxies."""

    proxy: str
    data: str
    seed: int
    device: str
    probe_size: int

    def probing(self) -> Mapping[str, Any]: ...


def make_scorer(command: ScoringCommand, space: Space) -> Scorer:
    """The scorer that a command asks for; where data is named, the space is fitted to it."""
    device, batches = choose_device(command.device), None
    if command.data:
        # Images keep their size, unless another was asked for, by an option or in a table.
        img_size = command.img_size if isinstance(command, SpaceOptions) else space.options.get("img_size")
        batches = probe_batches(command, img_size, device)
        space = fit_to_data(space, batches, command)
    return Scorer(space, command.proxy, batches=batches, seed=command.seed, device=device, **command.probing())


def probe_batches(command: ScoringCommand, img_size: int | None, device: torch.device) -> BatchSource:
    """Plain training images, shuffled, without augmentation."""
    plain = Recipe(batch_size=command.probe_size, augment=AugmentOptions(crop="none", hflip=0.0, smoothing=0.0))
    options = DataOptions(data=command.data, seed=command.seed)
    if isinstance(command, DataOptions):
        options = replace(options, data_root=command.data_root, download=command.download, max_bad=command.max_bad)
    return load_batches(options, plain, World(), device, img_size, usual_size=USUAL_SIZE)


# The work of a run's stages in MACs, by which progress tells the remaining time of the whole run


def stages(
    run: Run,
    command: RunCommand,
    recipe: Recipe,
    finish: Mapping[str, Recipe],
    before: Mapping[str, float] | None = None,
) -> AbstractContextManager[None]:
    """Context in which progress tells the time left in all stages; first refuses a search or baselines that would fail.

    Args:
        recipe: The supernet's.
        finish: Recipes of the winner's training in the end, by name.
        before: Work of what is trained ahead of the supernet, by label.
    """
    usual = (objective_of(run.batches).score,)
    strategy = check_search(run.space, command.search, command.budget(), run.options.seed, usual)
    next(iter(run.batches.evaluation("holdout", 1)))  # without held-out images there is nothing to search by
    baselines = check_baselines(run, command.baseline)
    judged = run.batches.held_out + (run.options.calibration_images if has_batch_norm(run.space) else 0)
    work = supernet_work(recipe, run.batches, strategy, baselines, finish, judged)
    return run_stages({**(before or {}), **work})


TRAINING = 3
"""Forward passes that a training image costs: backward takes two more."""


def typical_macs(problem: Problem) -> tuple[float, float]:
    """MACs midway between the smallest and the largest arch of a space, and those of an arch within the budget."""
    ends = [problem.costs(arch)["macs"] for arch in (problem.node.smallest(), problem.node.largest())]
    return sum(ends) / 2, problem.costs(problem.sample(problem.rng("stages")))["macs"]


def training_work(recipe: Recipe, steps_per_epoch: int, macs: float) -> float:
    """Work of training a net of this many MACs; a sandwich trains several nets in a step."""
    nets = 2 + recipe.sandwich if recipe.sandwich else 1
    return TRAINING * nets * macs * recipe.batch_size * recipe.total_steps(steps_per_epoch)


def supernet_work(
    recipe: Recipe,
    batches: BatchSource,
    strategy: Strategy,
    baselines: Mapping[str, Mapping[str, int]],
    finish: Mapping[str, Recipe],
    judged: int,
) -> dict[str, float]:
    """Work of the stages from the supernet's training on, by the labels of their progress.

    Args:
        strategy: That of the search.
        baselines: Costs of the timm models that are trained beside it.
        finish: Recipes by which the winner is trained in the end.
        judged: Images that a candidate of the search sees: those held out, and those of its batch norm.
    """
    macs, winner_macs = typical_macs(strategy.problem)
    single, steps = next(iter(finish.values()), recipe), batches.steps_per_epoch
    return {
        "supernet": training_work(recipe, steps, macs),
        **{f"baseline {name}": training_work(single, steps, cost["macs"]) for name, cost in baselines.items()},
        "search": strategy.evaluations * judged * winner_macs,
        **{f"winner, {name}": training_work(last, steps, winner_macs) for name, last in finish.items()},
    }


# The search of a search space (S3). Killed anywhere, it goes on where it stopped.
#
# RUN/steps/0, 1, ...    each space in an ordinary run folder: train/, supernet/, search/journal.jsonl of its samples
# RUN/evolution.json     the error of each space and how its dimensions moved; whole after every step
# RUN/report.html        the same in pictures, with plots/, spaces.csv and dimensions.csv


def evolve_run(command: EvolveCommand, on_step: Callable[[int, Step], None]) -> RunFolder | None:
    """Trains, judges and shifts space after space; returns the folder in the main process.

    Args:
        on_step: Called with the number and the record of each finished space.
    """
    with open_run(command, "evolution") as run:
        spaces, steps, path = SpaceEvaluator(run, command), list[Step](), run.folder.evolution
        finished = len(read_evolution(path).steps) if path.exists() else 0
        with unchanged_if_refused(path) if run.world.main else nullcontext():
            for number, step in enumerate(evolve(run.space, spaces.judge, command.evolve)):
                steps.append(replace(step, carried=spaces.carried))
                if run.world.main:
                    write_evolution(path, command, steps)
                    if len(steps) > finished:  # a run that only catches up may yet be refused
                        write_report(run.folder.path)
                    on_step(number, steps[-1])
            if run.world.main and len(steps) <= finished:
                write_report(run.folder.path)
    return run.folder if run.world.main else None


@contextmanager
def unchanged_if_refused(path: Path) -> Iterator[None]:
    """Context that leaves a JSON file as it was where a run is refused, such as for other options than before."""
    before = read_json(path) if path.exists() else None
    try:
        yield
    except UserError:
        if before is not None:
            write_json(path, before)
        raise


def write_evolution(path: Path, command: EvolveCommand, steps: Sequence[Step]) -> None:
    """Writes the steps so far. A run that only catches up takes nothing away from what an earlier one wrote."""
    records = [step.to_dict() for step in steps]
    header: dict[str, Any] = {"data": command.data, "budget": str(command.budget()), "options": asdict(command.evolve)}
    before = read_json(path) if path.exists() else {}
    earlier: list[Any] = before.get("steps", [])
    if before != {**header, "steps": [*records, *earlier[len(records) :]]}:
        write_json(path, {**header, "steps": records})


class SpaceEvaluator:
    """Judges a space as a run does: trains a supernet, and evaluates random archs within the budget."""

    def __init__(self, run: Run, command: EvolveCommand) -> None:
        self.run, self.command = run, command
        self.search = SearchOptions(strategy="random", options={"evaluations": command.evolve.samples})
        self.carried: Carried | None = None
        """How much of the last supernet came from the one before."""

    def judge(self, space: Space, number: int) -> list[Candidate]:
        """Random candidates of a space with their accuracies, by a supernet that is trained for it."""
        stage, recipe = self.stage(number, space), self.recipe(number)
        recording = stage.folder.recording("supernet", self.equivalent_command(recipe), space.name)
        with recording if stage.world.main else nullcontext():
            stage.use_profile(self.command)
            self.check(stage, number)
            supernet, origin = self.start(stage, number)
            stage.train(recipe, supernet, **origin)
            if stage.world.main:
                self.sample(stage)
        stage.world.wait_for_main()
        candidates = read_candidates(stage.folder.journal)[1]  # which all processes can
        return [candidate for candidate in candidates if "failures" not in candidate.scores]

    def stage(self, number: int, space: Space) -> Run:
        return self.run.inside(f"steps/{number}", space)

    def equivalent_command(self, recipe: Recipe) -> RunCommand:
        """The command that would do the same with a single space."""
        common = {item.name for item in fields(RunCommand)} & {item.name for item in fields(EvolveCommand)}
        options = {name: getattr(self.run.options, name) for name in common}
        return RunCommand(**options | {"train": recipe, "search": self.search, "export": False})

    def recipe(self, number: int) -> Recipe:
        further = self.command.evolve.further_epochs
        if not number or further is None:
            return self.command.train
        return replace(self.command.train, epochs=further, iterations=None)

    def check(self, stage: Run, number: int) -> None:
        """Refuses a space without archs within the budget, before a long training."""
        budget = self.command.budget()
        try:
            check_search(stage.space, self.search, budget, stage.options.seed)
            next(iter(stage.batches.evaluation("holdout", 1)))
            sample_feasible(stage.space.root, random.Random(0), stage.space.costs, budget.windows())
        except UserError as error:
            if not number:
                raise
            raise UserError(f"step {number} of the evolution led to {stage.space.name}, where {error}") from None

    def start(self, stage: Run, number: int) -> tuple[Supernet, dict[str, Any]]:
        """The supernet to train, and for all spaces but the first where its weights come from."""
        supernet, self.carried = Supernet(stage.space, stage.options.seed), None
        if not number:
            return supernet, {}
        if not self.command.evolve.carry:
            return supernet, {"start": None}
        before = load_supernet(self.stage(number - 1, stage.space).folder.supernet)
        self.carried = carry_over(before, supernet)
        return supernet, {"start": fingerprint(before)}

    def sample(self, stage: Run) -> None:
        """Evaluates random archs by the stage's supernet; they are in its journal."""
        supernet = open_supernet(stage)
        if self.command.train.compile is True:
            supernet.compile()
        ArchSearch.of(stage, inherited_evaluator(stage, supernet), self.search, self.command.budget()).run()
