"""Augmentation of whole batches on the device: bytes and labels in, normalised floats and soft targets out.

What is random is drawn on the CPU for every sample of the global batch, and a rank keeps its own rows. So two
ranks with half the batch each see exactly the rows that one rank with all of it would see.

From top to bottom: movements (crop, flip, rotate ...), colours, RandAugment made of the two, random erasing, mixing of
images and labels, and `Augment`, which puts them together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nasformer.data.images import fill_colour, normalise, send
from nasformer.data.options import FULL_MAGNITUDE, AugmentOptions, RandAugment
from nasformer.utils.rng import Draws, Purpose, generator, mix

# Crop, flip, rotate, shear and translate a batch, composed into one resampling of each image.
#
# A movement is a 3 x 3 matrix that takes output pixel coordinates to input coordinates (pixel centres at one
# half, as in Pillow). Matrices are made on the CPU, where they cost nothing. Images that only shift by whole
# pixels are not resampled but copied, so they stay exact.

Crop = Literal["none", "pad", "resized"]
Side = Tensor | int  # of each image, or of all
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
TRIES = 10
SAMPLED = 512  # images resampled at a time, fewer where each takes more samples, to keep memory small
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
    """The movement of each of b images as a matrix, and its whole-pixel part by itself."""

    matrix: Tensor  # [b, 3, 3]
    shift: Tensor  # [b, 2] whole pixels down and right, into the padded image
    flip: Tensor  # [b] left to right
    resample: Tensor  # [b] whether the matrix says more than shift and flip
    points: Tensor | None = None  # [b] along each side of a pixel, where images shrink

    def then(self, matrix: Tensor, resample: Tensor) -> Move:
        """Add a movement of the moved image."""
        return replace(self, matrix=self.matrix @ matrix, resample=self.resample | resample)


def draw_move(
    draws: Draws,
    crop: Crop,
    padding: int,
    hflip: float,
    rotate: float,
    size: tuple[int, int],
    sizes: Tensor | None = None,
) -> Move:
    """The crop, the flip and the rotation of each image, in this order.

    Args:
        size: Of the result, and of the images unless `sizes` has those (b x 2), of which then only crop=resized can be
            taken.
    """
    flip = draws.chance(hflip)
    angle = draws.uniform(-rotate, rotate)
    if crop == "resized":
        matrix, shift = resized_crop(draws, size, sizes), torch.zeros(len(flip), 2, dtype=torch.int64)
    else:
        reach = 2 * padding + 1 if crop == "pad" else 1
        shift = torch.stack([draws.integers(reach), draws.integers(reach)], dim=1)
        matrix = affine(down=shift[:, 0] - reach // 2, right=shift[:, 1] - reach // 2)
    points = None if sizes is None else matrix[:, [0, 1], [0, 1]].amax(1).ceil().clamp(min=1).long()
    matrix = matrix @ mirror(flip, size) @ rotation(angle, size)
    resample = torch.full_like(flip, crop == "resized" or rotate > 0)
    return Move(matrix, shift, flip, resample, points)


def apply_move(images: Tensor, move: Move, padding: int, fill: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Move uint8 images; pixels from outside get the colour `fill` (uint8, one value a channel)."""
    rows = move.resample.nonzero().flatten()
    if len(rows) == len(images):
        return warp(images, move.matrix, fill, size, move.points)
    moved = shift_and_flip(images, move.shift, move.flip, padding, fill)
    if len(rows):
        on_device = send(rows, images.device)
        moved.index_copy_(0, on_device, warp(images.index_select(0, on_device), move.matrix[rows], fill))
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


