"""Which samples make up batch `step` of an endless stream: a pure function, so any step can be the first."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nasformer.data.rng import Stream, generator
from nasformer.errors import UserError


def clamp_batch(n: int, batch_size: int, world: int = 1) -> int:
    """The global batch size in use: no larger than the set.

    A larger one becomes the whole set (down to a multiple of `world`), so that an epoch is one batch.

    >>> clamp_batch(100, 32), clamp_batch(5, 32), clamp_batch(5, 32, world=2)
    (32, 5, 4)
    """
    if n == 0:
        raise UserError("the training set is empty; give a source with at least one training image")
    if batch_size < 1 or batch_size % world:
        raise UserError(f"batch size {batch_size} cannot be split over {world} processes; use a multiple of {world}")
    if n < world:
        raise UserError(f"{n} training images are too few for {world} processes; start fewer processes")
    return min(batch_size, n // world * world)


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Full batches in an epoch; the ragged end is dropped.

    >>> steps_per_epoch(100, 32)
    3
    """
    return n // clamp_batch(n, batch_size)


def batch_indices(n: int, batch_size: int, step: int, seed: int, repeats: int = 1) -> Tensor:
    """Sample numbers of global batch `step`.

    With `repeats` > 1 (repeated augmentation, as in DeiT) every sample comes that many times before the next
    one, while an epoch keeps its n // batch_size batches and so sees about one in `repeats` of the samples.

    >>> sorted(batch_indices(4, 2, 0, seed=0).tolist() + batch_indices(4, 2, 1, seed=0).tolist())
    [0, 1, 2, 3]
    """
    batch = clamp_batch(n, batch_size)
    epoch, position = divmod(step, n // batch)
    places = torch.arange(position * batch, (position + 1) * batch)
    # The copies of a sample are dealt round the batch instead of standing side by side, since neighbours are
    # mixed with each other; and a rank's part holds different samples, as with DeiT's strided sampler.
    dealt = torch.cat([places[copy::repeats] for copy in range(repeats)])
    return _epoch_order(n, epoch, seed)[dealt // repeats]


def calibration_indices(n: int, images: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """The first so many samples of the first epoch, in batches that are nearly equal, since each counts alike.

    >>> [len(part) for part in calibration_indices(100, images=70, batch_size=32, seed=0)]
    [24, 23, 23]
    """
    count = clamp_batch(n, images)
    return batch_indices(n, count, 0, seed).tensor_split(-(-count // batch_size))


def rank_slice(indices: Tensor, rank: int, world: int) -> Tensor:
    """The contiguous part of a global batch that belongs to one of `world` ranks.

    >>> rank_slice(torch.arange(6), rank=1, world=3)
    tensor([2, 3])
    """
    if len(indices) % world:
        raise UserError(f"a batch of {len(indices)} cannot be split over {world} processes; use a multiple of {world}")
    local = len(indices) // world
    return indices[rank * local : (rank + 1) * local]


@lru_cache(maxsize=4)
def _epoch_order(n: int, epoch: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, Stream.ORDER, epoch))
