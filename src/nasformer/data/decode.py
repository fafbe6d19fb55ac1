"""One image file to one Pillow image of 8 bits: grey, RGB or RGBA, whatever the file has."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, cast

import numpy as np

from nasformer.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F")


class BadImage(Exception):
    """A file that cannot be decoded; the message says why."""


def check_channels(channels: int) -> int:
    if channels not in MODES:
        raise UserError(f"image files can be read with 1 (grey), 3 (RGB) or 4 (RGBA) channels, not {channels}")
    return channels


def read_image(path: str, channels: int = 3) -> Image:
    """The image the right way up, in 8 bits and with so many channels; raises BadImage."""
    try:
        with _open(path) as image:
            return converted(upright(image), channels)
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception on broken files
        raise BadImage(_reason(error)) from error


def read_header(path: str) -> tuple[tuple[int, int], bool]:
    """(width, height) and whether the image is grey, without decoding it; raises BadImage."""
    try:
        with _open(path) as image:
            return image.size, image.mode in GREY_MODES
    except Exception as error:
        raise BadImage(_reason(error)) from error


def _open(path: str) -> Image:
    """Opens no named pipe, which would wait for a writer for ever, and no image that may be made to exhaust memory."""
    from PIL import Image as Pillow

    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a regular file")
    image = Pillow.open(path)
    limit, (width, height) = Pillow.MAX_IMAGE_PIXELS, image.size
    if limit is not None and width * height > limit:
        image.close()
        raise ValueError(f"{width} x {height} pixels are more than Pillow's limit of {limit}")
    return image


def converted(image: Image, channels: int) -> Image:
    """An image with so many channels. Transparency is laid on white where there is no channel for it."""
    image = _eight_bits(image)
    if channels < 4 and image.has_transparency_data:
        image = _on_white(image)
    if image.mode not in MODES.values():
        image = image.convert("RGBA" if channels == 4 else "RGB")  # not every mode becomes grey in one step
    return image.convert(MODES[channels])


def _eight_bits(image: Image) -> Image:
    """The high byte of 16 bits, as Pillow itself does for colour; converting grey would cut off at 255 instead."""
    if image.mode == "F":
        raise ValueError("pixels are floats; save them as 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    image = image.convert("I")
    low, high = cast(tuple[int, int], image.getextrema())
    if low < 0 or high > 65535:
        raise ValueError("pixels have 32 bits; save them as 8 or 16 bits")
    return image.point(lambda value: value * (1 / 256)).convert("L")


def _on_white(image: Image) -> Image:
    from PIL import Image as Pillow

    white = Pillow.new("RGBA", image.size, "white")
    return Pillow.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def upright(image: Image) -> Image:
    """As the camera was held."""
    from PIL import ImageOps

    try:
        turned = ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, KeyError, TypeError):  # what a camera wrote beside the pixels may be broken
        return image
    return turned or image


def _reason(error: Exception) -> str:
    """The first line of a message, without the path or an object's address at its end."""
    first = (str(error).splitlines() or [""])[0].split(" '")[0].split(" <")[0]
    return first or type(error).__name__


def channels_first(image: Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
