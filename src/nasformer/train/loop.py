"""The training loop, for supernets and for single models alike."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nasformer.data import BatchSource
from nasformer.data.batches import Batch
from nasformer.data.rng import Stream, mix
from nasformer.progress import Progress, progress, say
from nasformer.recipe import Recipe
from nasformer.space import Arch
from nasformer.supernet import Supernet
from nasformer.supernet.samplers import Sampler
from nasformer.supernet.statistics import IMAGES
from nasformer.train.checkpoint import Checkpoints, Parts, copied, optimizer_tensors, restore_optimizer
from nasformer.train.distributed import World, reduce_gradients
from nasformer.train.ema import MovingAverage
from nasformer.train.log import TrainLog
from nasformer.train.loss import Loss, soft_cross_entropy
from nasformer.train.optimizer import FrozenSlices, add_decay, decays_by_loss, make_optimizer
from nasformer.train.precision import autocast
from nasformer.train.rollback import NotFinite, Rollback, batches_from, check_finite
from nasformer.train.schedule import learning_rate
from nasformer.train.watch import Watch


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
