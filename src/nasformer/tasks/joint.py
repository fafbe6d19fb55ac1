"""Joint geometry of an image and its mask: fitted into a square for evaluation, jittered for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as V

from nasformer.data.options import AugmentOptions
from nasformer.layers.segmentation import fitted_size
from nasformer.tasks.masks import IGNORED
from nasformer.tasks.options import JitterOptions

Pair = tuple[Tensor, Tensor]
"""An image, uint8 [channels, rows, columns], and its mask, integers [rows, columns]."""


def fit(image: Tensor, size: int, fill: list[int]) -> Tensor:
    """The whole image at the top left of a square, the rest of which has one colour."""
    return scaled_canvas(image, size, 1.0, fill)


def scaled_canvas(image: Tensor, size: int, scale: float, fill: list[int]) -> Tensor:
    """The image scaled as if to be fitted, and further, at the top left of a square or of what it needs beyond."""
    shape = list(fitted_size(image.shape[1], image.shape[2], size, scale))
    scaled = V.resize(tv_tensors.Image(image), shape, antialias=True)
    border = [0, 0, max(0, size - shape[1]), max(0, size - shape[0])]
    return V.pad(scaled, border, fill=fill).as_subclass(Tensor)


def unfit(logits: Tensor, rows: int, columns: int, *, size: int | None = None, scale: float = 1.0) -> Tensor:
    """Logits of a canvas [classes, rows, columns] for the image that was fitted into it, at its own size.

    Args:
        size: Of the square that the image was fitted to, where the canvas is larger.
    """
    height, width = fitted_size(rows, columns, size or logits.shape[-1], scale)
    inner = logits[None, :, :height, :width].float()
    return torch.nn.functional.interpolate(inner, (rows, columns), mode="bilinear", align_corners=False)[0]


def jitter(
    image: Tensor,
    mask: Tensor,
    size: int,
    options: JitterOptions,
    augment: AugmentOptions,
    fill: list[int],
    source: torch.Generator,
) -> Pair:
    """An image and its mask, jittered together."""
    parts: list[Tensor] = [tv_tensors.Image(image), tv_tensors.Mask(mask[None])]
    picture, classes = jitter_together(parts, [fill, IGNORED], size, options, augment, source)
    return picture.as_subclass(Tensor), classes[0].as_subclass(Tensor)


def jitter_together(
    parts: Sequence[Tensor],
    fills: Sequence[Any],
    size: int,
    options: JitterOptions,
    augment: AugmentOptions,
    source: torch.Generator,
) -> list[Tensor]:
    """Large-scale jitter (Ghiasi et al. 2021): scaled at random, a random part of it or padded, mirrored.

    Args:
        parts: The image and what belongs to it, as torchvision's tv_tensors.
        fills: What each part has where it is padded.
    """
    scale, top, left, flip = torch.rand(4, generator=source).tolist()
    scale = options.scale_min + (options.scale_max - options.scale_min) * scale
    shape = list(fitted_size(parts[0].shape[1], parts[0].shape[2], size, scale))
    border = [0, 0, max(0, size - shape[1]), max(0, size - shape[0])]
    corner = [int(top * (max(shape[0] - size, 0) + 1)), int(left * (max(shape[1] - size, 0) + 1))]
    done = list[Tensor]()
    for part, fill in zip(parts, fills, strict=True):
        part = V.resize(part, shape, antialias=True) if part.numel() else empty_like(part, shape)
        part = V.crop(V.pad(part, border, fill=fill), *corner, size, size)
        done.append(V.horizontal_flip(part) if flip < (augment.hflip or 0.0) else part)
    return done


def empty_like(part: Tensor, shape: list[int]) -> Tensor:
    """No masks or boxes of an image that has another size now; torchvision resizes none."""
    if isinstance(part, tv_tensors.BoundingBoxes):
        return tv_tensors.wrap(part.as_subclass(Tensor), like=part, canvas_size=(shape[0], shape[1]))
    return tv_tensors.Mask(part.new_zeros(0, *shape))
