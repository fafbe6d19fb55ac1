"""Augmentation of whole batches on the device: bytes and labels in, normalised floats and soft targets out.

What is random is drawn on the CPU for every sample of the global batch, and a rank keeps its own rows. So two
ranks with half the batch each see exactly the rows that one rank with all of it would see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nasformer.data import colour
from nasformer.data.erasing import erase
from nasformer.data.geometry import apply_move, draw_move
from nasformer.data.images import normalise, send
from nasformer.data.mixing import Mixing
from nasformer.data.randaugment import Layer, RandAugment, add_geometry, apply_colours, draw_layer
from nasformer.data.rng import Draws, Stream, generator
from nasformer.recipe import AugmentConfig


class Augment:
    """The augmentation of one dataset: a pure function of the batch, the seed and the step.

    >>> augment = Augment(AugmentConfig(padding=1), mean=(0.5,), std=(0.25,), num_classes=3)
    >>> x, targets = augment(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 2]), seed=0, step=7)
    >>> x.shape, targets.shape
    (torch.Size([2, 1, 8, 8]), torch.Size([2, 3]))
    """

    def __init__(
        self, config: AugmentConfig, mean: tuple[float, ...], std: tuple[float, ...], num_classes: int
    ) -> None:
        self.config = config
        self.mean, self.std = mean, std
        self.randaugment = RandAugment.parse(config.randaugment) if config.randaugment else None
        self.mixing = Mixing.of(config, num_classes)
        self._fill = torch.tensor([round(255 * value) for value in mean], dtype=torch.uint8)

    def __call__(
        self, images: Tensor, labels: Tensor, seed: int, step: int, rank: int = 0, world: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Augment one rank's part [b, C, H, W] of the global batch `step`, which holds b * world samples."""

        def draws(stream: Stream) -> Draws:
            return Draws(generator(seed, stream, step), len(images), rank, world)

        layers = self._draw_layers(draws(Stream.RANDAUGMENT))
        images = self._move(images, layers, draws(Stream.GEOMETRY))
        for layer in layers:
            images = apply_colours(images, layer)
        if self.config.color_jitter and not layers:
            images = self._jitter(images, draws(Stream.JITTER))
        x = normalise(images, self.mean, self.std)
        if self.config.erasing:
            x = erase(x, draws(Stream.ERASING), self.config.erasing)
        return self.mixing(x, labels, seed, step)

    def _draw_layers(self, draws: Draws) -> list[Layer]:
        config = self.randaugment
        return [draw_layer(draws, config) for _ in range(config.layers)] if config else []

    def _move(self, images: Tensor, layers: list[Layer], draws: Draws) -> Tensor:
        config = self.config
        padding = config.padding if config.crop == "pad" else 0
        size = (images.shape[-2], images.shape[-1])
        move = draw_move(draws, config.crop, padding, config.hflip, config.rotate, size)
        for layer in layers:
            move = add_geometry(move, layer, size)
        return apply_move(images, move, padding, send(self._fill, images.device))

    def _jitter(self, images: Tensor, draws: Draws) -> Tensor:
        """Brightness, contrast, saturation, always in this order (torchvision shuffles it for each image)."""
        strength = self.config.color_jitter
        for operation in (colour.brightness, colour.contrast, colour.colour):
            factor = draws.uniform(max(0.0, 1 - strength), 1 + strength)
            images = operation(images, send(factor.float(), images.device))
        return images
