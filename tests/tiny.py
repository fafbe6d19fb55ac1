"""The smallest training that is one: shared by the tests of training, export, pipeline and command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import Batch, Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.models.registry import get_space
from nasformer.supernet.supernet import Supernet
from nasformer.train.loop import train_supernet
from nasformer.train.recipe import Recipe

torch.set_num_threads(1)  # for tensors this small, threads that wait for each other cost more than they save

MICRO = get_space("autoformer-micro", img_size=8, patch_size=4, in_chans=1, num_classes=10, drop_path_rate=0.0)
SPACE = MICRO.with_choices({"embed_dim": [16, 24, 32], "blocks.num_heads": [1, 2], "blocks.depth": [1, 2]})
DATA = load_data("digits", holdout=0.2)
PLAIN = AugmentOptions(crop="none", hflip=0.0, smoothing=0.0)
SMALLEST, LARGEST = SPACE.root.smallest(), SPACE.root.largest()


class Interrupted(Exception):
    """Stands for whatever ends a process."""


class Watched(Batches):
    """Batches that remember which steps were taken, and can fail at one of them."""

    def __init__(self, recipe: Recipe, fail_at: int | None = None) -> None:
        super().__init__(DATA, recipe.augment, recipe.batch_size)
        self.fail_at, self.taken = fail_at, list[int]()

    def train(self, step: int) -> Batch:
        if step == self.fail_at:
            raise Interrupted
        self.taken.append(step)
        return super().train(step)


def recipe(**changes: Any) -> Recipe:
    """Eight steps an epoch, a line of the log after every second one, and a checkpoint after each."""
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 128, "warmup_epochs": 0.5, "augment": PLAIN}
    return Recipe(**(settings | {"log_epochs": 0.25, "checkpoint_seconds": 0.0} | changes))


def supernet(**options: Any) -> Supernet:
    return Supernet(SPACE.with_options(**options), seed=0)


def train(folder: Path | None, recipe: Recipe, fail_at: int | None = None, **options: Any) -> tuple[Supernet, Watched]:
    """Trains as a new process would: nothing is left from before but the folder."""
    model, batches = supernet(**options), Watched(recipe, fail_at)
    train_supernet(model, batches, recipe, folder=folder, quiet=True)
    return model, batches


def assert_same(found: nn.Module | Mapping[str, Tensor], expected: nn.Module | Mapping[str, Tensor]) -> None:
    """Bit for bit."""
    found, expected = (x.state_dict() if isinstance(x, nn.Module) else x for x in (found, expected))
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different
