"""Image files by split: as their author split them (`Listing`), and as they are used (`FileSplits`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nasformer.data.rng import Stream, generator
from nasformer.data.split import stratified
from nasformer.errors import UserError

TEST_FRACTION = 0.2


@dataclass
class Files:
    """Image files and their labels. Paths are one array, which worker processes share, not many strings."""

    paths: np.ndarray
    labels: Tensor

    @classmethod
    def of(cls, pairs: Iterable[tuple[str | Path, int]]) -> Files:
        """Files from (path, label) pairs."""
        found = list(pairs)
        paths = np.array([os.fsencode(path) for path, _ in found], dtype=np.bytes_)
        return cls(paths, torch.tensor([label for _, label in found], dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        return os.fsdecode(bytes(self.paths[index]))

    def subset(self, indices: Tensor) -> Files:
        return Files(self.paths[indices.numpy()], self.labels[indices])

    def __add__(self, other: Files) -> Files:
        return Files(np.concatenate([self.paths, other.paths]), torch.cat([self.labels, other.labels]))


@dataclass
class FileSplits:
    """Three parts that share no file; `notes` tell the user how they were made."""

    train: Files
    holdout: Files
    test: Files
    classes: list[str]
    notes: list[str] = field(default_factory=list)

    def parts(self) -> tuple[Files, Files, Files]:
        return self.train, self.holdout, self.test

    def __len__(self) -> int:
        return sum(map(len, self.parts()))


@dataclass
class Listing:
    """The files of a set as its author split them. `val` is for choosing, `test` for the final figures."""

    name: str
    train: Files
    classes: list[str]
    val: Files | None = None
    test: Files | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_classes(self.classes, self.name)
        if not len(self.train):
            raise UserError(f"{self.name} has no training images; check that it is complete")

    def split(self, holdout: float | int, seed: int) -> FileSplits:
        """Make what is missing: the test set is the same for every seed, the hold-out is not.

        A `val` part is the hold-out as it is, whatever its size; but with holdout 0 it is trained on.
        """
        train, val, test, notes = self.train, self.val, self.test, list(self.notes)
        if not test or not len(test):
            rest, taken = stratified(train.labels, TEST_FRACTION, generator(0, Stream.SPLIT), self.classes)
            train, test = train.subset(rest), train.subset(taken)
            notes.append(f"no test images of its own: {len(test)} of {len(rest) + len(taken)}, a fifth of each class")
        if val and len(val) and not holdout:
            notes.append(f"nothing is held out: the {len(val)} validation images are trained on as well")
            train, val = train + val, None
        if not val or not len(val):
            rest, taken = stratified(train.labels, holdout, generator(seed, Stream.SPLIT), self.classes)
            train, val = train.subset(rest), train.subset(taken)
        return FileSplits(train, val, test, self.classes, notes)


def check_classes(classes: list[str], what: str) -> None:
    if len(classes) == 1:
        raise UserError(f"{what} has one class only, {classes[0]!r}; a classifier needs two or more")
