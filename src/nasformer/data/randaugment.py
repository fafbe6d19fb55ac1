"""RandAugment (Cubuk et al. 2020) for batches, with timm's operations, strengths and configuration strings.

Each layer picks one of 15 operations for each image and applies it with probability p. Other than in timm,
the geometric operations of all layers are composed with the crop into one resampling (torch's bicubic) ahead
of the colour operations: an image is blurred once, and where it turns, pixels beyond the crop come into view.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nasformer.data import colour
from nasformer.data.geometry import Move, affine, rotation
from nasformer.data.images import send
from nasformer.data.rng import Draws
from nasformer.errors import UserError

FULL = 10.0  # the magnitude that counts as full strength


@dataclass(frozen=True)
class RandAugment:
    """What a string such as "rand-m9-mstd0.5-inc1" means.

    >>> RandAugment.parse("rand-m9-mstd0.5-inc1")
    RandAugment(magnitude=9.0, noise=0.5, limit=10.0, layers=2, probability=0.5, increasing=True)
    """

    magnitude: float = FULL
    noise: float = 0.0  # standard deviation of the magnitude; above 100 it is uniform in 0..magnitude instead
    limit: float = FULL
    layers: int = 2
    probability: float = 0.5
    increasing: bool = False  # more is always stronger, for the operations where timm has two scales

    @staticmethod
    def parse(text: str) -> RandAugment:
        name, *words = text.split("-")
        pairs = [re.fullmatch(r"(m|mstd|mmax|n|p|inc)(\d+(?:\.\d+)?)", word) for word in words]
        if name != "rand" or not all(pairs):
            raise UserError(
                f"cannot read RandAugment {text!r}; write it like rand-m9-mstd0.5-inc1 (m mstd mmax n p inc)"
            )
        found = {pair[1]: float(pair[2]) for pair in pairs if pair}
        return RandAugment(
            magnitude=found.get("m", FULL),
            noise=found.get("mstd", 0.0),
            limit=found.get("mmax", FULL),
            layers=int(found.get("n", 2)),
            probability=found.get("p", 0.5),
            increasing=bool(found.get("inc", 0)),
        )


@dataclass
class Layer:
    """One layer's choice for each of b images: an operation (-1: none) and how much of it."""

    operation: Tensor
    amount: Tensor

    def amount_of(self, name: str) -> Tensor:
        return torch.where(self.operation == NAMES.index(name), self.amount, 0.0)


def draw_layer(draws: Draws, config: RandAugment) -> Layer:
    operation = draws.integers(len(NAMES))
    operation = torch.where(draws.chance(config.probability), operation, -1)
    if config.noise > 100:
        magnitude = draws.uniform() * config.magnitude
    else:
        magnitude = config.magnitude + config.noise * draws.normal()
    level = magnitude.clamp(0, config.limit) / FULL
    sign = torch.where(draws.chance(0.5), -1.0, 1.0)
    amounts = torch.stack([amount(level, sign, config.increasing) for amount in AMOUNTS.values()])
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
    "AutoContrast": colour.auto_contrast,
    "Equalize": colour.equalize,
    "Invert": colour.invert,
    "Posterize": colour.posterize,
    "Solarize": colour.solarize,
    "SolarizeAdd": colour.solarize_add,
    "Color": colour.colour,
    "Contrast": colour.contrast,
    "Brightness": colour.brightness,
    "Sharpness": colour.sharpness,
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