def warp(
    images: Tensor,
    matrix: Tensor,
    fill: Tensor,
    size: tuple[int, int] | None = None,
    points: Tensor | None = None,
) -> Tensor:
    """Resample uint8 images (bicubic) at matrix @ (x, y, 1).

    Args:
        size: Of the result; None: that of the images.
        points: Samples [b] along each side of a pixel, whose mean it gets: more than one where an image shrinks.
    """
    size = size or (images.shape[-2], images.shape[-1])
    if points is None or points.amax() == 1:
        return _sample(images, matrix, fill, size, 1)
    warped = images.new_empty(*images.shape[:2], *size)
    for count in points.unique().tolist():
        for rows in (points == count).nonzero().flatten().split(SAMPLED // count**2 or 1):
            on_device = send(rows, images.device)
            warped[on_device] = _sample(images.index_select(0, on_device), matrix[rows], fill, size, count)
    return warped


def _sample(images: Tensor, matrix: Tensor, fill: Tensor, size: tuple[int, int], points: int) -> Tensor:
    """Each pixel as the mean of `points` x `points` samples."""
    mode = "bicubic" if points == 1 else "bilinear"  # the mean smooths already
    fine = affine(scale_x=torch.ones(1) / points, scale_y=torch.ones(1) / points)
    grid = _grid(matrix @ fine, (size[0] * points, size[1] * points), images)
    ground = fill.view(-1, 1, 1).float()
    # grid_sample reads zeros outside: measured from the fill colour, zero is the fill colour
    sampled = F.grid_sample(images - ground, grid, mode=mode, padding_mode="zeros", align_corners=False)
    mean = sampled if points == 1 else F.avg_pool2d(sampled, points)
    return (mean + ground).round_().clamp_(0, 255).to(torch.uint8)


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
    """Matrices of rotations, counter-clockwise about the centre."""
    angle = degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    height, width = size
    right = width / 2 - cos * width / 2 + sin * height / 2
    down = height / 2 - sin * width / 2 - cos * height / 2
    return affine(scale_x=cos, shear_x=-sin, shear_y=sin, scale_y=cos, right=right, down=down)


def resized_crop(draws: Draws, size: tuple[int, int], sizes: Tensor | None = None) -> Tensor:
    """A random part of each image (of `sizes`, or else of `size`), scaled to `size`; the whole where no part fits."""
    height, width = torch.as_tensor(size).view(2, 1) if sizes is None else sizes.T
    h, w = random_boxes(draws, (height, width), CROP_AREA, CROP_ASPECT, largest=(height, width))
    h, w = torch.where(h > 0, h, height), torch.where(w > 0, w, width)
    top, left = draws.integers(height - h + 1), draws.integers(width - w + 1)
    return affine(scale_x=w / size[1], scale_y=h / size[0], right=left, down=top)


def random_boxes(
    draws: Draws,
    size: tuple[Side, Side],
    area: tuple[float, float],
    aspect: tuple[float, float],
    largest: tuple[Side, Side],
) -> tuple[Tensor, Tensor]:
    """Heights and widths: of ten tries the first no larger than `largest`, 0 x 0 where all are.

    `area` is a range of shares of the image, `aspect` of width / height.
    """
    height, width, highest, widest = (torch.as_tensor(side).view(-1, 1) for side in (*size, *largest))
    areas = draws.uniform(*area, tries=TRIES) * height * width
    aspects = draws.uniform(math.log(aspect[0]), math.log(aspect[1]), tries=TRIES).exp()
    heights, widths = (areas / aspects).sqrt().round().long(), (areas * aspects).sqrt().round().long()
    fits = (heights > 0) & (heights <= highest) & (widths > 0) & (widths <= widest)
    first = fits.int().argmax(dim=1, keepdim=True)
    any_fits = fits.any(dim=1)
    return heights.gather(1, first).squeeze(1) * any_fits, widths.gather(1, first).squeeze(1) * any_fits


def _grid(matrix: Tensor, size: tuple[int, int], images: Tensor) -> Tensor:
    """Where to read for a result of this size, in grid_sample's units: -1..1 from edge to edge of the images."""
    (height, width), device = images.shape[-2:], images.device
    edges = torch.tensor([[2 / width], [2 / height]], dtype=torch.float64)
    rows = send((matrix[:, :2] * edges - torch.tensor([0, 0, 1])).float(), device)
    x = torch.arange(size[1], device=device) + 0.5
    y = torch.arange(size[0], device=device).view(-1, 1) + 0.5
    # Written out rather than as a matrix product, which TF32 would round to a tenth of a pixel on some GPUs.
    a, b, c = rows[:, :, 0, None, None], rows[:, :, 1, None, None], rows[:, :, 2, None, None]
    return (a * x + b * y + c).permute(0, 2, 3, 1)


# Pillow's colour operations for a batch: uint8 [b, C, H, W] and an amount for each image in, uint8 out. Integer
# arithmetic wherever Pillow has it, so results agree with Pillow's and do not depend on the batch.

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
    """Invert pixels from the threshold on."""
    return torch.where(images < threshold.view(-1, 1, 1, 1), images, 255 - images)


def solarize_add(images: Tensor, addition: Tensor) -> Tensor:
    """Brighten the darker half of the scale."""
    brighter = (images.int() + addition.int().view(-1, 1, 1, 1)).clamp_(max=255).to(torch.uint8)
    return torch.where(images < 128, brighter, images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Change the brightness: a blend with black."""
    return blend(torch.zeros_like(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Change the contrast: a blend with the mean grey of the image."""
    grey = luma(images)
    count = grey[0].numel()
    mean = torch.div(2 * grey.long().sum(dim=(1, 2, 3), keepdim=True) + count, 2 * count, rounding_mode="floor")
    return blend(mean, images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Change the saturation: a blend with grey; grey images stay as they are."""
    return blend(luma(images), images, factor) if images.shape[1] == 3 else images


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Change the sharpness: a blend with a 3 x 3 smoothing, which leaves the outermost pixels as they are."""
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


def color_jitter(images: Tensor, strength: float, draws: Draws) -> Tensor:
    """Brightness, contrast, saturation, always in this order (torchvision shuffles it for each image)."""
    for operation in (brightness, contrast, saturation):
        factor = draws.uniform(max(0.0, 1 - strength), 1 + strength)
        images = operation(images, send(factor.float(), images.device))
    return images


# RandAugment (Cubuk et al. 2020) for batches, with timm's operations, strengths and configuration strings.
#
# Each layer picks one of 15 operations for each image and applies it with probability p. Other than in timm, the
# geometric operations of all layers are composed with the crop into one resampling (torch's bicubic) ahead of the
# colour operations: an image is blurred once, and where it turns, pixels beyond the crop come into view.


@dataclass
class Layer:
    """One layer's choice for each of b images: an operation (-1: none) and how much of it."""

    operation: Tensor
    amount: Tensor

    def amount_of(self, name: str) -> Tensor:
        return torch.where(self.operation == NAMES.index(name), self.amount, 0.0)


def draw_layer(draws: Draws, settings: RandAugment) -> Layer:
    """Draws a layer: an operation for each image, how strong it is, and its sign."""
    operation = draws.integers(len(NAMES))
    operation = torch.where(draws.chance(settings.probability), operation, -1)
    if settings.noise > 100:
        magnitude = draws.uniform() * settings.magnitude
    else:
        magnitude = settings.magnitude + settings.noise * draws.normal()
    level = magnitude.clamp(0, settings.limit) / FULL_MAGNITUDE
    sign = torch.where(draws.chance(0.5), -1.0, 1.0)
    amounts = torch.stack([amount(level, sign, settings.increasing) for amount in AMOUNTS.values()])
    return Layer(operation, amounts.gather(0, operation.clamp(min=0)[None])[0])


def add_geometry(move: Move, layer: Layer, size: tuple[int, int]) -> Move:
    """Add a layer's geometric operations to the movement of the images that drew one."""
    height, width = size
    sheared = affine(
        shear_x=layer.amount_of("ShearX"),
        shear_y=layer.amount_of("ShearY"),
        right=layer.amount_of("TranslateX") * width,
        down=layer.amount_of("TranslateY") * height,
    )
    # An image drew one operation at most, so one of the two factors is the identity.
    matrix = rotation(layer.amount_of("Rotate"), size) @ sheared
    return move.then(matrix, layer.operation >= NAMES.index("Rotate"))


def apply_colours(images: Tensor, layer: Layer) -> Tensor:
    """Run each colour operation once, on the images that drew it. Changes `images` in place."""
    order = layer.operation.argsort(stable=True)
    counts = torch.bincount(layer.operation + 1, minlength=len(NAMES) + 1).tolist()
    rows = send(order, images.device).split(counts)
    amounts = send(layer.amount[order].float(), images.device).split(counts)
    for number, operation in enumerate(COLOURS.values(), start=1):
        if counts[number]:
            changed = operation(images.index_select(0, rows[number]), amounts[number])
            images.index_copy_(0, rows[number], changed)
    return images


# (level in 0..1, sign, increasing) -> argument of the operation
Amount = Callable[[Tensor, Tensor, bool], Tensor]


def _signed(full: float) -> Amount:
    return lambda level, sign, increasing: full * level * sign


def _factor(level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    return (1 + 0.9 * level * sign).clamp(min=0.1) if increasing else 0.1 + 1.8 * level


def _bits(level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    bits = (level * 4).floor()
    return (4 - bits).clamp(min=0) if increasing else bits


def _threshold(level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    threshold = (level * 256).floor().clamp(max=256)
    return 256 - threshold if increasing else threshold


def _addition(level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    return (level * 110).floor().clamp(max=128)


def _nothing(level: Tensor, sign: Tensor, increasing: bool) -> Tensor:
    return torch.zeros_like(level)


COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "Color": saturation,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
AMOUNTS: dict[str, Amount] = {  # colour operations in the order of COLOURS, then the geometric ones
    "AutoContrast": _nothing,
    "Equalize": _nothing,
    "Invert": _nothing,
    "Posterize": _bits,
    "Solarize": _threshold,
    "SolarizeAdd": _addition,
    "Color": _factor,
    "Contrast": _factor,
    "Brightness": _factor,
    "Sharpness": _factor,
    "Rotate": _signed(30.0),
    "ShearX": _signed(0.3),
    "ShearY": _signed(0.3),
    "TranslateX": _signed(0.45),
    "TranslateY": _signed(0.45),
}
NAMES = list(AMOUNTS)


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

    options: AugmentOptions
    num_classes: int

    def __call__(self, images: Tensor, labels: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Mix a rank's images (float) with each other, and give their soft targets [b, num_classes]."""
        drawn = self.draw(seed, step, *images.shape[-2:])
        targets = soft_targets(labels, self.num_classes, self.options.smoothing)
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
        """Draw the mix of a step, which is the same on every rank."""
        source, mixup, cutmix = random.Random(mix(seed, Purpose.MIXING, step)), self.options.mixup, self.options.cutmix
        if not (mixup or cutmix) or source.random() >= self.options.mix_prob:
            return Mix()
        use_cutmix = cutmix > 0 and (mixup == 0 or source.random() < self.options.switch_prob)
        alpha = cutmix if use_cutmix else mixup
        keep = source.betavariate(alpha, alpha)
        return cut(keep, source, height, width) if use_cutmix else Mix(keep)


def cut(keep: float, source: random.Random, height: int, width: int) -> Mix:
    """A box of 1 - keep of the area around a random pixel, clipped to the image; all outside of it is kept."""
    side = (1 - keep) ** 0.5
    h, w = int(height * side), int(width * side)
    y, x = source.randrange(height), source.randrange(width)
    top, bottom = max(0, y - h // 2), min(height, y + (h + 1) // 2)
    left, right = max(0, x - w // 2), min(width, x + (w + 1) // 2)
    return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))


def partners(count: int, device: torch.device | str = "cpu") -> Tensor:
    """The partner of each sample: its neighbour, 0 with 1, 2 with 3, ...; the last of an odd number is its own.

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
        self.mixing = Mixing(options, num_classes)
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
        """Crops, flips and turns the images, and moves them by the geometric operations of all layers, at once."""
        size = (img_size, img_size) if img_size else (images.shape[-2], images.shape[-1])
        options = self.options.for_images(min(size), images.shape[1])
        padding = (options.padding or 0) if options.crop == "pad" else 0
        move = draw_move(draws, options.crop, padding, options.hflip or 0.0, options.rotate, size, sizes)
        for layer in layers:
            move = add_geometry(move, layer, size)
        return apply_move(images, move, padding, send(self._fill, images.device), size)
