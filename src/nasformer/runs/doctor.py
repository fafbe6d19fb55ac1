"""The health of a run's supernet: fixed subnets over its training, and alarms with advice.

A training that took snapshots (`watch_epochs`) has the accuracies of the fixed subnets in its log. Otherwise they are
evaluated now, with the weights at hand: those of the trained supernet, or of the newest checkpoint.
RUN/health.json keeps the diagnosis, for the report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nasformer.data.loaders import BatchSource, Split
from nasformer.data.options import DataOptions
from nasformer.errors import UserError
from nasformer.models.base import options_from_json
from nasformer.models.pretrained import read_space
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.models.storage import SUPERNET_CONFIG as CONFIG
from nasformer.report.page import write_report
from nasformer.results.folder import RunConfig, RunFolder
from nasformer.results.result import Diagnosis, RunResult, Snapshot
from nasformer.runs.base import load_as_trained
from nasformer.search.problem import ModelResult
from nasformer.supernet import health
from nasformer.supernet.health import Alarm, depth_and_width, fixed_subnets
from nasformer.supernet.storage import load_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.options import TaskOptions, find_task, task_scores
from nasformer.tasks.registry import space_for
from nasformer.train.checkpoint import SETTINGS, Checkpoints, DamagedCheckpoint, Rollback
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.log import TrainLog, is_rollback
from nasformer.train.speed import threads_of_training
from nasformer.utils.device import choose_device
from nasformer.utils.progress import progress, say
from nasformer.utils.schema import from_json
from nasformer.utils.statistics import spearman

SPLITS: dict[Split, str] = {"holdout": "held-out images", "test": "test images"}


def examine(folder: str | Path, data: str = "", device: str = "auto") -> Diagnosis:
    """Diagnoses a run, writes the diagnosis into its folder and draws it in its report."""
    run = SupernetRun(RunFolder(folder), data, device)
    snapshots, images = run.snapshots(), SPLITS["holdout"]
    if not snapshots:
        with threads_of_training(run.folder.train):
            snapshot, images = run.take_snapshot()
        snapshots = [snapshot]
    diagnosis = diagnose(run, snapshots, images)
    diagnosis.save(run.folder.health)
    write_report(run.folder.path)
    return diagnosis


class SupernetRun:
    """A run folder with the training of a supernet, finished or not."""

    def __init__(self, folder: RunFolder, data: str = "", device: str = "auto") -> None:
        if folder.kind() == "evolution":
            raise UserError(f"{folder} is the evolution of a space; see one of its steps, such as {folder}/steps/0")
        self.folder, self.config = folder, folder.read_config()
        self.log = TrainLog.read(folder.log)
        self.trained = (folder.supernet / CONFIG).exists()
        self.checkpoint = None if self.trained else newest_checkpoint(folder)
        if not self.log or not (self.trained or self.config.space):
            raise UserError(f"{folder} has no training of a supernet; the doctor looks at what nasformer train wrote")
        recorded = recorded_images(self.config, folder)
        self.data = replace(recorded, data=data or recorded.data, device=device, download=False)
        self.space = self.find_space()
        self.archs = fixed_subnets(self.space, self.config.seed)
        self.image_count, self.baselines = recorded_references(folder, self.score)

    @property
    def score(self) -> str:
        """The score by which subnets are compared."""
        return self.data.score

    def find_space(self) -> Space:
        """The space of the supernet, or of the checkpoint, or that of the config."""
        if self.trained:
            return read_space(self.folder.supernet / CONFIG)
        if self.checkpoint and self.checkpoint.settings.arch:
            raise UserError(f"{self.folder} is the training of a single model; the doctor looks at supernets")
        options = self.checkpoint.settings.model_options if self.checkpoint else None
        return space_for(get_space(self.config.space or ""), self.data).with_options(
            **options_from_json(options or self.config.model)
        )

    def snapshots(self) -> list[Snapshot]:
        """The snapshots that the training took of the fixed subnets."""
        lines = [line for line in self.log if self.archs.keys() == (line.get("subnets") or {}).keys()]
        return [Snapshot(line["step"], line.get("epoch"), line["subnets"]) for line in lines]

    def take_snapshot(self) -> tuple[Snapshot, str]:
        """The accuracies of the fixed subnets now, and on which images."""
        device = choose_device(self.data.device)
        supernet = self.load().to(device)
        batches = load_as_trained(self.data, self.folder, supernet.space.options)
        evaluator = SubnetEvaluator(supernet, batches, self.config.train.precision, self.data.calibration_images)
        split: Split = "holdout" if batches.held_out else "test"
        self.image_count = batches.held_out or batches.test_images
        accuracies = dict[str, float]()
        with progress("subnets", len(self.archs)) as report:
            for number, (name, arch) in enumerate(self.archs.items(), 1):
                accuracies[name] = evaluator.accuracy(arch, split)
                report(number, name)
        if self.data.task == "classify":
            self.baselines[NEAREST_MEAN] = nearest_mean_accuracy(batches, split)
        last = self.log[-1]
        return Snapshot(last["step"], last.get("epoch"), accuracies), SPLITS[split]

    def load(self) -> Supernet:
        if self.trained:
            return load_supernet(self.folder.supernet)
        if self.checkpoint is None:
            raise UserError(f"{self.folder} has no weights to look at yet; wait for its first checkpoint")
        supernet = Supernet(self.space)
        try:
            supernet.load_state_dict(self.checkpoint.weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise UserError(f"{self.checkpoint.folder} does not fit the space ({reason}); restore it") from None
        return supernet

    def finished(self) -> bool:
        recipe, last = self.config.train, self.log[-1]
        if recipe.iterations:
            return bool(last["step"] >= recipe.iterations)
        return self.trained or (recipe.epochs != "auto" and (last.get("epoch") or 0) >= recipe.epochs)

    def running(self) -> bool:
        try:
            with self.folder.lock():
                return False
        except UserError:
            return True


@dataclass
class RecordedImages(TaskOptions, DataOptions):
    """The images of a run, and the task that was learned of them."""


def recorded_images(config: RunConfig, folder: RunFolder) -> RecordedImages:
    task = find_task(config.settings.get("task", "classify"))
    recorded = config.settings.get("task_options", {}).get(task.name)
    options = {task.name: from_json(task.options, recorded, folder.config)} if task.options and recorded else {}
    return RecordedImages(**vars(config.data_options()), task=task.name, task_options=options)


def recorded_references(folder: RunFolder, score: str) -> tuple[int | None, dict[str, float]]:
    """How many images are held out, and the scores of trained baselines on them, as the result of a search says."""
    if not folder.result.exists():
        return None, {}
    result = RunResult.load(folder.result)
    trained = {model.name: model.get(f"holdout_{score}") for model in result.trained}
    accuracies = {name: accuracy for name, accuracy in trained.items() if not math.isnan(accuracy)}
    return (result.images.holdout if result.images else None), accuracies


NEAREST_MEAN = "the nearest class mean of plain pixels"
MEAN_IMAGES, MEAN_BATCH = 4096, 256
"""Most training images for the means, and most images to judge them on; images read at a time."""


def nearest_mean_accuracy(batches: BatchSource, split: Split) -> float:
    """Accuracy of the nearest mean training image of a class: what plain pixels alone achieve."""
    size = batches.in_chans * batches.img_size**2
    sums, counts = torch.zeros(batches.num_classes, size), torch.zeros(batches.num_classes, 1)
    for x, labels in islice(batches.evaluation("train", MEAN_BATCH), MEAN_IMAGES // MEAN_BATCH):
        sums.index_add_(0, labels.cpu(), x.flatten(1).float().cpu())
        counts.index_add_(0, labels.cpu(), torch.ones(len(labels), 1))
    means = torch.where(counts > 0, sums / counts, torch.inf)  # a class that was not seen is never the nearest
    right = total = 0
    for x, labels in islice(batches.evaluation(split, MEAN_BATCH), MEAN_IMAGES // MEAN_BATCH):
        nearest = torch.cdist(x.flatten(1).float().cpu(), means).nan_to_num(torch.inf).argmin(1)
        right, total = right + int((nearest == labels.cpu()).sum()), total + len(labels)
    return right / total


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a checkpoint; the training of a single model has its arch."""

    arch: str | None = None
    model_options: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a training that goes on."""

    folder: Path
    settings: TrainingSettings
    weights: dict[str, Tensor]


def newest_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """The newest checkpoint that is sound."""
    checkpoints = Checkpoints(folder.train / "checkpoints", {})
    for step in reversed(checkpoints.steps()):
        path = checkpoints.path(step)
        try:
            settings, parts = checkpoints.read(step)
        except DamagedCheckpoint as error:
            say(f"{error}; looking at the checkpoint before it")
            continue
        return Checkpoint(path, from_json(TrainingSettings, settings, path / SETTINGS), parts["weights"])
    return None


def diagnose(run: SupernetRun, snapshots: list[Snapshot], images: str) -> Diagnosis:
    last = snapshots[-1].subnets
    accuracies, sizes = list(last.values()), depth_and_width(run.space, run.archs)
    taus = health.rank_agreement([snapshot.subnets for snapshot in snapshots])
    alarms = [*training_alarms(run), *health.flip_alarms(taus)]
    alarms += health.extreme_alarms(last["smallest"], last["largest"], accuracies)
    alarms += health.dimension_alarms(sizes, accuracies)
    if run.finished() and run.score != "accuracy":  # of which neither chance nor noise is known
        alarms += health.nothing_alarms(max(accuracies), task_scores()[run.score])
    elif run.finished():
        classes = run.space.options.get("num_classes", 1000)
        alarms += health.chance_alarms(max(accuracies), last["largest"], classes, run.image_count)
        alarms += health.baseline_alarms(max(accuracies), run.baselines, run.image_count)
    return Diagnosis(
        step=run.log[-1]["step"],
        images=images,
        subnets=[
            subnet_result(run, name, last[name]).with_scores({size: values[row] for size, values in sizes.items()})
            for row, name in enumerate(run.archs)
        ],
        correlations={name: spearman(values, accuracies) for name, values in sizes.items()},
        taus=taus,
        looks=snapshots,
        alarms=alarms,
        baselines=run.baselines,
        score=run.score,
    )


def subnet_result(run: SupernetRun, name: str, accuracy: float) -> ModelResult:
    arch = run.archs[name]
    return ModelResult(name, arch.to_dict(), {**run.space.costs(arch), run.score: accuracy})


def training_alarms(run: SupernetRun) -> list[Alarm]:
    """Alarms that follow from the log alone."""
    alarms = health.loss_alarms([line["loss"] for line in run.log if line.get("loss") is not None])
    for line in run.log:
        if is_rollback(line):
            rollback = from_json(Rollback, line["rollback"], run.folder.log)
            fact = (
                f"the {rollback.what} was not finite at step {rollback.failed}; training went back to step "
                f"{rollback.back_to}, at half the rate"
            )
            alarms.append(Alarm("rollback", fact, "lower --train.lr, raise --train.warmup_epochs or set clip_grad"))
    if not run.finished() and not run.running():
        last: dict[str, Any] = run.log[-1]
        fact = f"training stopped before its end, at epoch {last.get('epoch') or 0:g} (step {last['step']})"
        alarms.append(Alarm("unfinished", fact, "the same command goes on from there"))
    return alarms
