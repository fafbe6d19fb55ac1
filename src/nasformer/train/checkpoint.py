"""Checkpoints of a training: all that the rest of it depends on, in a folder that is whole or not there.

Random numbers need no saving: every draw is a function of (seed, step).
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import Batch, BatchSource
from nasformer.errors import UserError
from nasformer.utils.files import read_json, read_tensors, save_tensors, write_json

Parts = dict[str, dict[str, Tensor]]
"""The state of a training: weights, optimizer and, where there is one, average, each by the names of weights."""


@dataclass
class Checkpoints:
    """The checkpoints of one training; only the newest is kept.

    Args:
        folder: Where they live.
        settings: What the training was started with; a checkpoint of other settings is refused.
    """

    folder: Path
    settings: dict[str, Any]

    def save(self, step: int, parts: Parts) -> None:
        draft, final = self.folder / f".step-{step}.tmp", self.folder / f"step-{step}"
        shutil.rmtree(draft, ignore_errors=True)
        for name, tensors in parts.items():
            save_tensors(draft / f"{name}.safetensors", tensors)
        write_json(draft / "settings.json", self.settings)
        os.replace(draft, final)
        for old in self.folder.iterdir():  # also what a kill left half written
            if old not in (final, self.rollback_path):
                shutil.rmtree(old, ignore_errors=True)

    @property
    def rollback_path(self) -> Path:
        return self.folder / "rollback.json"

    def note_rollback(self, facts: Mapping[str, Any]) -> None:
        """Beside the checkpoints, not in one: it holds for steps, whichever checkpoint a training goes on from."""
        write_json(self.rollback_path, {"settings": self.settings, "rollback": facts})

    def noted_rollback(self) -> dict[str, Any] | None:
        """The facts noted; but not those of other settings, which left no checkpoint behind."""
        found = read_json(self.rollback_path) if self.rollback_path.exists() else {}
        return found["rollback"] if found.get("settings") == json.loads(json.dumps(self.settings)) else None

    def steps(self) -> list[int]:
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def load(self) -> tuple[int, Parts]:
        """The newest checkpoint's step and tensors; step 0 and nothing where there is none."""
        if not self.steps():
            return 0, {}
        step = self.steps()[-1]
        folder = self.folder / f"step-{step}"
        self.check(read_json(folder / "settings.json"))
        return step, {path.stem: read_tensors(path) for path in folder.glob("*.safetensors")}

    def check(self, found: dict[str, Any]) -> None:
        before, now = flat(found), flat(self.settings)
        for name, value in now.items():
            if before.get(name) != value:
                raise UserError(
                    f"{self.folder} was trained with {name} = {before.get(name)}, not {value}; "
                    "go on with the old setting or use another --out folder"
                )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names, so that a message can name the one that differs."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


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
    parameters = dict(model.named_parameters())
    for label, tensor in tensors.items():
        name, _, key = label.rpartition(":")
        parameter = parameters[name]
        # AdamW keeps its step count on the CPU unless it is fused
        device = parameter.device if tensor.ndim or fused(optimizer) else torch.device("cpu")
        optimizer.state[parameter][key] = tensor.to(device, copy=True)


def fused(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.param_groups[0].get("fused"))


# ----------------------------------------------------------------------------------------------------------------------
# A second chance for a training whose loss or weights are no numbers any more.
#
# Everything random is a function of (seed, step), so the same steps would give the same result again. Hence from the
# step that the training goes back to, it draws as if that many epochs later, past its end, where it would never have
# come (other batches, archs and dropped layers), and with half the learning rate. Where it goes back to depends on the
# settings alone, not on the moments of checkpoints; so a killed training still ends as one that ran through.
# ----------------------------------------------------------------------------------------------------------------------

SLOWER = 0.5
"""What the learning rate is multiplied by from there to the end: what fails is most often too high a rate."""


class NotFinite(UserError):
    """The loss or the weights of a training are not finite."""

    def __init__(self, what: str, step: int) -> None:
        self.what, self.step = what, step
        super().__init__(
            f"the {what} is not finite at step {step}; the last checkpoint is kept: lower --train.lr, raise "
            "--train.warmup_epochs or set --train.clip_grad, in another --out folder"
        )


@dataclass(frozen=True)
class Rollback:
    """That a training went back, and how it goes on.

    Args:
        back_to: The step it went back to, and failed: the one at which the trouble was seen.
        what: What was not finite.
        shift: By how many steps later its random draws are.

    >>> rollback = Rollback.of(4, NotFinite("loss", 6), total=20, steps_per_epoch=8)
    >>> rollback.draw(3), rollback.draw(4), rollback.slower(3), rollback.slower(4)
    (3, 28, 1.0, 0.5)
    """

    back_to: int
    failed: int
    what: str
    shift: int

    @classmethod
    def of(cls, back_to: int, trouble: NotFinite, total: int, steps_per_epoch: int) -> Rollback:
        """Whole epochs, so that an epoch still shows each image once."""
        return cls(back_to, trouble.step, trouble.what, math.ceil(total / steps_per_epoch) * steps_per_epoch)

    def draw(self, step: int) -> int:
        return step + self.shift if step >= self.back_to else step

    def slower(self, step: int) -> float:
        return SLOWER if step >= self.back_to else 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"the {self.what} was not finite at step {self.failed}: training went back to step {self.back_to}, and on "
            f"from there with other random draws and {SLOWER:g} of the learning rate"
        )


def batches_from(source: BatchSource, start: int, rollback: Rollback | None) -> Iterator[Batch]:
    """The batches from a step on, without end; those after a rollback are others."""
    if rollback and start < rollback.back_to:
        yield from islice(source.train_batches(start), rollback.back_to - start)
        start = rollback.back_to
    yield from source.train_batches(rollback.draw(start) if rollback else start)


def check_finite(model: nn.Module, step: int) -> None:
    """A finite loss may have had a gradient that is not; the weights then are not finite either."""
    if not torch.stack(torch._foreach_norm(list(model.parameters()))).sum().isfinite():
        raise NotFinite("weights' norm", step)
