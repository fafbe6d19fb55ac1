"""The evolution of a space in a run folder. Killed anywhere, it goes on where it stopped.

RUN/steps/0, 1, ...    each space in an ordinary run folder: train/, supernet/, search/journal.jsonl of its samples
RUN/evolution.json     what was found of each space, and how its dimensions moved; whole after every step
RUN/report.html        the same in pictures, with plots/, spaces.csv and dimensions.csv
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from nasformer.agreement import fingerprint
from nasformer.config import EvolveCommand, RunCommand
from nasformer.errors import UserError
from nasformer.evolving.evolve import evolve
from nasformer.evolving.steps import rounded
from nasformer.families import Space
from nasformer.files import read_json, write_json
from nasformer.noting import noted_in
from nasformer.options import SearchOptions
from nasformer.pipeline import Run
from nasformer.recipe import Recipe
from nasformer.search import Candidate, read_journal
from nasformer.space import sample_feasible
from nasformer.supernet import Supernet, load_supernet
from nasformer.supernet.carry import carry_over

EVOLUTION, JOURNAL = "evolution.json", "journal.jsonl"


def evolve_run(run: Run, command: EvolveCommand) -> Iterator[dict[str, Any]]:
    """Trains, judges and shifts, space by space; gives the record of each that is finished."""
    from nasformer.report import write_report

    runs, records, path = StepRuns(run, command), list[dict[str, Any]](), run.folder / EVOLUTION
    before = read_json(path) if path.exists() else None
    known = len((before or {}).get("steps", []))
    try:
        for step in evolve(run.space, runs.judge, command.evolve):
            records.append({**step.to_dict(), "carried": runs.carried})
            if run.world.main:
                write_evolution(path, command, records)
                if len(records) > known:  # a run that only catches up may yet be refused
                    write_report(run.folder)
            yield records[-1]
        if run.world.main and len(records) <= known:
            write_report(run.folder)
    except UserError:
        if before and run.world.main:  # what is refused, such as other options than before, takes nothing away
            write_json(path, before)
        raise


def write_evolution(path: Path, command: EvolveCommand, records: list[dict[str, Any]]) -> None:
    """Writes what is known. A run that only catches up takes nothing away from what an earlier one wrote."""
    told: dict[str, Any] = {"data": command.data, "budget": str(command.budget()), "options": asdict(command.evolve)}
    before = read_json(path) if path.exists() else {}
    known: list[Any] = before.get("steps", [])
    if before != {**told, "steps": [*records, *known[len(records) :]]}:
        write_json(path, {**told, "steps": records})


class StepRuns:
    """Judges a space by the ordinary means of a run: a supernet, trained, and random archs within the budget."""

    def __init__(self, run: Run, command: EvolveCommand) -> None:
        self.run, self.command = run, command
        self.search = SearchOptions(strategy="random", evaluations=command.evolve.samples)
        self.carried: dict[str, Any] | None = None
        """How much of the last supernet came from the one before."""

    def judge(self, space: Space, number: int) -> list[Candidate]:
        stage, recipe = self.stage(number, space), self.recipe(number)
        with noted_in(stage.folder, self.equivalent(recipe), space) if stage.world.main else nullcontext():
            stage.use_profile(self.command)
            self.check(stage, number)
            supernet, origin = self.start(stage, number)
            stage.train(recipe, supernet, **origin)
            if stage.world.main:
                self.sample(stage)
        stage.world.wait_for_main()
        _, records = read_journal(stage.folder / "search" / JOURNAL)  # which all processes can
        return [Candidate.from_dict(record) for record in records]

    def stage(self, number: int, space: Space) -> Run:
        return self.run.inside(f"steps/{number}", space)

    def equivalent(self, recipe: Recipe) -> RunCommand:
        """The command that would do the same with a single space."""
        common = {one.name for one in fields(RunCommand)} & {one.name for one in fields(EvolveCommand)}
        told = {name: getattr(self.run.config, name) for name in common}
        return RunCommand(**told | {"train": recipe, "search": self.search, "export": False})

    def recipe(self, number: int) -> Recipe:
        further = self.command.evolve.further_epochs
        if not number or further is None:
            return self.command.train
        return replace(self.command.train, epochs=further, iterations=None)

    def check(self, stage: Run, number: int) -> None:
        """Before a long training: there must be archs within the budget."""
        budget = self.command.budget()
        try:
            stage.check_search(self.search, budget)
            sample_feasible(stage.space.root, random.Random(0), stage.space.costs, budget.windows())
        except UserError as error:
            if not number:
                raise
            raise UserError(f"step {number} of the evolution led to {stage.space.name}, where {error}") from None

    def start(self, stage: Run, number: int) -> tuple[Supernet, dict[str, Any]]:
        """The supernet to train, and for all spaces but the first where its weights come from."""
        supernet, self.carried = Supernet(stage.space, stage.config.seed), None
        if not number:
            return supernet, {}
        if not self.command.evolve.carry:
            return supernet, {"start": None}
        before = load_supernet(self.stage(number - 1, stage.space).supernet_folder)
        self.carried = rounded(asdict(carry_over(before, supernet)))
        return supernet, {"start": fingerprint(before)}

    def sample(self, stage: Run) -> None:
        supernet = stage.load_supernet()
        if self.command.train.compile:
            supernet.compile()
        stage.search(supernet, self.search, self.command.budget(), JOURNAL)
