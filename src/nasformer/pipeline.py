"""The whole job in a run folder: train, search, extract, report. Each stage goes on where a killed run stopped.

RUN/config.json            what was asked, and the versions that did it
RUN/train/                 log.jsonl, checkpoints/
RUN/supernet/              the trained supernet
RUN/search/journal.jsonl   every candidate
RUN/result.json            the winner beside its references
RUN/model/                 the winner as an ordinary model
RUN/export/                the same for use elsewhere (shipping.py)
RUN/baselines/NAME/        models of timm that were trained beside
RUN/plots/, RUN/report.html, RUN/candidates.csv
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.agreement import check_holdout, check_options, fingerprint, fit_to_data, training_images
from nasformer.baselines.timm_table import fitting
from nasformer.config import EvolveCommand, FinetuneCommand, RetrainCommand, RunCommand, SearchCommand, TrainCommand
from nasformer.data import StreamingFolder
from nasformer.data.image_files import USUAL_SIZE
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.export import save_model
from nasformer.families import Space, get_space, list_spaces
from nasformer.families.backbone import Backbone
from nasformer.files import locked, write_json
from nasformer.folders import UNTRAINED, facts_of, load_batches, normalise_as
from nasformer.latency.lookup import with_profile
from nasformer.latency.profile import Profile
from nasformer.latency.search import keep_profile, measured_winner, profile_settings
from nasformer.noting import noted_in, streamed_before
from nasformer.options import BudgetConfig, DataConfig, SearchOptions
from nasformer.recipe import Recipe
from nasformer.search import Budget, SearchResult, references
from nasformer.searching import check_search, objectives_of
from nasformer.space import Arch
from nasformer.supernet import Supernet, load_supernet, save_supernet
from nasformer.supernet.health import check_up
from nasformer.train.distributed import World, join_world
from nasformer.train.evaluate import Heirs
from nasformer.train.log import TrainLog
from nasformer.train.supernets import search_supernet, train_supernet

AnyCommand = TrainCommand | SearchCommand | RunCommand | EvolveCommand | RetrainCommand | FinetuneCommand


class Run:
    """One run folder and the work in it."""

    def __init__(
        self,
        folder: Path,
        config: DataConfig,
        space: Space,
        recipe: Recipe,
        world: World,
        img_size: int | None,
        in_chans: int | None = None,
        usual_size: int = USUAL_SIZE,
    ) -> None:
        self.folder, self.recipe, self.world = folder, recipe, world
        self.device = choose_device(config.device)
        config = replace(config, stream=streamed_before(folder, config))
        world.barrier()  # until all have read that, as the main process will write it
        self.batches = load_batches(config, recipe, world, self.device, img_size, in_chans, usual_size, folder)
        self.config = replace(config, stream=isinstance(self.batches, StreamingFolder))
        self.space = fit_to_data(space, self.batches, config)
        self.supernet_folder = folder / "supernet"
        self.trained_on = training_images(config)
        self.profile: Profile | None = None

    def inside(self, name: str, space: Space) -> Run:
        """A run in a folder of this one, with the same data and another space."""
        other = copy(self)
        other.folder, other.space = self.folder / name, space
        other.supernet_folder = other.folder / "supernet"
        return other

    def use_profile(self, command: BudgetConfig, objectives: Sequence[str] = ()) -> None:
        """Adds predicted costs to the space, where the command speaks of latency or memory; refuses if unprofiled."""
        self.space, self.profile = with_profile(self.space, command, objectives, self.device.type)

    @property
    def settings(self) -> dict[str, Any]:
        """What every stage's result depends on."""
        options = dict(self.space.options)
        return {"data": self.config.data, "holdout": self.config.holdout, "model_options": options}

    def train(self, recipe: Recipe, supernet: Supernet | None = None, **settings: Any) -> None:
        """The supernet, trained; a finished one is left as it is.

        Args:
            supernet: One to start from; None: a fresh one.
            settings: What else the weights depend on, such as where those to start from come from.
        """
        supernet = (supernet or Supernet(self.space, self.config.seed)).to(self.device)
        train_supernet(
            supernet,
            self.batches,
            recipe,
            folder=self.folder / "train",
            seed=self.config.seed,
            settings=self.settings | settings,
            calibration_images=self.config.calibration_images,
        )
        if self.world.main:
            facts = {"trained_on": self.trained_on, **self.image_facts}
            save_supernet(supernet, self.supernet_folder, **facts)
        self.world.barrier()

    @property
    def image_shape(self) -> dict[str, int]:
        """What a model is built for."""
        options = self.space.full_options
        return {name: options[name] for name in ("img_size", "in_chans", "num_classes")}

    @property
    def image_facts(self) -> dict[str, Any]:
        """What a model must know of its images: how they are normalised, and the names of their classes."""
        batches = self.batches
        return {"mean": list(batches.mean), "std": list(batches.std), "classes": list(batches.classes)}

    def last_loss(self) -> float:
        return TrainLog.read(self.folder / "train" / "log.jsonl")[-1]["loss"]

    def load_supernet(self, source: str | None = None) -> Supernet:
        """The supernet to search. What was not asked for, such as a patch size, is as it was trained."""
        path = Path(source or self.supernet_folder)
        supernet = load_supernet(path, self.space).to(self.device)
        check_holdout(self.config, path)
        check_options(self.config, self.batches, supernet.space)
        normalise_as(self.batches, path)
        self.trained_on = facts_of(path, "trained_on").get("trained_on", {})
        self.space = supernet.space = replace(supernet.space, predicted=self.space.predicted)
        return supernet

    def check_search(self, options: SearchOptions, budget: Budget) -> None:
        """Raises now what the search would raise after a long training."""
        check_search(self.space, options, budget, self.config.seed)
        next(iter(self.batches.evaluation("holdout", 1)))

    def search(
        self, supernet: Supernet, options: SearchOptions, budget: Budget, journal: str = "journal.jsonl"
    ) -> SearchResult:
        keep_profile(self.profile, self.folder)
        return search_supernet(
            supernet,
            self.batches,
            budget=budget,
            strategy=options.strategy,
            options=options.options(),
            objectives=objectives_of(options),
            seed=self.config.seed,
            journal=self.folder / "search" / journal,
            settings={**self.settings, "supernet": fingerprint(supernet), **profile_settings(self.profile)},
            precision=self.recipe.precision,
            calibration_images=self.config.calibration_images,
        )

    def summarise(
        self,
        supernet: Supernet,
        result: SearchResult,
        budget: Budget,
        rivals: Mapping[str, Arch] | None = None,
        trained: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Tests the winner beside a random arch, the smallest and the largest in the budget; writes it all down.

        Args:
            rivals: Further archs to test, by name.
            trained: Further lines of the results, of models that were trained on their own.
        """
        rivals = references(self.space.root, self.space.costs, budget, self.config.seed) | dict(rivals or {})
        heirs = Heirs(supernet, self.batches, self.recipe.precision, self.config.calibration_images)
        winner, measured, told = measured_winner(self.profile, self.space, result, budget, self.folder)
        summary: dict[str, Any] = {
            "space": self.space.name,
            "data": self.config.data,
            "budget": str(budget),
            "winner": self.row("winner", heirs, winner) | measured,
            "references": [*(self.row(name, heirs, arch) for name, arch in rivals.items()), *trained],
            "timm": fitting(budget, self.space.costs(winner)["params"], **self.image_shape),
            "health": check_up(self.space, heirs.accuracy, self.config.seed),
            "front": [one.to_dict() for one in result.front],
            "note": result.note,
            **told,
        }
        self.publish(heirs.model(winner), summary)
        return summary

    def publish(self, model: Backbone, summary: dict[str, Any]) -> None:
        """Writes the winning model, the result and the report."""
        facts = {"space": self.space.name, "test_accuracy": summary["winner"]["test_accuracy"], **self.image_facts}
        facts["trained_on"] = self.trained_on
        save_model(model, self.folder / "model", **facts)
        write_json(self.folder / "result.json", summary)
        from nasformer.report import write_report

        write_report(self.folder)

    def row(self, name: str, heirs: Heirs, arch: Arch) -> dict[str, Any]:
        return {
            "name": name,
            "arch": arch.to_dict(),
            **self.space.costs(arch),
            "holdout_accuracy": heirs.accuracy(arch, "holdout"),
            "test_accuracy": heirs.accuracy(arch, "test"),
        }


@contextmanager
def open_run(command: AnyCommand) -> Iterator[Run]:
    """The run folder of a command, which no other process may use meanwhile."""
    if not command.out:
        raise UserError("say where the run's folder shall be: --out runs/NAME")
    folder = Path(command.out)
    world = join_world(choose_device(command.device))
    space = asked_space(command, folder)
    recipe = getattr(command, "train", None) or UNTRAINED
    with locked(folder / ".lock", needed=world.main):
        # Images keep their size, unless another was asked for, now or when the supernet was trained.
        options = space.full_options
        asked = {"img_size": command.img_size, "in_chans": command.in_chans} if command.space else options
        size, channels = asked["img_size"], asked["in_chans"]
        run = Run(folder, command, space, recipe, world, size, channels, options["img_size"])
        with noted_in(folder, run.config, run.space) if world.main else nullcontext():
            yield run


def asked_space(command: AnyCommand, folder: Path) -> Space:
    """The space that was named, or the one that the folder's supernet has."""
    if command.space:
        return get_space(command.space, **command.model_options())
    supernet = Path(getattr(command, "supernet", None) or folder / "supernet")
    if supernet.is_dir():
        return load_supernet(supernet).space
    raise UserError(f"name a space with --space; there are: {', '.join(list_spaces())}")
