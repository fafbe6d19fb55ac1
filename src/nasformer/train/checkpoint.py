"""Checkpoints of a training: all that the rest of it depends on, in a folder that is whole or not there.

A checksum of each file shows damage, and the checkpoint before is kept meanwhile. Random numbers need no saving: every
draw is a function of (seed, step). Below: the one time that a training goes back, when its loss is not finite, and how
a signal stops it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import Batch, BatchSource
from nasformer.errors import UserError
from nasformer.utils.files import read_json, read_tensors, save_tensors, write_json
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json

Parts = dict[str, dict[str, Tensor]]
"""The state of a training: weights, optimizer and, where there is one, average, each by the names of weights."""
SETTINGS, CHECKSUMS, PROCESSES = "settings.json", "checksums", "processes"


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be read or is not as it was written; the message names the file."""


@dataclass
class Checkpoints:
    """The checkpoints of one training: the newest and one before it are kept, of a finished training the last.

    Args:
        folder: Where they live.
        settings: What the training was started with; a checkpoint of other settings is refused.
        quiet: Says nothing of damaged ones.
        processes: How many train together; with others the same settings end with slightly different weights.
    """

    folder: Path
    settings: dict[str, Any]
    quiet: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        self.settings = json.loads(json.dumps(self.settings))  # as it will be read: tuples are lists there

    def save(self, step: int, parts: Parts, *, keep: int | None = None, last: bool = False) -> None:
        """Writes a checkpoint, then removes others.

        Args:
            keep: The step of the one that is kept beside it; None: the newest before it.
            last: Whether it is that of a finished training, which needs no other.
        """
        draft, final = self.folder / f".step-{step}.tmp", self.path(step)
        shutil.rmtree(draft, ignore_errors=True)
        for name, tensors in parts.items():
            save_tensors(draft / f"{name}.safetensors", tensors)
        checksums = {file.name: file_digest(file) for file in sorted(draft.iterdir())}
        settings = {**self.settings, PROCESSES: self.processes}
        checksums[SETTINGS] = json_digest(settings)
        write_json(draft / SETTINGS, {**settings, CHECKSUMS: checksums})
        shutil.rmtree(final, ignore_errors=True)  # such as a damaged one
        os.replace(draft, final)
        kept = [] if last else [other for other in self.steps() if other < step][-1:]
        if keep is not None:
            kept = [keep]
        self.remove_others([step, *kept])

    def remove_others(self, steps: list[int]) -> None:
        """Removes all but these checkpoints, and drafts that a kill left half written."""
        kept = {self.rollback_path, *map(self.path, steps)}
        for path in self.folder.iterdir():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        for step in self.steps():
            shutil.rmtree(self.path(step), ignore_errors=True)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def steps(self) -> list[int]:
        names = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in names if match)

    def load(self, start_over: bool = False) -> tuple[int, Parts]:
        """Step and tensors of the newest intact checkpoint; step 0 and no tensors where there is none.

        Args:
            start_over: Whether step 0 will do as well where all checkpoints are damaged.
        """
        damages = list[str]()
        for step in reversed(self.steps()):
            try:
                settings, parts = self.read(step)
            except DamagedCheckpoint as error:
                damages.append(str(error))
                continue
            self.check(settings)
            self._warn(damages, f"going on from the checkpoint before, at step {step}")
            return step, parts
        if damages and not start_over:
            raise UserError(
                f"{damages[0]}, and there is no other checkpoint; restore it, or remove {self.folder} to start over"
            )
        self._warn(damages, "starting over")
        return 0, {}

    def _warn(self, damages: list[str], then: str) -> None:
        for damage in [] if self.quiet else damages:
            say(f"{damage}; {then}")

    def warn_of_other_processes(self, step: int) -> None:
        """Warns where a training goes on from a checkpoint of more or fewer processes."""
        before = read_json(self.path(step) / SETTINGS).get(PROCESSES, self.processes)
        if before != self.processes:
            say(
                f"warning: {self.folder} was trained by {before} processes so far, now by {self.processes}: sums are "
                "rounded in another order, so the last digits of the weights differ from an undisturbed training"
            )

    def read(self, step: int) -> tuple[dict[str, Any], Parts]:
        """A checkpoint's settings and tensors, verified; checkpoints of versions without checksums are not."""
        folder = self.path(step)
        try:
            settings = read_json(folder / SETTINGS)
            checksums = settings.pop(CHECKSUMS, None)
            if checksums is not None:
                verify(folder, settings, checksums)
            parts = {path.stem: read_tensors(path) for path in folder.glob("*.safetensors")}
        except (UserError, OSError) as error:
            raise DamagedCheckpoint(str(error).split("; ")[0]) from error
        for name in ("weights", "optimizer"):
            if name not in parts:
                raise DamagedCheckpoint(f"{folder / name}.safetensors is missing")
        return settings, parts

    def check(self, settings: dict[str, Any]) -> None:
        """Refuses a checkpoint of other settings by the name of the first that differs."""
        before, now = flat(settings), flat(self.settings)
        for name, value in now.items():
            if before.get(name) != value:
                raise UserError(
                    f"{self.folder} was trained with {name} = {before.get(name)}, not {value}; "
                    "go on with the old setting or use another --out folder"
                )

    @property
    def rollback_path(self) -> Path:
        return self.folder / "rollback.json"

    def save_rollback(self, rollback: Rollback) -> None:
        """Writes the rollback, into a file of its own: it holds whichever checkpoint a training goes on from."""
        write_json(self.rollback_path, {"settings": self.settings, "rollback": asdict(rollback)})

    def load_rollback(self) -> Rollback | None:
        """The rollback of this training; None where there is none, or it is of other settings."""
        if not self.rollback_path.exists():
            return None
        saved = from_json(RollbackRecord, read_json(self.rollback_path), self.rollback_path)
        return saved.rollback if saved.settings == self.settings else None


