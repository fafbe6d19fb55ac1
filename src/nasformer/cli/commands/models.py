"""The commands for one model: retrain, finetune, extract and evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nasformer.cli.commands.common import chosen_space, print_json
from nasformer.cli.config import EvaluateCommand, ExtractCommand, FinetuneCommand, RetrainCommand
from nasformer.errors import UserError
from nasformer.runs import folder as folders
from nasformer.runs import run as pipeline
from nasformer.runs import single as finetuning
from nasformer.runs import single as retraining
from nasformer.runs.beside import check_baselines
from nasformer.runs.ship import places, ship
from nasformer.search.budget import format_quantity

WORST = 3


def retrain(command: RetrainCommand, as_json: bool) -> None:
    command = retraining.settled(command)
    if not command.arch:
        raise UserError("say what to retrain: nasformer retrain RUN, or --space SPACE --arch ARCH")
    arch = chosen_space(command).arch(command.arch)
    with pipeline.open_run(command) as run:
        check_baselines(run, command.baseline)
        summary = retraining.retrain(run, arch, command.train, command.baseline)
        if command.export and run.world.main:
            ship(run.folder)
    if run.world.main:
        print_json(summary) if as_json else print_trained(summary["winner"], run.folder, summary["references"])


def finetune(command: FinetuneCommand, as_json: bool) -> None:
    if not command.run:
        raise UserError("say whose weights to start from: nasformer finetune RUN --data DATA --out NEW")
    heritage = finetuning.find_heritage(command)
    command = finetuning.settled_weights(command, heritage)
    with pipeline.open_run(command) as run:
        summary = finetuning.finetune(run, heritage, command.train)
        if command.export and run.world.main:
            ship(run.folder)
    if run.world.main:
        print_json(summary) if as_json else print_trained(summary["winner"], run.folder)


def print_trained(model: dict[str, Any], folder: Path, references: Sequence[dict[str, Any]] = ()) -> None:
    for found in (model, *references):
        costs = f"{format_quantity(found['params'])} parameters, {format_quantity(found['macs'])} MACs"
        held_out = f", held-out {found['holdout_accuracy']:.2%}" if "holdout_accuracy" in found else ""
        print(f"{found['name']}: {costs}, test {found['test_accuracy']:.2%}{held_out}")
    print(places(folder))


def extract(command: ExtractCommand, as_json: bool) -> None:
    from nasformer.families.storage import save_model

    if not command.run or not command.to:
        raise UserError("say what to extract from and where to: nasformer extract RUN --to FOLDER")
    space = chosen_space(command) if command.space else None
    supernet = folders.find_supernet(Path(command.run), space)
    arch = supernet.space.arch(command.arch) if command.arch else folders.winner(Path(command.run))
    facts = folders.facts_of(Path(command.run), "mean", "std", "classes", "preprocessing", "trained_on")
    save_model(folders.cut(supernet, arch), command.to, space=supernet.space.name, **facts)
    costs = supernet.space.costs(arch)
    if as_json:
        return print_json({"folder": command.to, "arch": arch.to_dict(), **costs})
    print(f"{command.to}: {format_quantity(costs['params'])} parameters, {format_quantity(costs['macs'])} MACs")
    return None


def evaluate(command: EvaluateCommand, as_json: bool) -> None:
    if not command.model:
        raise UserError("say which model: nasformer evaluate FOLDER --data DATA")
    found = folders.evaluate_folder(command)
    if command.out:
        from nasformer.report.confusion import write_confusion

        write_confusion(found, Path(command.out), model=command.model, data=command.data, split=command.split)
    if as_json:
        return print_json({**found.scores, "worst": [asdict(one) for one in found.worst(WORST)]})
    print(f"{command.split}: top-1 {found.scores['accuracy']:.2%}, top-5 {found.scores['top5']:.2%}")
    print("worst: " + ", ".join(f"{one.name} {one.accuracy:.2%} of {one.images}" for one in found.worst(WORST)))
    return None
