"""The training loop, for supernets and for single models alike."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nasformer.data import BatchSource
from nasformer.data.rng import Stream, mix
from nasformer.errors import UserError
from nasformer.progress import progress
from nasformer.recipe import Recipe
from nasformer.space import Arch
from nasformer.supernet import Supernet
from nasformer.supernet.samplers import Sampler
from nasformer.train.checkpoint import Checkpoints, optimizer_tensors, restore_optimizer
from nasformer.train.distributed import World, reduce_gradients
from nasformer.train.ema import MovingAverage
from nasformer.train.log import TrainLog
from nasformer.train.loss import Loss, soft_cross_entropy
from nasformer.train.optimizer import FrozenSlices, make_optimizer
from nasformer.train.precision import autocast
from nasformer.train.schedule import learning_rate


class Trainer:
    """Trains a model by a recipe. Everything random is a function of (seed, step): a killed training, started
    again with the same folder, ends with the same weights as one that ran through.

    Args:
        model: A supernet, with a sampler that says which archs a step runs; or any other model, without.
        batches: Where the images come from.
        folder: Where log and checkpoints go; None keeps nothing.
        settings: What else the weights depend on (space, data ...), to refuse a folder of another training.
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
    ) -> None:
        self.model, self.batches, self.recipe, self.sampler, self.loss = model, batches, recipe, sampler, loss
        self.seed, self.world, self.quiet = seed, world or World(), quiet
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, recipe)
        self.frozen = recipe.freeze == "slices" and isinstance(model, Supernet)
        self.average = MovingAverage(model, recipe.ema) if recipe.ema else None
        self.total = math.ceil(recipe.epochs * batches.steps_per_epoch)
        self.interval = max(1, round(recipe.log_epochs * batches.steps_per_epoch))
        everything = {**result_settings(recipe), **(settings or {}), "seed": seed}
        self.checkpoints = Checkpoints(folder / "checkpoints", everything) if folder else None
        self.log_path = folder / "log.jsonl" if folder and self.world.main else None

    def run(self) -> float:
        """Trains to the end and returns the mean loss of the last interval."""
        start = self.restore()
        log, saved = TrainLog(self.log_path, start), time.monotonic()
        self.model.train()
        losses: list[Tensor] = []
        mean = math.nan
        with progress("train", self.total, self.quiet or not self.world.main) as report:
            batches = self.batches.train_batches(start)
            for step in range(start, self.total):
                losses.append(self.step(step, *next(batches)))
                done = step + 1
                if done % self.interval == 0 or done == self.total:
                    mean = self.mean_loss(losses, done)
                    log.append(self.line(done, mean))
                    losses.clear()
                    if done == self.total or time.monotonic() - saved > self.recipe.checkpoint_seconds:
                        self.save(done)
                        saved = time.monotonic()
                report(done, f"loss {mean:.3f}")
        if self.average:
            self.average.copy_to(self.model)
        # A training that was finished before has its last loss in the log.
        return TrainLog.read(self.log_path)[-1]["loss"] if self.log_path and start == self.total else mean

    def step(self, step: int, x: Tensor, targets: Tensor) -> Tensor:
        """One update of the weights; returns the loss without waiting for it."""
        torch.manual_seed(mix(self.seed, Stream.LAYERS, step, self.world.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.batches.steps_per_epoch, self.recipe)
        archs: list[Arch | None] = list(self.sampler(step)) if self.sampler else [None]
        loss = sum((self.backward(x, targets, arch) for arch in archs), torch.zeros((), device=self.device))
        reduce_gradients(self.model, self.world)
        if self.recipe.clip_grad:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
        self.update(archs)
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(self.model, step)
        return loss / len(archs)

    def backward(self, x: Tensor, targets: Tensor, arch: Arch | None) -> Tensor:
        """Adds the gradients of one arch, part by part of the batch."""
        total = torch.zeros((), device=self.device)
        parts = zip(x.chunk(self.recipe.accumulate), targets.chunk(self.recipe.accumulate), strict=True)
        for images, wanted in parts:
            with autocast(self.device, self.recipe.precision):
                logits = self.model(images) if arch is None else self.model(images, arch)
            loss = self.loss(logits, images, wanted) * (len(images) / len(x))
            loss.backward()
            total += loss.detach()
        return total

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
        self.check_finite(mean, "loss", step)
        return mean.item()

    def check_finite(self, value: Tensor, what: str, step: int) -> None:
        if not value.isfinite():
            raise UserError(
                f"the {what} is not finite at step {step}; the last checkpoint is kept: lower --train.lr, raise "
                "--train.warmup_epochs or set --train.clip_grad, in another --out folder"
            )

    def line(self, done: int, loss: float) -> dict[str, Any]:
        per_epoch = self.batches.steps_per_epoch
        rate = learning_rate(done - 1, per_epoch, self.recipe)
        return {"step": done, "epoch": round(done / per_epoch, 4), "loss": loss, "lr": rate}

    def save(self, step: int) -> None:
        if self.checkpoints is None or not self.world.main:
            return
        # A finite loss may have had a gradient that is not; such weights must not replace good ones.
        self.check_finite(torch.stack(torch._foreach_norm(list(self.model.parameters()))).sum(), "weights' norm", step)
        parts: dict[str, dict[str, Tensor]] = {"weights": self.model.state_dict()}
        parts["optimizer"] = optimizer_tensors(self.model, self.optimizer)
        if self.average:
            parts["average"] = self.average.tensors
        self.checkpoints.save(step, parts)

    @torch.no_grad()
    def restore(self) -> int:
        """Goes back to the newest checkpoint; returns the step it is at."""
        step, parts = self.checkpoints.load() if self.checkpoints else (0, {})
        if parts:
            self.model.load_state_dict(parts["weights"])
            restore_optimizer(self.model, self.optimizer, parts["optimizer"])
        if self.average and "average" in parts:
            self.average.restore(parts["average"])
        self.world.barrier()  # nobody may write while another still reads
        return step


# How fast a training runs and how often it reports; all else decides its result.
INCIDENTAL = ("accumulate", "compile", "checkpoint_seconds")


def result_settings(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name not in INCIDENTAL}
