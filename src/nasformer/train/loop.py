"""Training: one loop for supernets and for single models.

A training starts from its newest checkpoint, or anew. Each step takes a batch and, for a supernet, the archs that its
sampler draws, adds up their gradients and updates the weights. Steps come in intervals, each with a line in the log; a
training whose loss is not finite at the end of an interval goes back to its start, once. Checkpoints are written by
time, at any step. Everything random is a function of (seed, step): a training that was killed and started again with
the same folder ends with the same weights and the same log as one that ran through.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nasformer.data.images import Data
from nasformer.data.loaders import Batch, Batches, BatchSource
from nasformer.data.streaming import StreamedData
from nasformer.errors import UserError, is_out_of_memory
from nasformer.models.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.samplers import Sampler, make_sampler
from nasformer.supernet.supernet import CALIBRATION_IMAGES, Supernet
from nasformer.train.checkpoint import (
    Checkpoints,
    DamagedCheckpoint,
    NotFinite,
    Parts,
    Rollback,
    StopSignals,
    TrainingStopped,
    batches_from,
    optimizer_tensors,
    restore_optimizer,
    weights_are_finite,
)
from nasformer.train.evaluate import CLASSIFICATION, Snapshots, SubnetEvaluator, autocast, evaluate, objective_of
from nasformer.train.log import TrainLog
from nasformer.train.loss import (
    Answers,
    Loss,
    Supervision,
    Teacher,
    class_weights,
    feature_difference,
    load_teacher,
)
from nasformer.train.optim import (
    FrozenSlices,
    MovingAverage,
    add_decay,
    decays_by_loss,
    make_optimizer,
    reduce_gradients,
)
from nasformer.train.recipe import Recipe
from nasformer.train.speed import (
    LOOK_AHEAD,
    AutoCompile,
    Rehearsal,
    archs_with_all_kinds,
    compile_model,
    enough_images,
    training_threads,
    undisturbed,
)
from nasformer.utils.cuda_graphs import CudaGraphs
from nasformer.utils.device import World, cpu_threads, join_world, threads_are_fixed
from nasformer.utils.progress import Progress, progress, say
from nasformer.utils.rng import Purpose, mix

FIRST_CHECKPOINT = 0.1
"""When the first checkpoint is due, as a share of the time between two."""
STEPS_TO_AGREE = 8
"""Steps after which several processes ask each other whether to stop or save: asking waits for the GPU."""
FEATURE_DEPTHS = 4
"""After how many segments features of a teacher are learned: its last one and three before it, evenly spaced."""
INCIDENTAL = ("accumulate", "compile", "graphs", "checkpoint_seconds", "tensorboard")
"""Settings of a recipe that change how fast a training runs and how often it reports, but not its result."""


def train_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    teacher: nn.Module | None = None,
    quiet: bool = False,
    calibration_images: int = CALIBRATION_IMAGES,
    label: str = "supernet",
) -> float:
    """Trains the shared weights in place, each step on the archs that the recipe's sampler draws.

    With a folder it can be killed and started again. Under torchrun every process calls it alike.

    Args:
        folder: Where log and checkpoints go; None keeps nothing.
        settings: What else the weights depend on (data ...), to refuse a folder of another training.
        teacher: A model whose answers are learned beside the labels, in place of the recipe's.
        calibration_images: How many images batch norm is estimated anew on for a snapshot of an arch.
        label: What the progress bar calls it.

    Returns:
        The mean loss of the last interval.
    """
    recipe = recipe or Recipe()
    return fit(
        supernet,
        data,
        recipe,
        folder=folder,
        seed=seed,
        teacher=teacher,
        # No arch of its own: so the folder of a single model's training is refused.
        settings={"space": supernet.space.name, "arch": None, **(settings or {})},
        sampler=make_sampler(supernet.space, recipe.sampler, recipe.sandwich, seed),
        calibration_images=calibration_images,
        quiet=quiet,
        label=label,
    )


def train_model(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    teacher: nn.Module | None = None,
    quiet: bool = False,
    label: str = "model",
) -> float:
    """Trains an ordinary model in place, the whole of it in every step. Returns the mean loss of the last interval.

    With a folder it can be killed and started again. Under torchrun every process calls it alike, with the same
    weights. What a recipe says of supernets (`freeze`, `sampler`, `sandwich` ...) has no meaning here.
    """
    arch = model.arch.to_json() if isinstance(model, Backbone) else type(model).__name__
    return fit(
        model,
        data,
        recipe or Recipe(),
        folder=folder,
        seed=seed,
        teacher=teacher,
        settings={"arch": arch, **(settings or {})},
        quiet=quiet,
        label=label,
    )


def fit(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    teacher: nn.Module | None = None,
    **options: Any,
) -> float:
    """Trains a model on the device of its weights, with the processes of torchrun; `options` are those of `Trainer`."""
    if recipe.compile is True:
        compile_model(model)
    device = next(model.parameters()).device
    world = join_world(device)
    batches = as_batches(data, recipe, seed, world, device)
    options |= {"teacher": teacher_of(recipe, batches, device, teacher), "seed": seed, "world": world}
    return Trainer(model, batches, recipe, folder=Path(folder) if folder else None, **options).run()


def as_batches(data: Data | BatchSource, recipe: Recipe, seed: int, world: World, device: torch.device) -> BatchSource:
    """The batches of a dataset; a source of batches is left as it is."""
    return make_batches(data, recipe, seed, world, device) if isinstance(data, Data) else data


def make_batches(data: Data | StreamedData, recipe: Recipe, seed: int, world: World, device: torch.device) -> Batches:
    """The batches of a dataset as a recipe has them, for a process and its device."""
    return Batches(data, recipe.augment, recipe.batch_size, seed, world.rank, world.size, device, recipe.repeats)


def teacher_of(
    recipe: Recipe, batches: BatchSource, device: torch.device, model: nn.Module | None = None
) -> Teacher | None:
    """The recipe's teacher, or this model as one; None where there is neither."""
    if recipe.teacher:
        task = getattr(batches, "task", None)
        of_task = {"task": task.name, "img_size": batches.img_size} if task else {}
        model = load_teacher(recipe.teacher, batches.num_classes, batches.in_chans, device, **of_task)
    if model is None:
        return None
    depths, taught = FEATURE_DEPTHS if recipe.teacher_features else 0, objective_of(batches).taught
    if taught is None and not depths:
        raise UserError("in this task only features of a teacher can be learned; set teacher_features to 5 or so")
    answers = Answers(recipe.teacher_weight, recipe.teacher_answers == "hard", recipe.augment.smoothing)
    return Teacher(model, answers, depths, taught)


