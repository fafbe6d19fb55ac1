"""Probe: the inputs that proxies show to a model, each a pure function of the seed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from nasformer.utils.rng import generator


@dataclass(frozen=True)
class Probe:
    """A labelled batch, and a seed from which further inputs are drawn.

    >>> probe = noise_probe((3, 8, 8), num_classes=10, batch_size=4, seed=1)
    >>> probe.images.shape, probe.ones().shape, torch.equal(probe.noise("a"), probe.noise("a"))
    (torch.Size([4, 3, 8, 8]), torch.Size([1, 3, 8, 8]), True)

    Args:
        images: Real images where there is data, else noise. All other inputs have their shape and device.
        labels: Their classes; random ones where there is no data.
        seed: What all further randomness of a proxy derives from.
    """

    images: Tensor
    labels: Tensor
    seed: int = 0

    @property
    def device(self) -> torch.device:
        return self.images.device

    def ones(self, batch: int = 1) -> Tensor:
        return torch.ones(batch, *self.images.shape[1:], device=self.device)

    def noise(self, label: str, at_most: int | None = None) -> Tensor:
        """N(0, 1) images, as many as in the batch but no more than `at_most`; others for each label."""
        batch = len(self.images) if at_most is None else min(at_most, len(self.images))
        return torch.randn((batch, *self.images.shape[1:]), generator=self.generator(label)).to(self.device)

    def generator(self, label: str) -> torch.Generator:
        """A generator on the CPU, so that every device sees the same numbers."""
        return generator(self.seed, zlib.crc32(label.encode()))


def noise_probe(
    shape: tuple[int, int, int],
    num_classes: int,
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Probe:
    """The probe of a search without data: N(0, 1) images with uniformly random labels."""
    source = generator(seed, zlib.crc32(b"probe"))
    images = torch.randn(batch_size, *shape, generator=source)
    labels = torch.randint(num_classes, (batch_size,), generator=source)
    return Probe(images.to(device), labels.to(device), seed)
