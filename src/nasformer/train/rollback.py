"""A second chance for a training whose loss or weights are no numbers any more.

Everything random is a function of (seed, step), so the same steps would give the same result again. Hence from the
step that the training goes back to, it draws as if that many epochs later, past its end, where it would never have
come (other batches, archs and dropped layers), and with half the learning rate. Where it goes back to depends on the
settings alone, not on the moments of checkpoints; so a killed training still ends as one that ran through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from nasformer.data import BatchSource
from nasformer.data.batches import Batch
from nasformer.errors import UserError

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