def learning_rate(step: int, steps_per_epoch: int, recipe: Recipe) -> float:
    """The schedule: linear warm-up, then a cosine from the peak to the minimum.

    >>> recipe = Recipe(epochs=10, warmup_epochs=2, lr=1.0, warmup_lr=0.0, min_lr=0.0)
    >>> [round(learning_rate(step, 1, recipe), 2) for step in range(10)]
    [0.0, 0.5, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    peak, warmup = recipe.peak_lr(), recipe.warmup_steps(steps_per_epoch)
    if step < warmup:
        return recipe.warmup_lr + (peak - recipe.warmup_lr) * step / warmup
    share = (step - warmup) / max(recipe.total_steps(steps_per_epoch) - warmup, 1)
    return recipe.min_lr + (peak - recipe.min_lr) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def result_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe that decide the result of a training."""
    without = (*INCIDENTAL, "epochs") if recipe.iterations else INCIDENTAL
    settings = {name: value for name, value in asdict(recipe).items() if name not in without}
    # Options that are newer than some checkpoints are named only where they have an effect.
    newer = {"balance": False, "archs": "shared"}
    return {name: value for name, value in settings.items() if name not in newer or value != newer[name]}


def chosen_settings(recipe: Recipe, batches: BatchSource) -> str:
    """The settings that a recipe leaves open and the images decide, in words; empty where there are none."""
    chosen, steps_per_epoch = list[str](), batches.steps_per_epoch
    augment = recipe.augment.for_images(batches.img_size, batches.in_chans)
    if recipe.epochs == "auto" and not recipe.iterations:
        steps = recipe.total_steps(steps_per_epoch)
        chosen.append(f"{recipe.total_epochs(steps_per_epoch)} epochs ({steps:,} steps; --train.epochs)")
    if recipe.augment.padding is None and augment.crop == "pad" and objective_of(batches) is CLASSIFICATION:
        shifts = f"shifts up to {augment.padding} of {batches.img_size} px" if augment.padding else "no shifts"
        chosen.append(f"{shifts} (--train.augment.padding)")
    if recipe.augment.hflip is None and getattr(batches, "mirrored", True):
        mirrored = "mirrored at random" if augment.hflip else "not mirrored, as they are grey"
        chosen.append(f"images {mirrored} (--train.augment.hflip)")
    return ", ".join(chosen)


