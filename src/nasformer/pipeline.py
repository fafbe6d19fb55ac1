"""The whole job in a run folder: train, search, extract, report. Each stage goes on where a killed run stopped.

RUN/config.json            what was asked, and the versions that did it
RUN/train/                 log.jsonl, checkpoints/
RUN/supernet/              the trained supernet
RUN/search/journal.jsonl   every candidate
RUN/result.json            the winner beside its references
RUN/model/                 the winner as an ordinary model
RUN/plots/, RUN/report.html
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import timm
import torch

import nasformer
from nasformer.config import DataConfig, EvaluateCommand, RunCommand, SearchCommand, SearchOptions, TrainCommand
from nasformer.data import Batches, BatchSource, StreamingFolder, load_data
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.export import load_model, save_model
from nasformer.families import Space, get_space, list_spaces
from nasformer.files import locked, read_json, write_json
from nasformer.recipe import Recipe
from nasformer.search import Budget, SearchResult
from nasformer.space import Arch, Window, sample_feasible
from nasformer.supernet import Supernet, load_supernet, save_supernet
from nasformer.train.distributed import World, join_world
from nasformer.train.evaluate import evaluate
from nasformer.train.log import TrainLog
from nasformer.train.supernets import search_supernet, train_supernet


class Run:
    """One run folder and the work in it."""

    def __init__(self, folder: Path, config: DataConfig, space: Space, recipe: Recipe, world: World) -> None:
        self.folder, self.config, self.recipe, self.world = folder, config, recipe, world
        self.device = choose_device(config.device)
        self.batches = load_batches(config, recipe, world, self.device, space.options.get("img_size"))
        self.space = fit_to_data(space, self.batches, config)
        self.supernet_folder = folder / "supernet"

    @property
    def settings(self) -> dict[str, Any]:
        """What every stage's result depends on."""
        options = {name: value for name, value in self.space.options.items() if not callable(value)}
        return {"data": self.config.data, "holdout": self.config.holdout, "options": options}

    def train(self, recipe: Recipe) -> None:
        """The supernet, trained; a finished one is left as it is."""
        supernet = Supernet(self.space, self.config.seed).to(self.device)
        train_supernet(
            supernet,
            self.batches,
            recipe,
            folder=self.folder / "train",
            seed=self.config.seed,
            settings=self.settings,
        )
        if self.world.main:
            save_supernet(supernet, self.supernet_folder)
        self.world.barrier()

    def last_loss(self) -> float:
        return TrainLog.read(self.folder / "train" / "log.jsonl")[-1]["loss"]

    def load_supernet(self, source: str | None = None) -> Supernet:
        return load_supernet(source or self.supernet_folder, self.space).to(self.device)

    def search(self, supernet: Supernet, options: SearchOptions, budget: Budget) -> SearchResult:
        return search_supernet(
            supernet,
            self.batches,
            budget=budget,
            strategy=options.strategy,
            options=options.options(),
            objectives=tuple(options.objectives),
            seed=self.config.seed,
            journal=self.folder / "search" / "journal.jsonl",
            settings=self.settings,
        )

    def summarise(self, supernet: Supernet, result: SearchResult, budget: Budget) -> dict[str, Any]:
        """Tests the winner beside a random arch, the smallest and the largest in the budget; writes it all down."""
        rivals = references(self.space, budget, self.config.seed)
        summary: dict[str, Any] = {
            "space": self.space.name,
            "data": self.config.data,
            "budget": str(budget),
            "winner": self.row("winner", supernet, result.best.arch),
            "references": [self.row(name, supernet, arch) for name, arch in rivals.items()],
            "front": [one.to_dict() for one in result.front],
            "note": result.note,
        }
        model = supernet.extract(result.best.arch).eval()
        save_model(
            model, self.folder / "model", space=self.space.name, test_accuracy=summary["winner"]["test_accuracy"]
        )
        write_json(self.folder / "result.json", summary)
        from nasformer.report import write_report

        write_report(self.folder)
        return summary

    def row(self, name: str, supernet: Supernet, arch: Arch) -> dict[str, Any]:
        precision = self.recipe.precision
        held_out = evaluate(supernet, self.batches, "holdout", arch=arch, precision=precision)
        test = evaluate(supernet, self.batches, "test", arch=arch, precision=precision)
        accuracies = {"holdout_accuracy": held_out["accuracy"], "test_accuracy": test["accuracy"]}
        return {"name": name, "arch": arch.to_dict(), **self.space.costs(arch), **accuracies}


@contextmanager
def open_run(command: TrainCommand | SearchCommand | RunCommand) -> Iterator[Run]:
    """The run folder of a command, which no other process may use meanwhile."""
    if not command.out:
        raise UserError("say where the run's folder shall be: --out runs/NAME")
    folder = Path(command.out)
    world = join_world(choose_device(command.device))
    space = asked_space(command, folder)
    recipe = getattr(command, "train", None) or Recipe()
    with locked(folder / ".lock", needed=world.main):
        run = Run(folder, command, space, recipe, world)
        if world.main:
            note_config(folder, command, run.space)
        yield run


