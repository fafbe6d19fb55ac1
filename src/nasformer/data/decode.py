"""One image file to pixels: an 8-bit Pillow image in grey, RGB or RGBA, resized and cropped as in evaluation."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from nasformer.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F")
CROP_SHARE = 224 / 256
"""Side of the centre crop, relative to the short side of the resized image."""


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
            return convert(_upright(image), channels)
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


def convert(image: Image, channels: int) -> Image:
    """An image with so many channels. Transparency is laid on white where there is no channel for it."""
    image = _eight_bits(image)
    if channels < 4 and image.has_transparency_data:
        image = _on_white(image)
    if image.mode not in MODES.values():
        image = image.convert("RGBA" if channels == 4 else "RGB")  # not every mode becomes grey in one step
    return image.convert(MODES[channels])


def _eight_bits(image: Image) -> Image:
    """The high byte of 16 bits, as Pillow itself does for colour; converting grey would cut off at 255 instead."""
    from PIL import Image as Pillow

    if image.mode == "F":
        raise ValueError("pixels are floats; save them as 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("pixels have 32 bits; save them as 8 or 16 bits")
    return Pillow.fromarray((pixels >> 8).astype(np.uint8))


def _on_white(image: Image) -> Image:
    from PIL import Image as Pillow

    white = Pillow.new("RGBA", image.size, "white")
    return Pillow.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _upright(image: Image) -> Image:
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


def resize_and_crop(image: Image, size: int) -> Image:
    """The usual evaluation view: short side to 256/224 of the size, then the centre. The right size is left alone.

    Only what the crop shows is resized: the whole of a very long image would not fit into memory.
    """
    from PIL.Image import Resampling

    if image.size == (size, size):
        return image
    scale = size / CROP_SHARE / min(image.size)
    resized = [max(size, round(side * scale)) for side in image.size]
    start = [(side - size) // 2 for side in resized]
    left, top = (first * side / new for first, side, new in zip(start, image.size, resized, strict=True))
    width, height = (size * side / new for side, new in zip(image.size, resized, strict=True))
    return image.resize((size, size), Resampling.BICUBIC, box=(left, top, left + width, top + height))


def channels_first(image: Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