class EarlyStopping:
    """The best weights of a training so far, by held-out accuracy and, where that is equal, by held-out loss.

    Args:
        patience: Steps without a better one after which the training stops.
        score: The name of the score: accuracy, or that of another task.
    """

    def __init__(self, patience: int, score: str = "accuracy") -> None:
        self.score = f"holdout_{score}"
        self.patience, self.step, self.weights = patience, 0, dict[str, Tensor]()
        self.best = (-math.inf, -math.inf)

    def is_better(self, line: dict[str, Any]) -> bool:
        """Whether a line of the log is better than all before; one without held-out scores is not."""
        return self.score in line and self.order(line) > self.best

    def remember(self, step: int, line: dict[str, Any]) -> None:
        self.step, self.best = step, self.order(line)

    def order(self, line: dict[str, Any]) -> tuple[float, float]:
        return line[self.score], -line["holdout_loss"]


def early_stopping(recipe: Recipe, batches: BatchSource) -> EarlyStopping | None:
    """Early stopping where the recipe asks for it, which needs held-out images."""
    if not recipe.patience:
        return None
    if not batches.held_out:
        raise UserError("patience needs images held out of training; set --holdout 0.1 or so, or leave it out")
    return EarlyStopping(recipe.patience * batches.steps_per_epoch, objective_of(batches).score)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in main memory, which further steps do not change."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


class IntervalLosses:
    """The losses of the steps of an interval so far, each the mean over the processes.

    A step only adds its own: to gather them waits for the GPU and for the other processes.
    """

    def __init__(self, world: World, device: torch.device, before: Tensor | None = None) -> None:
        self.world = world
        self.means = torch.zeros(0, device=device) if before is None else before.to(device)
        self.own = list[Tensor]()  # of this process alone, not gathered yet

    def append(self, loss: Tensor) -> None:
        self.own.append(loss)

    def gathered(self) -> Tensor:
        """All losses so far; all processes call this alike."""
        if self.own:
            self.means = torch.cat([self.means, self.world.mean(torch.stack(self.own))])
            self.own = []
        return self.means