def asked_space(command: TrainCommand | SearchCommand | RunCommand, folder: Path) -> Space:
    """The space that was named, or the one that the folder's supernet has."""
    if command.space:
        return get_space(command.space, **command.model_options())
    if (folder / "supernet").is_dir():
        return load_supernet(folder / "supernet").space
    raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")


def load_batches(
    config: DataConfig, recipe: Recipe, world: World, device: torch.device, img_size: int | None
) -> BatchSource:
    """The data on this process's device; img_size None keeps the images as large as they are."""
    place: dict[str, Any] = {"rank": world.rank, "world": world.size, "device": device, "repeats": recipe.repeats}
    holdout = int(config.holdout) if config.holdout > 1 else config.holdout
    if config.stream:
        return StreamingFolder(
            config.data,
            recipe.augment,
            recipe.batch_size,
            config.seed,
            **place,
            img_size=img_size or 224,
            holdout=holdout,
            workers=config.workers,
        )
    data = load_data(config.data, holdout=holdout, seed=config.seed, img_size=img_size)
    return Batches(data, recipe.augment, recipe.batch_size, config.seed, **place)


def fit_to_data(space: Space, batches: BatchSource, config: Any) -> Space:
    """The space for these images: size, channels and classes are the data's."""
    found = {"img_size": batches.img_size, "in_chans": batches.in_chans, "num_classes": batches.num_classes}
    for name in ("in_chans", "num_classes"):
        asked = getattr(config, name, None)
        if asked is not None and asked != found[name]:
            raise UserError(f"{config.data} has {name} {found[name]}, not {asked}; leave --{name} out")
    return space.with_options(**found)


def references(space: Space, budget: Budget, seed: int) -> dict[str, Arch]:
    """What the winner must beat: a random arch, and the cheapest and the dearest within the budget."""
    windows = budget.windows()
    drawn = [sample_feasible(space.root, Random(f"{seed} reference {k}"), space.costs, windows) for k in range(200)]
    return {
        "random": drawn[0],
        "smallest": extreme(space, windows, drawn, largest=False),
        "largest": extreme(space, windows, drawn, largest=True),
    }


def extreme(space: Space, windows: list[Window], drawn: list[Arch], largest: bool) -> Arch:
    """The cheapest or dearest arch in the budget that single steps reach from the ends and a sample of it."""
    sign = -1 if largest else 1

    def fits(arch: Arch) -> bool:
        costs = space.costs(arch)
        return all(window.excess(costs) == 0 for window in windows)

    def price(arch: Arch) -> int:
        return sign * space.cost(arch).params

    ends = [space.root.largest(), space.root.smallest()]
    best = min([arch for arch in ends if fits(arch)] + drawn, key=price)
    while better := [arch for arch in space.root.neighbours(best) if fits(arch) and price(arch) < price(best)]:
        best = min(better, key=price)
    return best


def note_config(folder: Path, command: Any, space: Space) -> None:
    """Adds what a command was told to the folder's config.json."""
    path = folder / "config.json"
    config = read_json(path) if path.exists() else {}
    asked = {name: value for name, value in asdict(command).items() if name not in ("out", "config")}
    versions = {"nasformer": nasformer.__version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "timm": timm.__version__}
    limits = {name: value for name, value in asked.items() if name.startswith(("min_", "max_")) and value is not None}
    write_json(path, {**config, **asked, "space": space.name, "budget": limits, "versions": versions})


def find_supernet(path: Path, space: Space | None = None) -> Supernet:
    """The supernet of a run folder, of a supernet folder, or in a file of weights."""
    return load_supernet(path / "supernet" if (path / "supernet").is_dir() else path, space)


def winner(folder: Path) -> Arch:
    if not (folder / "result.json").exists():
        raise UserError(f"{folder} has no search result yet; search it first, or name an architecture with --arch")
    return Arch.from_dict(read_json(folder / "result.json")["winner"]["arch"])


def evaluate_folder(command: EvaluateCommand) -> dict[str, float]:
    device, path = choose_device(command.device), Path(command.model)
    if command.arch or (path / "supernet").is_dir():
        supernet = find_supernet(path)
        model = supernet.extract(supernet.space.arch(command.arch) if command.arch else winner(path))
    else:
        model = load_model(path)
    batches = load_batches(command, Recipe(), World(), device, model.options["img_size"])
    if batches.num_classes != model.num_classes:
        raise UserError(f"{path} knows {model.num_classes} classes, {command.data} has {batches.num_classes}")
    return evaluate(model.to(device), batches, command.split)
