"""Crop, flip, rotate, shear and translate a batch, composed into one resampling of each image.

A movement is a 3 x 3 matrix that takes output pixel coordinates to input coordinates (pixel centres at one
half, as in Pillow). Matrices are made on the CPU, where they cost nothing. Images that only shift by whole
pixels are not resampled but copied, so they stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.data.images import send
from nasformer.utils.rng import Draws

Crop = Literal["none", "pad", "resized"]
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
TRIES = 10
ENTRIES = {  # row and column in a matrix
    "scale_x": (0, 0),
    "shear_x": (0, 1),
    "right": (0, 2),
    "shear_y": (1, 0),
    "scale_y": (1, 1),
    "down": (1, 2),
}


@dataclass
class Move:
    """How each of b images moves: all of it as a matrix, and apart from that its whole-pixel part."""

    matrix: Tensor  # [b, 3, 3]
    shift: Tensor  # [b, 2] whole pixels down and right, into the padded image
    flip: Tensor  # [b] left to right
    resample: Tensor  # [b] whether the matrix says more than shift and flip

    def then(self, matrix: Tensor, resample: Tensor) -> Move:
        """Add a movement of the moved image."""
        return Move(self.matrix @ matrix, self.shift, self.flip, self.resample | resample)


def draw_move(draws: Draws, crop: Crop, padding: int, hflip: float, rotate: float, size: tuple[int, int]) -> Move:
    """The crop, the flip and the rotation of each image, in this order."""
    flip = draws.chance(hflip)
    angle = draws.uniform(-rotate, rotate)
    if crop == "resized":
        matrix, shift = resized_crop(draws, size), torch.zeros(len(flip), 2, dtype=torch.int64)
    else:
        reach = 2 * padding + 1 if crop == "pad" else 1
        shift = torch.stack([draws.integers(reach), draws.integers(reach)], dim=1)
        matrix = affine(down=shift[:, 0] - reach // 2, right=shift[:, 1] - reach // 2)
    matrix = matrix @ mirror(flip, size) @ rotation(angle, size)
    resample = torch.full_like(flip, crop == "resized" or rotate > 0)
    return Move(matrix, shift, flip, resample)


def apply_move(images: Tensor, move: Move, padding: int, fill: Tensor) -> Tensor:
    """Move uint8 images; what lies outside them has the colour `fill` (uint8, one value a channel)."""
    rows = move.resample.nonzero().flatten()
    if len(rows) == len(images):
        return warp(images, move.matrix, fill)
    moved = shift_and_flip(images, move.shift, move.flip, padding, fill)
    if len(rows):
        there = send(rows, images.device)
        moved.index_copy_(0, there, warp(images.index_select(0, there), move.matrix[rows], fill))
    return moved


def shift_and_flip(images: Tensor, shift: Tensor, flip: Tensor, padding: int, fill: Tensor) -> Tensor:
    """Cut each image out of its padded self, then mirror some: copies of bytes, without arithmetic."""
    height, width = images.shape[-2:]
    if padding:
        padded = fill.view(-1, 1, 1).expand(*images.shape[:2], height + 2 * padding, width + 2 * padding).clone()
        padded[..., padding : padding + height, padding : padding + width] = images
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view of every possible crop
        down, right = send(shift.T, images.device)
        images = windows[torch.arange(len(images), device=images.device), :, down, right]
    if not flip.any():
        return images.clone()
    return torch.where(send(flip, images.device).view(-1, 1, 1, 1), images.flip(3), images)


def warp(images: Tensor, matrix: Tensor, fill: Tensor) -> Tensor:
    """Resample uint8 images (bicubic) at matrix @ (x, y, 1)."""
    height, width = images.shape[-2:]
    grid = _grid(matrix, height, width, images.device)
    ground = fill.view(-1, 1, 1).float()
    # grid_sample reads zeros outside: measured from the fill colour, zero is the fill colour
    sampled = F.grid_sample(images.float() - ground, grid, mode="bicubic", padding_mode="zeros", align_corners=False)
    return (sampled + ground).round_().clamp_(0, 255).to(torch.uint8)


def affine(**parts: Tensor) -> Tensor:
    """Matrices [b, 3, 3]: the identity with some entries set."""
    matrix = torch.eye(3, dtype=torch.float64).repeat(len(next(iter(parts.values()))), 1, 1)
    for name, values in parts.items():
        row, column = ENTRIES[name]
        matrix[:, row, column] = values.double()
    return matrix


def mirror(flip: Tensor, size: tuple[int, int]) -> Tensor:
    return affine(scale_x=1 - 2 * flip.double(), right=flip * size[1])


def rotation(degrees: Tensor, size: tuple[int, int]) -> Tensor:
    """Counter-clockwise about the centre."""
    angle = degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    height, width = size
    right = width / 2 - cos * width / 2 + sin * height / 2
    down = height / 2 - sin * width / 2 - cos * height / 2
    return affine(scale_x=cos, shear_x=-sin, shear_y=sin, scale_y=cos, right=right, down=down)


def resized_crop(draws: Draws, size: tuple[int, int]) -> Tensor:
    """A random part of the image, scaled to the whole; the whole image where no part fits."""
    height, width = size
    h, w = random_boxes(draws, size, CROP_AREA, CROP_ASPECT, largest=(height, width))
    h, w = torch.where(h > 0, h, height), torch.where(w > 0, w, width)
    top, left = draws.integers(height - h + 1), draws.integers(width - w + 1)
    return affine(scale_x=w / width, scale_y=h / height, right=left, down=top)


def random_boxes(
    draws: Draws,
    size: tuple[int, int],
    area: tuple[float, float],
    aspect: tuple[float, float],
    largest: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Heights and widths: of ten tries the first no larger than `largest`, 0 x 0 where all are.

    `area` is a range of shares of the image, `aspect` of width / height.
    """
    areas = draws.uniform(*area, tries=TRIES) * size[0] * size[1]
    aspects = draws.uniform(math.log(aspect[0]), math.log(aspect[1]), tries=TRIES).exp()
    heights, widths = (areas / aspects).sqrt().round().long(), (areas * aspects).sqrt().round().long()
    fits = (heights > 0) & (heights <= largest[0]) & (widths > 0) & (widths <= largest[1])
    first = fits.int().argmax(dim=1, keepdim=True)
    any_fits = fits.any(dim=1)
    return heights.gather(1, first).squeeze(1) * any_fits, widths.gather(1, first).squeeze(1) * any_fits


def _grid(matrix: Tensor, height: int, width: int, device: torch.device) -> Tensor:
    """Where to read, in grid_sample's units: -1..1 from edge to edge."""
    edges = torch.tensor([[2 / width], [2 / height]], dtype=torch.float64)
    rows = send((matrix[:, :2] * edges - torch.tensor([0, 0, 1])).float(), device)
    x = torch.arange(width, device=device) + 0.5
    y = torch.arange(height, device=device).view(-1, 1) + 0.5
    # Written out rather than as a matrix product, which TF32 would round to a tenth of a pixel on some GPUs.
    a, b, c = rows[:, :, 0, None, None], rows[:, :, 1, None, None], rows[:, :, 2, None, None]
    return (a * x + b * y + c).permute(0, 2, 3, 1)
