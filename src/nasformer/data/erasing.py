"""Random erasing (Zhong et al. 2020), timm's "pixel" mode: a box of the normalised image becomes noise."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nasformer.data.geometry import random_boxes
from nasformer.data.images import send
from nasformer.data.rng import Draws, generator

AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)
OFFSETS = 2**16


def erase(images: Tensor, draws: Draws, probability: float) -> Tensor:
    """Fill a box of some normalised float images with normal noise."""
    height, width = images.shape[-2:]
    erased = draws.chance(probability)
    h, w = random_boxes(draws, (height, width), AREA, ASPECT, largest=(height - 1, width - 1))
    top, left = draws.integers(height - h + 1), draws.integers(width - w + 1)
    offset = draws.integers(OFFSETS)
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
    tape = _tape(pixels + OFFSETS, images.device)
    return tape.unfold(0, pixels, 1).index_select(0, offset).view(images.shape)


@lru_cache(maxsize=4)
def _tape(length: int, device: torch.device) -> Tensor:
    return torch.randn(length, generator=generator(0)).to(device)
