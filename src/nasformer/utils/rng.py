"""Random numbers as a pure function of integers: a seed, a `Purpose`, and a step or an epoch.

No state is carried along, so a resumed run repeats itself and several processes agree without talking.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What numbers are drawn for: each purpose has numbers of its own, so switching one on changes no other."""

    SPLIT = 1
    ORDER = 2
    GEOMETRY = 3
    RANDAUGMENT = 4
    JITTER = 5
    ERASING = 6
    MIXING = 7
    LAYERS = 9
    SUBSET = 10
    RACING = 11


def mix(seed: int, *words: int) -> int:
    """Hash integers to 63 bits, alike on every machine and in every version of Python.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    text = ",".join(str(int(word)) for word in (seed, *words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *words: int) -> torch.Generator:
    """A fresh CPU generator that depends on nothing but its arguments.

    >>> torch.rand(2, generator=generator(0, 7)).equal(torch.rand(2, generator=generator(0, 7)))
    True
    """
    return torch.Generator().manual_seed(mix(seed, *words))


class Draws:
    """Random numbers for every sample of the global batch, of which one rank keeps its own rows."""

    def __init__(self, source: torch.Generator, local: int, rank: int = 0, world: int = 1) -> None:
        self._source = source
        self._total = local * world
        self._rows = slice(rank * local, (rank + 1) * local)

    def uniform(self, low: float = 0.0, high: float = 1.0, tries: int | None = None) -> Tensor:
        """Numbers in [low, high), shape [local] or [local, tries]."""
        shape = (self._total,) if tries is None else (self._total, tries)
        numbers = torch.rand(shape, generator=self._source, dtype=torch.float64)
        return low + (high - low) * numbers[self._rows]

    def normal(self) -> Tensor:
        return torch.randn(self._total, generator=self._source, dtype=torch.float64)[self._rows]

    def integers(self, count: Tensor | int) -> Tensor:
        """Integers in [0, count), where count may differ from sample to sample."""
        return (self.uniform() * count).long()

    def chance(self, probability: float) -> Tensor:
        return self.uniform() < probability
