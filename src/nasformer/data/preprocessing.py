"""Preprocessing: how evaluation turns an image into what a model sees. No torch here, and exported models carry it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

CROP_PCT = 224 / 256
"""Of image files: the short side is resized to 256 pixels for every 224 that the central crop keeps."""


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation prepares images, in timm's words.

    Attributes:
        img_size: Rows and columns that the model sees.
        in_chans: Channels: 1 is grey, 3 RGB, 4 RGBA.
        crop_pct: The share of the resized short side that the central crop keeps.
        interpolation: How images are resized, by Pillow's name.
        mean: Of each channel, for pixels in 0..1; None where it is not known.
        std: Likewise.
    """

    img_size: tuple[int, int]
    in_chans: int = 3
    crop_pct: float = 1.0
    interpolation: str = "bicubic"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def short_side(self) -> int:
        """Pixels of the short side after resizing, before the crop."""
        return round(min(self.img_size) / self.crop_pct)

    def timm_config(self) -> dict[str, Any]:
        """The same under timm's keys.

        >>> Preprocessing((32, 32), crop_pct=CROP_PCT).timm_config()["crop_pct"]  # 32 of 37 pixels
        0.8648648648648649
        """
        size, short = min(self.img_size), self.short_side
        crop_pct = size / short
        if math.floor(size / crop_pct) != short:  # timm rounds down, where a float may be just below the integer
            crop_pct = math.nextafter(crop_pct, 0)
        config = {"input_size": [self.in_chans, *self.img_size], "interpolation": self.interpolation}
        normalisation = {"mean": self.mean, "std": self.std}
        listed = {name: list(values) for name, values in normalisation.items() if values is not None}
        return {**config, "crop_pct": crop_pct, **listed}


def resize_and_crop(image: Image, img_size: tuple[int, int], crop_pct: float, interpolation: str = "bicubic") -> Image:
    """Resize an image until `crop_pct` of its short side has the wanted size, and crop the centre.

    Only what the crop shows is resized: the whole of a very long image would not fit into memory.
    """
    from PIL.Image import Resampling

    rows, columns = img_size
    scale = max(columns / crop_pct / image.width, rows / crop_pct / image.height)
    width, height = max(columns, round(image.width * scale)), max(rows, round(image.height * scale))
    x, y = image.width / width, image.height / height
    left, top = (width - columns) // 2 * x, (height - rows) // 2 * y
    box = (left, top, min(left + columns * x, image.width), min(top + rows * y, image.height))
    return image.resize((columns, rows), Resampling[interpolation.upper()], box=box)


def for_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """A mean or deviation for images of other channels than it was measured on: their average in grey, else in turn.

    >>> for_channels([0.25, 0.5, 0.75], 1), for_channels([0.5], 3)
    ((0.5,), (0.5, 0.5, 0.5))
    """
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[position % len(values)] for position in range(channels))
