"""Image files to pixels of 8 bits: grey, RGB or RGBA, whatever the file has.

Pillow reads every format and says what is wrong with a broken file. JPEGs are decoded by torchvision where it gives the
same pixels, since it does so in threads, and on a GPU.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

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


def read_bytes(path: str) -> Tensor:
    """The content of a file, uint8 [N]; raises BadImage.

    Opens no named pipe, which would wait for a writer for ever.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadImage("not a regular file")
        with open(path, "rb", buffering=0) as file:
            content = bytearray(os.fstat(file.fileno()).st_size)
            read = file.readinto(content) or 0
            content[read:] = file.readall()  # more than was asked for at a time, or has come since
    except OSError as error:
        raise BadImage(_reason(error)) from error
    return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def read_image(path: str, channels: int = 3) -> Image:
    """The upright image in 8 bits, with this number of channels; raises BadImage."""
    return _decode_by_pillow(read_bytes(path), channels)


def decode_image(content: Tensor, channels: int) -> Tensor:
    """The pixels (uint8, C x H x W) of a file's content, as `read_image` gives them; raises BadImage."""
    header = jpeg_header(content)
    if header is not None and header.plain(channels):
        try:
            return _decode_jpeg(content).expand(channels, -1, -1)
        except (RuntimeError, ImportError):  # a torchvision without decoders
            pass  # Pillow says what is wrong with it
    return torch.from_numpy(channels_first(_decode_by_pillow(content, channels)))


def read_header(content: str | Tensor) -> tuple[tuple[int, int], bool]:
    """(width, height) and whether the image is grey, of a path or a content, without decoding it; raises BadImage."""
    try:
        if isinstance(content, str) and not stat.S_ISREG(os.stat(content).st_mode):
            raise BadImage("not a regular file")
        with _open(content) as image:
            return image.size, image.mode in GREY_MODES
    except Exception as error:
        raise BadImage(_reason(error)) from error


def _decode_by_pillow(content: Tensor, channels: int) -> Image:
    try:
        with _open(content) as image:
            return converted(upright(image), channels)
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception on broken files
        raise BadImage(_reason(error)) from error


def _open(content: str | Tensor) -> Image:
    """Opens an image, unless its size may exhaust the memory."""
    from PIL import Image as Pillow

    image = Pillow.open(content if isinstance(content, str) else io.BytesIO(content.numpy().tobytes()))
    if not small_enough(*image.size):
        image.close()
        limit, (width, height) = Pillow.MAX_IMAGE_PIXELS, image.size
        raise ValueError(f"{width} x {height} pixels are more than Pillow's limit of {limit}")
    return image


def small_enough(width: int, height: int) -> bool:
    """Whether an image is within Pillow's limit against decompression bombs."""
    from PIL import Image as Pillow

    return Pillow.MAX_IMAGE_PIXELS is None or width * height <= Pillow.MAX_IMAGE_PIXELS


# JPEG by torchvision

FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of a frame's header
EXIF = 0xE1
ORIENTATION = 0x0112  # Exif's tag


@dataclass(frozen=True)
class JpegHeader:
    """Size and components of a JPEG, and what the camera wrote beside the pixels."""

    height: int
    width: int
    components: int
    exif: bytes = b""

    def plain(self, channels: int) -> bool:
        """Whether torchvision decodes it to Pillow's pixels: grey and RGB it does, but not colour as grey."""
        return self.components in (1, 3) and self.components <= channels <= 3 and small_enough(self.width, self.height)

    @property
    def upright(self) -> bool:
        """Whether the camera was held straight, as far as it says."""
        from PIL import Image as Pillow

        if not self.exif:
            return True
        exif = Pillow.Exif()
        try:
            exif.load(self.exif)
            return exif.get(ORIENTATION) not in range(2, 9)
        except (SyntaxError, ValueError, KeyError, TypeError, struct.error):
            return True


def jpeg_header(content: Tensor) -> JpegHeader | None:
    """The header of a JPEG; None for other files, and for a JPEG without one."""
    data, position, exif = content.numpy().data, 2, b""
    if bytes(data[:2]) != b"\xff\xd8":
        return None
    while position + 10 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in FRAMES:
            height, width, components = struct.unpack_from(">HHB", data, position + 5)
            return JpegHeader(height, width, components, exif)
        if marker == EXIF and bytes(data[position + 4 : position + 10]) == b"Exif\0\0":
            exif = bytes(data[position + 4 : position + 2 + length])
        position += 1 if marker == 0xFF else 2 + length  # 0xFF may be repeated before a marker
    return None


def _decode_jpeg(content: Tensor) -> Tensor:
    from torchvision.io import decode_jpeg

    pixels: Tensor = decode_jpeg(content, apply_exif_orientation=True)
    return pixels


def decode_jpegs(contents: list[Tensor], channels: int, device: torch.device) -> list[Tensor]:
    """The pixels of several JPEGs on a device, by one call; RuntimeError if one of them is broken.

    They are not turned (see `JpegHeader.upright`). A GPU's pixels are the CPU's to rounding where colour has the full
    resolution; where it has half, as in most JPEGs, the two interpolate it in different ways.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.RGB if channels == 3 else ImageReadMode.GRAY
    pixels: list[Tensor] = decode_jpeg(contents, mode, device)
    return pixels


@lru_cache
def decodes_jpegs(device: torch.device) -> bool:
    """Whether torchvision can decode JPEGs on this device."""
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.new("RGB", (16, 16)).save(file, "JPEG")
    try:
        decode_jpegs([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], 3, device)
    except (RuntimeError, ImportError):
        return False
    return True


def converted(image: Image, channels: int) -> Image:
    """An image with this number of channels. Transparency is laid on white where there is no channel for it."""
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
    """The image turned as the camera was held."""
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
