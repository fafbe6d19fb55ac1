"""Augmentation of whole batches on the device: bytes and labels in, normalised floats and soft targets out.

What is random is drawn on the CPU for every sample of the global batch, and a rank keeps its own rows. So two
ranks with half the batch each see exactly the rows that one rank with all of it would see.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nasformer.data import randaugment as colour
from nasformer.data.images import fill_colour, normalise, send
from nasformer.data.options import AugmentOptions, RandAugment
from nasformer.data.randaugment import (
    Layer,
    add_geometry,
    apply_colours,
    apply_move,
    draw_layer,
    draw_move,
    random_boxes,
)
from nasformer.utils.rng import Draws, Purpose, generator, mix

# Random erasing (Zhong et al. 2020), timm's "pixel" mode: a box of the normalised image becomes noise

ERASED_AREA = (0.02, 1 / 3)
ERASED_ASPECT = (0.3, 1 / 0.3)
NOISE_OFFSETS = 2**16


def erase(images: Tensor, draws: Draws, probability: float) -> Tensor:
    """Fill a box of some normalised float images with normal noise."""
    height, width = images.shape[-2:]
    erased = draws.chance(probability)
    h, w = random_boxes(draws, (height, width), ERASED_AREA, ERASED_ASPECT, largest=(height - 1, width - 1))
    top, left = draws.integers(height - h + 1), draws.integers(width - w + 1)
    offset = draws.integers(NOISE_OFFSETS)
    box = send(torch.stack([top, top + h * erased, left, left + w * erased, offset]), images.device)
    noise = _noise(images, box[4])
    return torch.where(_inside(box, height, width), noise, images)


def _inside(box: Tensor, height: int, width: int) -> Tensor:
    top, bottom, left, right = box[:4, :, None]
    y, x = torch.arange(height, device=box.device), torch.arange(width, device=box.device)
    rows, columns = (top <= y) & (y < bottom), (left <= x) & (x < right)
    return (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)


def _noise(images: Tensor, offset: Tensor) -> Tensor:
    """Noise for each image from one long tape, read from the image's own offset.

    Drawing it anew would mean numbers for each pixel of the global batch on the CPU, the slowest part of all.
    """
    pixels = images[0].numel()
    tape = _noise_tape(pixels + NOISE_OFFSETS, images.device)
    return tape.unfold(0, pixels, 1).index_select(0, offset).view(images.shape)


@lru_cache(maxsize=4)
def _noise_tape(length: int, device: torch.device) -> Tensor:
    return torch.randn(length, generator=generator(0)).to(device)


# Soft targets: label smoothing, mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019).
# One mode and one lambda for the whole global batch, as in timm's "batch" mode.


@dataclass(frozen=True)
class Mix:
    """The share of each image and label that is kept, and cutmix's box (top, bottom, left, right)."""

    keep: float = 1.0
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Mixing:
    """Label smoothing, mixup and cutmix of a batch."""

    mixup: float
    cutmix: float
    probability: float
    switch_probability: float
    smoothing: float
    num_classes: int

    @classmethod
    def of(cls, options: AugmentOptions, num_classes: int) -> Mixing:
        return cls(options.mixup, options.cutmix, options.mix_prob, options.switch_prob, options.smoothing, num_classes)

    def __call__(self, images: Tensor, labels: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Mix a rank's images (float) with each other, and give their soft targets [b, num_classes]."""
        drawn = self.draw(seed, step, *images.shape[-2:])
        targets = soft_targets(labels, self.num_classes, self.smoothing)
        if drawn.keep == 1:
            return images, targets
        partner = partners(len(images), images.device)
        other = images.index_select(0, partner)
        if drawn.box is None:
            images = images * drawn.keep + other * (1 - drawn.keep)
        else:
            top, bottom, left, right = drawn.box
            images = images.clone()
            images[..., top:bottom, left:right] = other[..., top:bottom, left:right]
        return images, targets * drawn.keep + targets.index_select(0, partner) * (1 - drawn.keep)

    def draw(self, seed: int, step: int, height: int, width: int) -> Mix:
        """Every rank draws the same."""
        source = random.Random(mix(seed, Purpose.MIXING, step))
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


def color_jitter(images: Tensor, strength: float, draws: Draws) -> Tensor:
    """Brightness, contrast, saturation, always in this order (torchvision shuffles it for each image)."""
    for operation in (colour.brightness, colour.contrast, colour.colour):
        factor = draws.uniform(max(0.0, 1 - strength), 1 + strength)
        images = operation(images, send(factor.float(), images.device))
    return images


class Augment:
    """The augmentation of one dataset: a pure function of the batch, the seed and the step.

    >>> augment = Augment(AugmentOptions(padding=1), mean=(0.5,), std=(0.25,), num_classes=3)
    >>> x, targets = augment(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 2]), seed=0, step=7)
    >>> x.shape, targets.shape
    (torch.Size([2, 1, 8, 8]), torch.Size([2, 3]))
    """

    def __init__(
        self, options: AugmentOptions, mean: tuple[float, ...], std: tuple[float, ...], num_classes: int
    ) -> None:
        self.options = options
        self.mean, self.std = mean, std
        self.randaugment = RandAugment.parse(options.randaugment) if options.randaugment else None
        self.mixing = Mixing.of(options, num_classes)
        self._fill = fill_colour(mean)

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        seed: int,
        step: int,
        rank: int = 0,
        world: int = 1,
        sizes: Tensor | None = None,
        img_size: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Augment one rank's part [b, C, H, W] of the global batch `step`, which holds b * world samples.

        Args:
            sizes: Rows and columns of each image, where they differ (see `Pixels`).
            img_size: Of the result; None: that of the images.
        """

        def draws(purpose: Purpose) -> Draws:
            return Draws(generator(seed, purpose, step), len(images), rank, world)

        layers = self._draw_layers(draws(Purpose.RANDAUGMENT))
        images = self._move(images, layers, draws(Purpose.GEOMETRY), sizes, img_size)
        for layer in layers:
            images = apply_colours(images, layer)
        if self.options.color_jitter and not layers:
            images = color_jitter(images, self.options.color_jitter, draws(Purpose.JITTER))
        x = normalise(images, self.mean, self.std)
        if self.options.erasing:
            x = erase(x, draws(Purpose.ERASING), self.options.erasing)
        return self.mixing(x, labels, seed, step)

    def _draw_layers(self, draws: Draws) -> list[Layer]:
        settings = self.randaugment
        return [draw_layer(draws, settings) for _ in range(settings.layers)] if settings else []

    def _move(
        self, images: Tensor, layers: list[Layer], draws: Draws, sizes: Tensor | None, img_size: int | None
    ) -> Tensor:
        size = (img_size, img_size) if img_size else (images.shape[-2], images.shape[-1])
        options = self.options.for_images(min(size), images.shape[1])
        padding = (options.padding or 0) if options.crop == "pad" else 0
        move = draw_move(draws, options.crop, padding, options.hflip or 0.0, options.rotate, size, sizes)
        for layer in layers:
            move = add_geometry(move, layer, size)
        return apply_move(images, move, padding, send(self._fill, images.device), size)
