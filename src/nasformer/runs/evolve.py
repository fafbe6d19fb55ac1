"""The search of a search space (S3) in a run folder. Killed anywhere, it goes on where it stopped.

RUN/steps/0, 1, ...    each space in an ordinary run folder: train/, supernet/, search/journal.jsonl of its samples
RUN/evolution.json     the error of each space and how its dimensions moved; whole after every step
RUN/report.html        the same in pictures, with plots/, spaces.csv and dimensions.csv
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.models.space import Space
from nasformer.models.storage import fingerprint
from nasformer.report.page import write_report
from nasformer.results.contents import EvolutionStep, read_evolution
from nasformer.results.folder import RunFolder
from nasformer.runs.base import Run, open_run
from nasformer.runs.options import EvolveCommand, RunCommand
from nasformer.runs.search import ArchSearch, check_search, inherited_evaluator, open_supernet
from nasformer.search.journal import read_candidates
from nasformer.search.options import SearchOptions
from nasformer.search.problem import Candidate
from nasformer.space.budget import sample_feasible
from nasformer.space_search import evolve
from nasformer.supernet.storage import Carried, carry_over, load_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.train.recipe import Recipe
from nasformer.utils.files import read_json, write_json


def evolve_run(command: EvolveCommand, on_step: Callable[[int, EvolutionStep], None]) -> RunFolder | None:
    """Trains, judges and shifts, space by space; the folder, in the main process.

    Args:
        on_step: Called with the number of each space that is finished, and what it came to.
    """
    with open_run(command, "evolution") as run:
        spaces, steps, path = SpaceEvaluator(run, command), list[EvolutionStep](), run.folder.evolution
        finished = len(read_evolution(path).steps) if path.exists() else 0
        before = read_json(path) if finished else None
        try:
            for number, step in enumerate(evolve(run.space, spaces.judge, command.evolve)):
                steps.append(EvolutionStep(**vars(step), carried=spaces.carried))
                if run.world.main:
                    write_evolution(path, command, steps)
                    if len(steps) > finished:  # a run that only catches up may yet be refused
                        write_report(run.folder.path)
                    on_step(number, steps[-1])
            if run.world.main and len(steps) <= finished:
                write_report(run.folder.path)
        except UserError:
            if before and run.world.main:  # what is refused, such as other options than before, takes nothing away
                write_json(path, before)
            raise
    return run.folder if run.world.main else None


def write_evolution(path: Path, command: EvolveCommand, steps: Sequence[EvolutionStep]) -> None:
    """Writes the steps so far. A run that only catches up takes nothing away from what an earlier one wrote."""
    records = [step.to_dict() for step in steps]
    header: dict[str, Any] = {"data": command.data, "budget": str(command.budget()), "options": asdict(command.evolve)}
    before = read_json(path) if path.exists() else {}
    earlier: list[Any] = before.get("steps", [])
    if before != {**header, "steps": [*records, *earlier[len(records) :]]}:
        write_json(path, {**header, "steps": records})


class SpaceEvaluator:
    """Judges a space by the ordinary means of a run: a supernet, trained, and random archs within the budget."""

    def __init__(self, run: Run, command: EvolveCommand) -> None:
        self.run, self.command = run, command
        self.search = SearchOptions(strategy="random", options={"evaluations": command.evolve.samples})
        self.carried: Carried | None = None
        """How much of the last supernet came from the one before."""

    def judge(self, space: Space, number: int) -> list[Candidate]:
        stage, recipe = self.stage(number, space), self.recipe(number)
        recording = stage.folder.recording("supernet", self.equivalent(recipe), space.name)
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

    def equivalent(self, recipe: Recipe) -> RunCommand:
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
        """Before a long training: there must be archs within the budget."""
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
        supernet = open_supernet(stage)
        if self.command.train.compile is True:
            supernet.compile()
        ArchSearch.of(stage, inherited_evaluator(stage, supernet), self.search, self.command.budget()).run()
