"""Pillow's colour operations for a batch: uint8 [b, C, H, W] and an amount for each image in, uint8 out.

Integer arithmetic wherever Pillow has it, so results agree with Pillow's and do not depend on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

RED, GREEN, BLUE = 19595, 38470, 7471  # ITU-R 601 luma in 1/65536, as in Pillow


def auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0..255."""
    x = images.int()
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    stretched = torch.div((x - low) * 255, (high - low).clamp(min=1), rounding_mode="floor")
    return torch.where(high > low, stretched, x).to(torch.uint8)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten each channel's histogram."""
    pixels = images.flatten(2).long()
    histogram = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(2, pixels, torch.ones_like(pixels))
    brightest = pixels.amax(dim=2, keepdim=True)
    step = torch.div(pixels.shape[2] - histogram.gather(2, brightest), 255, rounding_mode="floor")
    below = histogram.cumsum(2) - histogram
    table = torch.div(below + step // 2, step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    identity = torch.arange(256, device=images.device)
    table = torch.where(step > 0, table, identity)
    return table.gather(2, pixels).view(images.shape).to(torch.uint8)


def invert(images: Tensor, _: Tensor) -> Tensor:
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` bits."""
    mask = torch.full_like(bits, 255, dtype=torch.int32) << (8 - bits.int())
    return images & (mask & 255).to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is not below the threshold."""
    return torch.where(images < threshold.view(-1, 1, 1, 1), images, 255 - images)


def solarize_add(images: Tensor, addition: Tensor) -> Tensor:
    """Brighten the darker half of the scale."""
    brighter = (images.int() + addition.int().view(-1, 1, 1, 1)).clamp_(max=255).to(torch.uint8)
    return torch.where(images < 128, brighter, images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return blend(torch.zeros_like(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    grey = luma(images)
    count = grey[0].numel()
    mean = torch.div(2 * grey.long().sum(dim=(1, 2, 3), keepdim=True) + count, 2 * count, rounding_mode="floor")
    return blend(mean, images, factor)


def colour(images: Tensor, factor: Tensor) -> Tensor:
    """Saturation; grey images have none."""
    return blend(luma(images), images, factor) if images.shape[1] == 3 else images


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from (or towards) a 3 x 3 smoothing, which leaves the outermost pixels as they are."""
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return images
    x = images.int()
    columns = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    box = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :]
    smooth = x.clone()
    smooth[..., 1:-1, 1:-1] = torch.div(2 * (box + 4 * x[..., 1:-1, 1:-1]) + 13, 26, rounding_mode="floor")
    return blend(smooth, images, factor)


def luma(images: Tensor) -> Tensor:
    """Brightness of each pixel [b, 1, H, W]; the mean of the channels unless they are three."""
    x = images.int()
    if images.shape[1] != 3:
        return torch.div(x.sum(dim=1, keepdim=True, dtype=torch.int32), images.shape[1], rounding_mode="floor")
    red, green, blue = x.split(1, dim=1)
    return (red * RED + green * GREEN + blue * BLUE + 32768) >> 16


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor * (images - base): factor 0 gives the base, 1 the images, more goes beyond."""
    start = base.float()
    mixed = start + factor.float().view(-1, 1, 1, 1) * (images.float() - start)
    return mixed.clamp_(0, 255).to(torch.uint8)