def verify(folder: Path, settings: dict[str, Any], checksums: Any) -> None:
    """Compares files and settings of a checkpoint with their checksums."""
    if not isinstance(checksums, dict) or checksums.get(SETTINGS) != json_digest(settings):
        raise UserError(f"{folder / SETTINGS} is damaged (its checksum differs)")
    for name, checksum in checksums.items():
        if name != SETTINGS and not (folder / name).exists():
            raise UserError(f"{folder / name} is missing")
        if name != SETTINGS and file_digest(folder / name) != checksum:
            raise UserError(f"{folder / name} is damaged (its checksum differs)")


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names, so that a message can name the one that differs."""
    named: dict[str, Any] = {}
    for name, value in settings.items():
        named |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return named


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state, each tensor under the name of its weight."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Replaces the optimizer's state by a saved one."""
    parameters, fused = dict(model.named_parameters()), bool(optimizer.param_groups[0].get("fused"))
    optimizer.state.clear()
    for label, tensor in tensors.items():
        name, _, key = label.rpartition(":")
        parameter = parameters[name]
        # AdamW keeps its step count on the CPU unless it is fused
        device = parameter.device if tensor.ndim or fused else torch.device("cpu")
        optimizer.state[parameter][key] = tensor.to(device, copy=True)


# Rollback: a second chance for a training whose loss or weights are not finite.
# Everything random is a function of (seed, step), so the same steps would give the same result again. Hence from the
# step that the training goes back to, it draws as if that many epochs later, past its end, where it would never have
# come (other batches, archs and dropped layers), and with half the learning rate. Where it goes back to depends on the
# settings alone, not on the moments of checkpoints; so a killed training still ends as one that ran through.

ROLLBACK_LR = 0.5
"""What the learning rate is multiplied by from there to the end: what fails is most often too high a rate."""


class NotFinite(UserError):
    """Raised where the loss or the weights of a training are not finite."""

    def __init__(self, what: str, step: int) -> None:
        self.what, self.step = what, step
        super().__init__(
            f"the {what} is not finite at step {step}; the last checkpoint is kept: lower --train.lr, raise "
            "--train.warmup_epochs or set --train.clip_grad, in another --out folder"
        )


@dataclass(frozen=True)
class Rollback:
    """The return of a training to an earlier step, and how it goes on.

    Args:
        back_to: The step it went back to.
        failed: The step at which the trouble was seen.
        what: What was not finite.
        shift: By how many steps later its random draws are.

    >>> rollback = Rollback.after(NotFinite("loss", 6), back_to=4, total=20, steps_per_epoch=8)
    >>> rollback.draw(3), rollback.draw(4), rollback.lr_factor(3), rollback.lr_factor(4)
    (3, 28, 1.0, 0.5)
    """

    back_to: int
    failed: int
    what: str
    shift: int

    @classmethod
    def after(cls, trouble: NotFinite, back_to: int, total: int, steps_per_epoch: int) -> Rollback:
        """The rollback after a failure. Its draws shift by whole epochs, so that each still shows every image once."""
        return cls(back_to, trouble.step, trouble.what, math.ceil(total / steps_per_epoch) * steps_per_epoch)

    def draw(self, step: int) -> int:
        """The step whose random draws this step has."""
        return step + self.shift if step >= self.back_to else step

    def lr_factor(self, step: int) -> float:
        return ROLLBACK_LR if step >= self.back_to else 1.0

    def __str__(self) -> str:
        return (
            f"the {self.what} was not finite at step {self.failed}: training went back to step {self.back_to}, and on "
            f"from there with other random draws and {ROLLBACK_LR:g} of the learning rate"
        )


@dataclass(frozen=True)
class RollbackRecord:
    """The content of rollback.json: a rollback, and the settings of its training."""

    settings: dict[str, Any]
    rollback: Rollback


def batches_from(source: BatchSource, start: int, rollback: Rollback | None) -> Iterator[Batch]:
    """The batches from a step on, without end; after a rollback they are different ones."""
    if rollback and start < rollback.back_to:
        yield from islice(source.train_batches(start), rollback.back_to - start)
        start = rollback.back_to
    yield from source.train_batches(rollback.draw(start) if rollback else start)


def weights_are_finite(model: nn.Module) -> bool:
    return bool(torch.stack(torch._foreach_norm(list(model.parameters()))).sum().isfinite())


# Stopping by SIGINT (Ctrl-C) or SIGTERM: a training finishes its step and writes a checkpoint first.


class TrainingStopped(KeyboardInterrupt):
    """Raised where a signal has stopped a training.

    Args:
        step, total: After which step, of how many.
        saved: Whether there is a checkpoint of this step.
        signal_number: Which signal it was; None where another process got it.
    """

    def __init__(self, step: int, total: int, saved: bool, signal_number: int | None = None) -> None:
        self.step, self.total, self.saved, self.signal_number = step, total, saved, signal_number
        super().__init__(f"at step {step} of {total}" + ("" if saved else ", which was not saved"))


class StopSignals:
    """Context in which a first signal is a request to stop, and a second one raises KeyboardInterrupt.

    Outside of the main thread, where Python allows no handlers, it does nothing; nor for signals that are ignored.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
