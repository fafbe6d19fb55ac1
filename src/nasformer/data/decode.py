"""From image files to what a model sees: decoding to 8-bit pixels (grey, RGB or RGBA), and preprocessing.

Pillow reads every format and says what is wrong with a broken file. JPEGs are decoded by torchvision where it gives the
same pixels, since it does so in threads, and on a GPU.
"""

from __future__ import annotations

import io
import math
import os
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from nasformer.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F")


A = TypeVar("A")
B = TypeVar("B")


class BadImage(Exception):
    """A file that cannot be decoded; the message says why."""


def attempt(function: Callable[[A], B]) -> Callable[[A], B | BadImage]:
    """The same function, but it returns a BadImage instead of raising it: for threads, whose results come in order."""

    def attempted(argument: A) -> B | BadImage:
        try:
            return function(argument)
        except BadImage as error:
            return error

    return attempted


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
    """Size, components and Exif data of a JPEG."""

    height: int
    width: int
    components: int
    exif: bytes = b""

    def plain(self, channels: int) -> bool:
        """Whether torchvision decodes it to Pillow's pixels: grey and RGB it does, but not colour as grey."""
        return self.components in (1, 3) and self.components <= channels <= 3 and small_enough(self.width, self.height)

    @property
    def upright(self) -> bool:
        """Whether the image needs no rotation, by its Exif orientation."""
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
    """The image with this number of channels; transparency becomes white where there is no channel for it."""
    image = _eight_bits(image)
    if channels < 4 and image.has_transparency_data:
        image = _on_white(image)
    if image.mode not in MODES.values():
        image = image.convert("RGBA" if channels == 4 else "RGB")  # not every mode becomes grey in one step
    return image.convert(MODES[channels])


def _eight_bits(image: Image) -> Image:
    """The image in 8 bits: the high byte of 16, as Pillow takes for colour; for grey it would clip at 255."""
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
    """The image, rotated by its Exif orientation."""
    from PIL import ImageOps

    try:
        turned = ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, KeyError, TypeError):  # Exif data may be broken
        return image
    return turned or image


def _reason(error: Exception) -> str:
    """The first line of a message, without the path or an object's address at its end."""
    first = (str(error).splitlines() or [""])[0].split(" '")[0].split(" <")[0]
    return first or type(error).__name__


def channels_first(image: Image) -> np.ndarray:
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


# Preprocessing: how evaluation turns an image into what a model sees. Exported models carry it.

CROP_PCT = 224 / 256
"""Of image files: the short side is resized to 256 pixels for every 224 that the central crop keeps."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels, by which most pretrained nets were trained."""


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation prepares images, in timm's words.

    Attributes:
        img_size: Rows and columns that the model sees.
        in_chans: Channels: 1 is grey, 3 RGB, 4 RGBA.
        crop_pct: The share of the resized short side that the central crop keeps.
        interpolation: How images are resized, by Pillow's name.
        mean: Of each channel, for pixels in 0..1; None where it is unknown.
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
    """A mean or deviation for another number of channels: their average for grey images, else its values in turn.

    >>> for_channels([0.25, 0.5, 0.75], 1), for_channels([0.5], 3)
    ((0.5,), (0.5, 0.5, 0.5))
    """
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[position % len(values)] for position in range(channels))
