"""Labels to soft targets: label smoothing, mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019).

One mode and one lambda for the whole global batch, as in timm's "batch" mode.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from nasformer.data.rng import Stream, mix
from nasformer.recipe import AugmentConfig


@dataclass(frozen=True)
class Mix:
    """The share of each image and label that is kept, and cutmix's box (top, bottom, left, right)."""

    keep: float = 1.0
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Mixing:
    mixup: float
    cutmix: float
    probability: float
    switch_probability: float
    smoothing: float
    num_classes: int

    @classmethod
    def of(cls, config: AugmentConfig, num_classes: int) -> Mixing:
        return cls(config.mixup, config.cutmix, config.mix_prob, config.switch_prob, config.smoothing, num_classes)

    def __call__(self, images: Tensor, labels: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Mix a rank's images (float) with each other, and give their soft targets [b, num_classes]."""
        what = self.draw(seed, step, *images.shape[-2:])
        targets = soft_targets(labels, self.num_classes, self.smoothing)
        if what.keep == 1:
            return images, targets
        partner = partners(len(images), images.device)
        other = images.index_select(0, partner)
        if what.box is None:
            images = images * what.keep + other * (1 - what.keep)
        else:
            top, bottom, left, right = what.box
            images = images.clone()
            images[..., top:bottom, left:right] = other[..., top:bottom, left:right]
        return images, targets * what.keep + targets.index_select(0, partner) * (1 - what.keep)

    def draw(self, seed: int, step: int, height: int, width: int) -> Mix:
        """Every rank draws the same."""
        source = random.Random(mix(seed, Stream.MIXING, step))
        if not (self.mixup or self.cutmix) or source.random() >= self.probability:
            return Mix()
        use_cutmix = self.cutmix > 0 and (self.mixup == 0 or source.random() < self.switch_probability)
        alpha = self.cutmix if use_cutmix else self.mixup
        keep = source.betavariate(alpha, alpha)
        return cut(keep, source, height, width) if use_cutmix else Mix(keep)


def cut(keep: float, source: random.Random, height: int, width: int) -> Mix:
    """A box of 1 - keep of the area round a random pixel; what is kept is all outside the clipped box."""
    side = (1 - keep) ** 0.5
    h, w = int(height * side), int(width * side)
    y, x = source.randrange(height), source.randrange(width)
    top, bottom = max(0, y - h // 2), min(height, y + (h + 1) // 2)
    left, right = max(0, x - w // 2), min(width, x + (w + 1) // 2)
    return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))


def partners(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Who is mixed with whom: neighbours, 0 with 1, 2 with 3, ...; the last of an odd number stays by itself.

    Neighbours lie on the same rank, however many ranks there are, if each has an even number of samples. With
    timm's choice, first with last, the pairs would depend on how the batch is cut.

    >>> partners(5).tolist()
    [1, 0, 3, 2, 4]
    """
    return (torch.arange(count, device=device) ^ 1).clamp_(max=count - 1)


def soft_targets(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """One-hot rows, with the share `smoothing` spread evenly over all classes.

    >>> soft_targets(torch.tensor([1]), num_classes=2, smoothing=0.2)
    tensor([[0.1000, 0.9000]])
    """
    targets = torch.full((len(labels), num_classes), smoothing / num_classes, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
