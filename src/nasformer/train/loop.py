"""The training loop, for supernets and for single models alike."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nasformer.data.images import Data
from nasformer.data.loaders import Batch, Batches, BatchSource
from nasformer.families.base import Backbone
from nasformer.search.budget import Budget
from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.supernet.calibration import IMAGES
from nasformer.supernet.samplers import Sampler, make_sampler
from nasformer.supernet.supernet import COMPILE_OPTIONS, Supernet
from nasformer.train.checkpoint import (
    Checkpoints,
    NotFinite,
    Parts,
    Rollback,
    batches_from,
    check_finite,
    copied,
    optimizer_tensors,
    restore_optimizer,
)
from nasformer.train.distributed import World, join_world, reduce_gradients
from nasformer.train.evaluate import autocast, inherited_accuracy
from nasformer.train.log import TrainLog
from nasformer.train.loss import Loss, load_teacher, soft_cross_entropy, with_teacher
from nasformer.train.optim import FrozenSlices, MovingAverage, add_decay, decays_by_loss, learning_rate, make_optimizer
from nasformer.train.recipe import Recipe
from nasformer.train.watch import Watch
from nasformer.utils.progress import Progress, progress, say
from nasformer.utils.rng import Stream, mix


class Trainer:
    """Trains a model by a recipe. Everything random is a function of (seed, step): a killed training, started
    again with the same folder, ends with the same weights as one that ran through.

    Args:
        model: A supernet, with a sampler that says which archs a step runs; or any other model, without.
            Where the recipe treats the largest arch of a step in its own way, that is the sampler's first.
        batches: Where the images come from.
        folder: Where log and checkpoints go; None keeps nothing.
        settings: What else the weights depend on (space, data ...), to refuse a folder of another training.
        calibration_images: How many images batch norm is estimated anew on before an arch is watched.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: BatchSource,
        recipe: Recipe,
        *,
        sampler: Sampler | None = None,
        loss: Loss = soft_cross_entropy,
        folder: Path | None = None,
        settings: dict[str, Any] | None = None,
        seed: int = 0,
        world: World | None = None,
        quiet: bool = False,
        calibration_images: int = IMAGES,
    ) -> None:
        self.model, self.batches, self.recipe, self.sampler, self.loss = model, batches, recipe, sampler, loss
        self.seed, self.world, self.quiet = seed, world or World(), quiet
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, recipe)
        self.frozen = recipe.freeze == "slices" and isinstance(model, Supernet)
        self.average = MovingAverage(model, recipe.ema) if recipe.ema else None
        self.total = recipe.total_steps(batches.steps_per_epoch)
        self.interval = max(1, round(recipe.log_epochs * batches.steps_per_epoch))
        everything = {**result_settings(recipe), **(settings or {}), "seed": seed}
        self.checkpoints = Checkpoints(folder / "checkpoints", everything) if folder else None
        self.log_path = folder / "log.jsonl" if folder and self.world.main else None
        self.rollback: Rollback | None = None
        self.good, self.note = Parts(), ""  # the last state that was finite; the last loss in words
        self.watch = Watch(model, batches, recipe, calibration_images, seed) if isinstance(model, Supernet) else None

    def run(self) -> float:
        """Trains to the end and returns the mean loss of the last interval."""
        start = step = self.restore()
        log, saved, mean = self.open_log(start), time.monotonic(), math.nan
        self.model.train()
        with progress("train", self.total, self.quiet or not self.world.main) as report:
            batches = batches_from(self.batches, start, self.rollback)
            while step < self.total:
                try:
                    mean = self.interval_from(step, batches, log, report)
                except NotFinite as trouble:
                    self.roll_back(step, trouble)
                    batches, log = batches_from(self.batches, step, self.rollback), self.open_log(step)
                    continue
                step, self.good = self.end_of(step), self.state()
                if step == self.total or time.monotonic() - saved > self.recipe.checkpoint_seconds:
                    self.save(step)
                    saved = time.monotonic()
        if self.average:
            self.average.copy_to(self.model)
        # A training that was finished before has its last loss in the log.
        return TrainLog.read(self.log_path)[-1]["loss"] if self.log_path and start == self.total else mean

    def open_log(self, step: int) -> TrainLog:
        """The log, to go on with behind this step."""
        return TrainLog(self.log_path, step, self.recipe.tensorboard)

    def end_of(self, step: int) -> int:
        """Where the interval ends that begins with this step."""
        return min((step // self.interval + 1) * self.interval, self.total)

    def interval_from(self, start: int, batches: Iterator[Batch], log: TrainLog, report: Progress) -> float:
        """Trains to the next line of the log and writes it; returns the mean loss."""
        if self.rollback and self.rollback.back_to == start:
            log.append(self.line(start, rollback=self.rollback.to_dict()))
        losses, end = list[Tensor](), self.end_of(start)
        for step in range(start, end):
            losses.append(self.step(step, *next(batches)))
            # A watch comes before the line and the checkpoint of its step: so no resume can lose or repeat it.
            if self.watch and self.log_path and self.watch.due(step + 1, self.total):
                log.append(self.line(step + 1, **self.watch.look()))
            if step + 1 < end:
                report(step + 1, self.note)
        mean = self.mean_loss(losses, end)
        check_finite(self.model, end)
        log.append(self.line(end, loss=mean, lr=self.rate(end - 1)))
        self.note = f"loss {mean:.3f}"
        report(end, self.note)
        return mean

    def roll_back(self, step: int, trouble: NotFinite) -> None:
        """Goes back to where the interval began, once; says so, and notes it for a training that is resumed."""
        if self.rollback:
            raise trouble
        self.rollback = Rollback.of(step, trouble, self.total, self.batches.steps_per_epoch)
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        self.take(self.good)
        if self.world.main:
            if self.checkpoints:
                self.checkpoints.note_rollback(self.rollback.to_dict())
            if not self.quiet:
                say(str(self.rollback))

    def step(self, step: int, x: Tensor, targets: Tensor) -> Tensor:
        """One update of the weights; returns the loss without waiting for it."""
        draw = self.rollback.draw(step) if self.rollback else step
        torch.manual_seed(mix(self.seed, Stream.LAYERS, draw, self.world.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        archs: list[Arch | None] = list(self.sampler(draw)) if self.sampler else [None]
        loss = self.gradients(x, targets, archs)
        reduce_gradients(self.model, self.world)
        if self.recipe.clip_grad:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.update(archs)
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(self.model, step)
        return loss / len(archs)

    def rate(self, step: int) -> float:
        rate = learning_rate(step, self.batches.steps_per_epoch, self.recipe)
        return rate * self.rollback.slower(step) if self.rollback else rate

    def gradients(self, x: Tensor, targets: Tensor, archs: list[Arch | None]) -> Tensor:
        """Adds up the gradients of a step's archs, in a sandwich the largest first; returns the sum of their losses."""
        largest, *others = archs
        total, logits = self.backward(x, targets, largest, self.loss)
        if largest is not None and isinstance(self.model, Supernet) and decays_by_loss(self.model, self.recipe):
            add_decay(self.model, largest, self.recipe)
        loss = self.loss
        if self.recipe.inplace_distillation:
            targets, loss = logits.float().softmax(-1), soft_cross_entropy
        for arch in others:
            total += self.backward(x, targets, arch, loss)[0]
        return total

    def backward(self, x: Tensor, targets: Tensor, arch: Arch | None, compare: Loss) -> tuple[Tensor, Tensor]:
        """Adds the gradients of one arch, part by part of the batch; returns its loss and its logits."""
        total, outputs = torch.zeros((), device=self.device), []
        parts = zip(x.chunk(self.recipe.accumulate), targets.chunk(self.recipe.accumulate), strict=True)
        for images, wanted in parts:
            with autocast(self.device, self.recipe.precision):
                logits = self.model(images) if arch is None else self.model(images, arch)
            loss = compare(logits, images, wanted) * (len(images) / len(x))
            loss.backward()
            total += loss.detach()
            outputs.append(logits.detach())
        return total, torch.cat(outputs)

    def update(self, archs: list[Arch | None]) -> None:
        if self.frozen and isinstance(self.model, Supernet):
            FrozenSlices(self.model, self.optimizer).step([arch for arch in archs if arch is not None])
        else:
            self.optimizer.step()

    def mean_loss(self, losses: list[Tensor], step: int) -> float:
        mean = torch.stack(losses).mean()
        if self.world.size > 1:
            dist.all_reduce(mean)
            mean /= self.world.size
        if not mean.isfinite():
            raise NotFinite("loss", step)
        return mean.item()

    def line(self, done: int, **facts: Any) -> dict[str, Any]:
        return {"step": done, "epoch": round(done / self.batches.steps_per_epoch, 4), **facts}

    def save(self, step: int) -> None:
        if self.checkpoints and self.world.main:
            self.checkpoints.save(step, self.good)

    def state(self) -> Parts:
        """A copy of all that the rest of the training depends on, in main memory."""
        parts: Parts = {"weights": self.model.state_dict()}
        parts["optimizer"] = optimizer_tensors(self.model, self.optimizer)
        if self.average:
            parts["average"] = self.average.tensors
        return {part: {name: copied(one) for name, one in tensors.items()} for part, tensors in parts.items()}

    @torch.no_grad()
    def take(self, parts: Parts) -> None:
        self.model.load_state_dict(parts["weights"])
        restore_optimizer(self.model, self.optimizer, parts["optimizer"])
        if self.average and "average" in parts:
            self.average.restore(parts["average"])

    def restore(self) -> int:
        """Goes back to the newest checkpoint; returns the step it is at."""
        step, parts = self.checkpoints.load() if self.checkpoints else (0, {})
        if parts:
            self.take(parts)
        noted = self.checkpoints.noted_rollback() if self.checkpoints else None
        self.rollback = Rollback(**noted) if noted else None
        self.good = self.state()
        self.world.barrier()  # nobody may write while another still reads
        return step


# How fast a training runs and how often it reports; all else decides its result.
INCIDENTAL = ("accumulate", "compile", "checkpoint_seconds", "tensorboard")


def result_settings(recipe: Recipe) -> dict[str, Any]:
    without = (*INCIDENTAL, "epochs") if recipe.iterations else INCIDENTAL
    return {name: value for name, value in asdict(recipe).items() if name not in without}


# ----------------------------------------------------------------------------------------------------------------------
# What training a supernet and training an ordinary model have in common: processes, batches, loss, loop.
# ----------------------------------------------------------------------------------------------------------------------


def fit(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe,
    *,
    sampler: Sampler | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> float:
    """Trains a model in place, where its weights are, among the processes of torchrun. Returns the last mean loss."""
    device = next(model.parameters()).device
    world = join_world(device)
    batches = as_batches(data, recipe, seed, world, device)
    trainer = Trainer(
        model,
        batches,
        recipe,
        sampler=sampler,
        loss=loss_of(recipe, batches, device),
        folder=Path(folder) if folder else None,
        settings=settings,
        seed=seed,
        world=world,
        quiet=quiet,
        calibration_images=calibration_images,
    )
    return trainer.run()


def as_batches(data: Data | BatchSource, recipe: Recipe, seed: int, world: World, device: torch.device) -> BatchSource:
    if not isinstance(data, Data):
        return data
    return Batches(data, recipe.augment, recipe.batch_size, seed, world.rank, world.size, device, recipe.repeats)


def loss_of(recipe: Recipe, batches: BatchSource, device: torch.device) -> Loss:
    """The targets alone, or together with what the recipe's teacher thinks."""
    if not recipe.teacher:
        return soft_cross_entropy
    teacher = load_teacher(recipe.teacher, batches.num_classes, batches.in_chans, device)
    return with_teacher(teacher, recipe.teacher_weight, recipe.augment.smoothing)


# ----------------------------------------------------------------------------------------------------------------------
# The two things one does with a supernet: train it, and search it.
# ----------------------------------------------------------------------------------------------------------------------


def train_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> float:
    """Trains the shared weights in place, each step on the archs that the recipe's sampler draws.

    Returns the last mean loss. With a folder it can be killed and started again. Under torchrun every process calls
    it alike.
    """
    recipe = recipe or Recipe()
    if recipe.compile:
        supernet.compile()
    return fit(
        supernet,
        data,
        recipe,
        sampler=make_sampler(supernet.space, recipe.sampler, recipe.sandwich, seed),
        folder=folder,
        seed=seed,
        # No arch of its own: so the folder of a single model's training is refused.
        settings={"space": supernet.space.name, "arch": None, **(settings or {})},
        quiet=quiet,
        calibration_images=calibration_images,
    )


def search_supernet(
    supernet: Supernet,
    data: Data | BatchSource,
    *,
    budget: Budget | None = None,
    strategy: str = "evolution",
    options: Mapping[str, Any] | None = None,
    objectives: tuple[str, ...] = ("accuracy",),
    seed: int = 0,
    journal: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: str = "auto",
    quiet: bool = False,
    calibration_images: int = IMAGES,
) -> SearchResult:
    """Searches the space by accuracy with inherited weights on the held-out images, never the test set.

    Where there is batch norm, an arch's own statistics are estimated on so many training images first.
    """
    # What has no effect is no setting: so it refuses no journal.
    calibration = {"calibration_images": calibration_images} if supernet.has_statistics else {}
    batches = as_batches(data, Recipe(), seed, World(), supernet.device)
    return search(
        supernet.space,
        inherited_accuracy(supernet, batches, "holdout", precision, calibration_images),
        supernet.space.costs,
        strategy=strategy,
        options=options,
        budget=budget or Budget(),
        objectives=objectives,
        seed=seed,
        journal=journal,
        settings={"space": supernet.space.name, **calibration, **(settings or {})},
        quiet=quiet,
    )


# ----------------------------------------------------------------------------------------------------------------------
# What one does with a single model: train it from scratch.
# ----------------------------------------------------------------------------------------------------------------------


def train_model(
    model: nn.Module,
    data: Data | BatchSource,
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> float:
    """Trains an ordinary model in place, the whole of it in every step. Returns the last mean loss.

    With a folder it can be killed and started again. Under torchrun every process calls it alike, with the same
    weights. What a recipe says of supernets (`freeze`, `sampler`, `sandwich` ...) has no meaning here.
    """
    recipe = recipe or Recipe()
    if recipe.compile:
        model.compile(options=COMPILE_OPTIONS)  # in place, so that weights keep their names
    arch = model.arch.to_json() if isinstance(model, Backbone) else type(model).__name__
    settings = {"arch": arch, **(settings or {})}
    return fit(model, data, recipe, folder=folder, seed=seed, settings=settings, quiet=quiet)