class Trainer:
    """Trains a model by a recipe.

    Args:
        model: A supernet, with a sampler that says which archs a step runs; or any other model, without.
            Where the recipe treats the largest arch of a step in its own way, that is the sampler's first.
        batches: Where the images come from.
        loss: In place of that of the task.
        folder: Where log and checkpoints go; None keeps nothing.
        settings: What else the weights depend on (space, data ...), to refuse a folder of another training.
        calibration_images: How many images batch norm is estimated anew on for a snapshot of an arch.
        label: What the progress bar calls it.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: BatchSource,
        recipe: Recipe,
        *,
        sampler: Sampler | None = None,
        loss: Loss | None = None,
        teacher: Teacher | None = None,
        folder: Path | None = None,
        settings: dict[str, Any] | None = None,
        seed: int = 0,
        world: World | None = None,
        quiet: bool = False,
        calibration_images: int = CALIBRATION_IMAGES,
        label: str = "train",
    ) -> None:
        self.chosen = chosen_settings(recipe, batches)  # before they are settled: to be said when training begins
        recipe = recipe.for_images(batches.steps_per_epoch, batches.img_size, batches.in_chans)
        self.model, self.batches, self.recipe, self.sampler = model, batches, recipe, sampler
        self.objective, self.teacher = objective_of(batches), teacher
        self.loss = loss or self.objective.loss
        self.seed, self.world, self.label = seed, world or World(), label
        self.quiet = quiet or not self.world.main
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, recipe)
        # In one process there is nobody to have other archs.
        self.own_archs = recipe.archs == "own" and self.world.size > 1 and sampler is not None
        self.average = MovingAverage(model, recipe.ema) if recipe.ema else None
        self.total = recipe.total_steps(batches.steps_per_epoch)  # fewer where it is stopped early
        self.interval = max(1, round(recipe.log_epochs * batches.steps_per_epoch))
        settings = {**result_settings(recipe), **(settings or {}), "seed": seed}
        self.checkpoints = (
            Checkpoints(folder / "checkpoints", settings, self.quiet, self.world.size) if folder else None
        )
        self.folder, self.log_path = folder, folder / "log.jsonl" if folder else None
        self.snapshots: Snapshots | None = None
        self.frozen: FrozenSlices | None = None
        if isinstance(model, Supernet):
            self.snapshots = Snapshots(model, batches, recipe, calibration_images, seed)
            self.frozen = FrozenSlices(model, self.optimizer) if recipe.freeze == "slices" else None
        self.calibration_images = calibration_images
        self.class_weights = class_weights(batches.class_counts).to(self.device) if recipe.balance else None
        self.stopping = early_stopping(recipe, batches)
        self.compiling = AutoCompile(model, self.world, label, self.quiet) if recipe.compile == "auto" else None
        self.graphs = CudaGraphs.on(self.device, recipe.graphs)
        self.learned_features = list[str]()
        # What changes in the course of the training, besides weights and optimizer
        self.done = 0  # steps
        self.losses = IntervalLosses(self.world, self.device)
        self.interval_state = Parts()  # the state at the start of the interval, to go back to; empty where it is lost
        self.rollback: Rollback | None = None
        self.note = ""
        self.next_save = math.inf  # when the next checkpoint is due, by `time.monotonic`

    def run(self) -> float:
        """Trains to the end and returns the mean loss of the last interval."""
        self.restore()
        if self.chosen and self.done < self.total and not self.quiet:
            say(f"{self.label}: {self.chosen}")
        with cpu_threads(self.choose_threads()):
            return self.train()

    def choose_threads(self) -> int:
        """The number of CPU threads to train on; among several processes, the number that is set.

        Beside a GPU one: what is left to the CPU is small, and threads for it would wait for those that decode images.
        """
        if self.device.type != "cpu" and not threads_are_fixed():
            return 1
        if self.device.type != "cpu" or self.world.size > 1 or self.done == self.total:
            return torch.get_num_threads()
        return training_threads(self.folder, self.total - self.done, self.try_step, self.label, self.quiet)

    def try_step(self) -> None:
        """Runs a step on noise; weights, statistics and random numbers stay as they were."""
        size, channels = self.batches.img_size, self.batches.in_chans
        whole = min(self.recipe.batch_size, getattr(self.batches, "batch_size", self.recipe.batch_size))
        count = min(whole, enough_images(channels, size, size))
        training = self.model.training
        with undisturbed(self.model):
            targets = self.objective.example_targets(count, self.batches)
            self.model.train()
            self.gradients(torch.randn(count, channels, size, size), targets, self.archs(0))
        self.model.train(training)

    def train(self) -> float:
        """Trains interval by interval, and then takes the averaged or the best weights; returns the last mean loss."""
        log, mean = self.open_log(), math.nan
        if self.done == self.total and self.log_path:
            mean = TrainLog.last_loss(self.log_path)
        self.model.train()
        with ExitStack() as closing, StopSignals() as stop, progress(self.label, self.total, self.quiet) as report:
            self.use_graphs(closing)
            if self.compiling and self.done < self.total:
                closing.callback(self.compiling.close)
                self.compiling.before_training(self.total - self.done)
            batches = batches_from(self.batches, self.done, self.rollback)
            while self.done < self.total:
                try:
                    mean = self.train_interval(batches, log, report, stop)
                except NotFinite as trouble:
                    self.roll_back(trouble)
                    batches, log = batches_from(self.batches, self.done, self.rollback), self.open_log()
        if self.average:
            self.average.copy_to(self.model)
        if self.stopping and self.stopping.weights:
            self.model.load_state_dict(self.stopping.weights)
        return mean

    def use_graphs(self, closing: ExitStack) -> None:
        """Has model and teacher record and replay CUDA graphs until the training ends."""
        if self.graphs and isinstance(self.model, Supernet):
            closing.enter_context(self.model.replaying(self.graphs))
        if self.graphs and self.teacher:
            self.teacher.graphs = self.graphs
            closing.callback(setattr, self.teacher, "graphs", None)

    def rehearsal(self, x: Any) -> Rehearsal | None:
        """A rehearsal of all that the training runs; None where the task's inputs are more than images."""
        if self.objective.within_model or not isinstance(x, Tensor):
            return None
        archs: Sequence[Arch | None] = [None]
        if isinstance(self.model, Supernet):
            steps = range(self.done, min(self.done + LOOK_AHEAD, self.total))
            archs = archs_with_all_kinds(
                self.model, (arch for step in steps for arch in self.archs_of_all_processes(step) if arch)
            )
        part, features = x.chunk(self.recipe.accumulate)[0], bool(self.teacher and self.recipe.teacher_features)
        return Rehearsal.of(self.model, archs, part, self.recipe.precision, features)

    def open_log(self) -> TrainLog:
        """The log, to go on with behind the steps that are done."""
        return TrainLog(self.log_path if self.world.main else None, self.done, self.recipe.tensorboard)

    def train_interval(self, batches: Iterator[Batch], log: TrainLog, report: Progress, stop: StopSignals) -> float:
        """Trains to the next line of the log and writes it; returns the mean loss."""
        if self.rollback and self.rollback.back_to == self.done:
            log.append(self.log_line(rollback=asdict(self.rollback)))
        end = min(self.interval_start + self.interval, self.total)
        while self.done < end:
            self.train_batch(*next(batches))
            # A snapshot comes before the line and the checkpoint of its step: so no resume can lose or repeat it.
            self.take_snapshot_if_due(log)
            if self.done < end:
                report(self.done, self.note)
                self.save_if_due(stop)
        mean = self.mean_loss()
        held_out = self.evaluate_held_out() if self.stopping else {}
        log.append(self.log_line(loss=mean, lr=self.rate(end - 1), **held_out))
        self.note = f"loss {mean:.3f}"
        report(end, self.note)
        self.begin_interval(self.state())
        self.stop_early()
        self.save_if_due(stop)
        return mean

    def take_snapshot_if_due(self, log: TrainLog) -> None:
        if self.snapshots and self.log_path and self.world.main and self.snapshots.due(self.done, self.total):
            log.append(self.log_line(**self.snapshots.take()))

    def train_batch(self, x: Tensor, targets: Tensor) -> None:
        """Trains one step; automatic compilation may change over after it."""
        self.losses.append(self.step(self.done, x, targets))
        self.done += 1
        if self.compiling and not self.compiling.over:
            self.compiling.after_step(self.total - self.done, partial(self.rehearsal, x))
            if self.compiling.over and self.graphs:
                self.graphs.clear()  # they hold code that is not compiled

    def evaluate_held_out(self) -> dict[str, float]:
        """Accuracy and loss on the held-out images, for the log; the best weights so far are remembered."""
        assert self.stopping
        if isinstance(self.model, Supernet):
            subnets = SubnetEvaluator(
                self.model, self.batches, self.recipe.precision, self.calibration_images, self.world
            )
            scores = subnets.evaluate(self.model.space.root.largest(), "holdout")
        else:
            scores = evaluate(self.model, self.batches, "holdout", precision=self.recipe.precision, world=self.world)
        self.model.train()
        line = {f"holdout_{name}": scores[name] for name in (self.objective.score, "loss")}
        if self.world.agree(self.stopping.is_better(line), self.device):
            self.stopping.remember(self.done, line)
            self.stopping.weights = copied(self.model.state_dict())
        return line

    def stop_early(self) -> None:
        """Makes this step the last where patience has run out."""
        if self.stopping and self.done < self.total and self.done - self.stopping.step >= self.stopping.patience:
            if not self.quiet:
                epoch = self.stopping.step / self.batches.steps_per_epoch
                say(f"{self.label}: stopped early, with the weights of epoch {epoch:.4g}, the best on held-out images")
            self.total = self.done

    @property
    def interval_start(self) -> int:
        """The first step of the interval that the next step belongs to."""
        return self.done // self.interval * self.interval

    def begin_interval(self, state: Parts, losses: Tensor | None = None) -> None:
        """Begins to collect losses, and keeps the state to go back to; after a kill there are losses already."""
        self.interval_state, self.losses = state, IntervalLosses(self.world, self.device, losses)

    def log_line(self, **facts: Any) -> dict[str, Any]:
        return {"step": self.done, "epoch": round(self.done / self.batches.steps_per_epoch, 4), **facts}

    def mean_loss(self) -> float:
        """The mean loss of the interval; raises NotFinite for it, or for weights that a gradient has spoilt since."""
        mean = self.losses.gathered().mean()
        if not mean.isfinite():
            raise NotFinite("loss", self.done)
        if not weights_are_finite(self.model):
            raise NotFinite("weights' norm", self.done)
        return mean.item()

    # One step

    def step(self, step: int, x: Tensor, targets: Tensor) -> Tensor:
        """One update of the weights; returns the loss without waiting for it."""
        draw = self.rollback.draw(step) if self.rollback else step
        torch.manual_seed(mix(self.seed, Purpose.LAYERS, draw, self.world.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step) * group["lr_scale"]
        archs = self.archs(draw, self.world.rank)
        loss = self.gradients(x, targets, archs)
        reduce_gradients(self.model, self.world, same=not self.own_archs)
        if self.recipe.clip_grad:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.update(self.archs_of_all_processes(draw))
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(self.model, step)
        return loss / len(archs)

    def archs(self, draw: int, rank: int = 0) -> list[Arch | None]:
        """The archs that a step runs in a process; None stands for a model that is no supernet."""
        if not self.sampler:
            return [None]
        return list(self.sampler(draw * self.world.size + rank if self.own_archs else draw))

    def archs_of_all_processes(self, draw: int) -> list[Arch | None]:
        """The archs that a step runs in any process."""
        return [arch for rank in range(self.world.size if self.own_archs else 1) for arch in self.archs(draw, rank)]

    def rate(self, step: int) -> float:
        rate = learning_rate(step, self.batches.steps_per_epoch, self.recipe)
        return rate * self.rollback.lr_factor(step) if self.rollback else rate

    def gradients(self, x: Tensor, targets: Tensor, archs: list[Arch | None]) -> Tensor:
        """Adds up the gradients of a step's archs, in a sandwich the largest first; returns the sum of their losses."""
        largest, *others = archs
        if self.graphs:
            self.graphs.adds_up = len(archs) * self.recipe.accumulate > 1
        if self.class_weights is not None:
            targets = targets * self.class_weights
        supervision, loss = self.supervise(x, targets), self.loss
        total, outputs = self.backward(x, supervision, largest, loss)
        if largest is not None and isinstance(self.model, Supernet) and decays_by_loss(self.model, self.recipe):
            add_decay(self.model, largest, self.recipe)
        if self.recipe.inplace_distillation:  # the others learn what the largest answers
            assert self.objective.taught
            answers = self.objective.taught(torch.cat(outputs).float(), targets, Answers())
            supervision, loss = supervision._replace(targets=answers), self.objective.loss
        for arch in others:
            total += self.backward(x, supervision, arch, loss)[0]
        return total

    def supervise(self, x: Tensor, targets: Tensor) -> Supervision:
        """What the archs of a step learn: the targets, into which a teacher mixes its answers, and its features."""
        if not self.teacher:
            return Supervision(targets, {})
        with autocast(self.device, self.recipe.precision):
            return self.teacher(x, targets)

    def backward(
        self, x: Tensor, supervision: Supervision, arch: Arch | None, compare: Loss
    ) -> tuple[Tensor, list[Tensor]]:
        """Adds the gradients of one arch, part by part of the batch; returns its loss and the logits of each part."""
        total, outputs = torch.zeros((), device=self.device), list[Tensor]()
        parts = zip(x.chunk(self.recipe.accumulate), supervision.chunk(self.recipe.accumulate), strict=True)
        for images, part in parts:
            logits, loss = self.forward(images, part, arch, compare)
            loss = loss * (len(images) / len(x))
            loss.backward()
            total += loss.detach()
            if self.recipe.inplace_distillation:
                outputs.append(logits.detach())
        return total, outputs

    def forward(
        self, images: Tensor, supervision: Supervision, arch: Arch | None, compare: Loss
    ) -> tuple[Tensor, Tensor]:
        """The logits of images, and their loss, with the features of a teacher where they are learned."""
        options: dict[str, Any] = {"targets": supervision.targets} if self.objective.within_model else {}
        with autocast(self.device, self.recipe.precision):
            if self.graphs and arch is None and isinstance(images, Tensor) and not options:
                logits, *features = self.replay_model(self.graphs, images, supervision.features)
            else:
                inputs = (images,) if arch is None else (images, arch)
                logits, *features = self.run_model(partial(self.model, *inputs, **options), supervision.features)
        loss = compare(logits, images, supervision.targets)
        if supervision.features:
            own = dict(zip(self.learned_features, features, strict=True))
            loss = loss + self.recipe.teacher_features * feature_difference(own, supervision.features)
        return logits, loss

    def replay_model(self, graphs: CudaGraphs, images: Tensor, learned: Mapping[str, Tensor]) -> tuple[Any, ...]:
        """`run_model` for a single model, recorded as one graph."""
        weights = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

        def forward(images: Tensor, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
            state = dict(zip(weights, tensors, strict=True))
            return self.run_model(lambda **options: functional_call(self.model, state, (images,), options), learned)

        return graphs("model", forward, images, list(weights.values()), after="model")

    def run_model(self, model: Callable[..., Any], learned: Mapping[str, Tensor]) -> tuple[Any, ...]:
        """The logits and the features that a teacher has as well, whose names go into `learned_features`.

        Names and tensors apart, as a CUDA graph replays tensors only.
        """
        outputs: dict[str, Tensor] = {}  # filled by the model, by segment
        logits = model(**({"outputs": outputs} if learned else {}))
        self.learned_features = [name for name in learned if name in outputs]
        return (logits, *(outputs[name] for name in self.learned_features))

    def update(self, archs: list[Arch | None]) -> None:
        """Updates the weights; where the recipe freezes slices, only what one of the archs uses."""
        if self.frozen:
            self.frozen.step([arch for arch in archs if arch is not None])
        else:
            self.optimizer.step()

    # Checkpoints

    def save_if_due(self, stop: StopSignals) -> None:
        """Writes a checkpoint by time, at the end, or to stop; all processes together."""
        at_end = self.done == self.total
        if self.world.size > 1 and self.done % STEPS_TO_AGREE and not at_end:
            return
        late = self.world.main and time.monotonic() >= self.next_save
        due, stopping = self.world.any(late, stop.requested is not None, device=self.device)
        saved = self.save() if at_end or due or stopping else False
        if stopping:
            raise TrainingStopped(self.done, self.total, saved, stop.requested)

    def save(self) -> bool:
        """Writes a checkpoint, unless there is no folder or something is not finite; returns whether it did."""
        losses = self.losses.gathered()
        if not self.checkpoints or not (losses.isfinite().all() and weights_are_finite(self.model)):
            return False
        if self.world.main and len(losses):
            self.save_within_interval(self.checkpoints, losses)
        elif self.world.main:
            self.checkpoints.save(self.done, self.interval_state, last=self.done == self.total)
        self.next_save = time.monotonic() + self.recipe.checkpoint_seconds
        return True

    def save_within_interval(self, checkpoints: Checkpoints, losses: Tensor) -> None:
        """Writes a checkpoint with the losses so far; that of the interval's start is kept as well, for a rollback.

        Step 0 needs none: it is what a training starts with.
        """
        start, parts = self.interval_start, {**self.state(), "interval": {"losses": losses}}
        if start and self.interval_state and start not in checkpoints.steps():
            checkpoints.save(start, self.interval_state)
        checkpoints.save(self.done, parts, keep=start or None)

    def state(self) -> Parts:
        """A copy, in main memory, of all that the rest of the training depends on."""
        parts: Parts = {"weights": self.model.state_dict()}
        parts["optimizer"] = optimizer_tensors(self.model, self.optimizer)
        if self.average:
            parts["average"] = self.average.tensors
        if self.stopping and self.stopping.weights:
            parts["best"] = self.stopping.weights
        return {part: copied(tensors) for part, tensors in parts.items()}

    @torch.no_grad()
    def set_state(self, parts: Parts) -> None:
        """Takes the state that `state` has copied."""
        self.model.load_state_dict(parts["weights"])
        restore_optimizer(self.model, self.optimizer, parts["optimizer"])
        if self.average and "average" in parts:
            self.average.restore(parts["average"])
        if self.stopping:
            self.stopping.weights = parts.get("best", {})

    def restore(self) -> None:
        """Goes on from the newest checkpoint, if there is one."""
        self.begin_interval(self.state())
        if self.checkpoints and self.log_path:
            lines = TrainLog.read(self.log_path)
            # Without a line in the log there is nothing to lose but the damaged checkpoint itself.
            self.done, parts = self.checkpoints.load(start_over=not lines)
            self.rollback = self.checkpoints.load_rollback()
            if parts:
                self.restore_checkpoint(self.checkpoints, parts)
                self.restore_stopping(lines)
        self.world.barrier()  # nobody may write while another still reads
        self.next_save = time.monotonic() + FIRST_CHECKPOINT * self.recipe.checkpoint_seconds
        if 0 < self.done < self.total and not self.quiet:
            say(f"{self.label}: resuming at step {self.done} of {self.total}")
            if self.checkpoints:
                self.checkpoints.warn_of_other_processes(self.done)

    def restore_checkpoint(self, checkpoints: Checkpoints, parts: Parts) -> None:
        """Takes the state of the checkpoint at this step; refuses one that does not fit the model."""
        try:
            self.set_state(parts)
            self.restore_interval(checkpoints, parts)
        except (LookupError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            reason, path = str(error).splitlines()[-1].strip(), checkpoints.path(self.done)
            raise UserError(f"{path} does not fit the model ({reason}); restore it or use another folder") from None

    def restore_interval(self, checkpoints: Checkpoints, parts: Parts) -> None:
        """Restores losses so far and the state to go back to: the checkpoint itself where an interval starts."""
        start, state, losses = self.interval_start, self.interval_state, parts.get("interval", {}).get("losses")
        if self.done == start:
            state = parts
        elif start:
            try:
                _, state = checkpoints.read(start)
            except DamagedCheckpoint:
                state = {}
        self.begin_interval(state, losses)

    def restore_stopping(self, lines: list[dict[str, Any]]) -> None:
        """Restores the best scores so far from the log; a training that was stopped early stays so."""
        if self.stopping:
            for line in lines:
                if line["step"] <= self.done and self.stopping.is_better(line):
                    self.stopping.remember(line["step"], line)
            self.stop_early()

    def roll_back(self, trouble: NotFinite) -> None:
        """Goes back to where the interval began, once; reports it, and records it for a training that is resumed."""
        if self.rollback or not self.interval_state:
            raise trouble
        back_to = (self.done - 1) // self.interval * self.interval  # the last step may have ended its interval
        self.rollback = Rollback.after(trouble, back_to, self.total, self.batches.steps_per_epoch)
        self.optimizer.zero_grad()
        self.set_state(self.interval_state)
        self.done = back_to
        self.begin_interval(self.interval_state)
        if self.checkpoints and self.world.main:
            # Checkpoints behind this step are of the attempt that failed.
            if back_to:
                self.checkpoints.save(back_to, self.interval_state)
            else:
                self.checkpoints.clear()
            self.checkpoints.save_rollback(self.rollback)
        if not self.quiet:
            say(str(self.rollback))
