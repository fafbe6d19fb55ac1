"""Each operation against Pillow, to the bit where Pillow computes in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from nasformer.data import augment


def to_pil(image: Tensor) -> Any:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())


def from_pil(image: Any, like: Tensor) -> Tensor:
    height, width = like.shape[1:]
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)


def solarize_add(image: Any, addition: float) -> Any:
    return image.point([min(255, i + int(addition)) if i < 128 else i for i in range(256)] * len(image.getbands()))


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[Any, float], Any], list[float], int]] = {
    "AutoContrast": (augment.auto_contrast, lambda i, _: ImageOps.autocontrast(i), [0, 0, 0], 1),
    "Equalize": (augment.equalize, lambda i, _: ImageOps.equalize(i), [0, 0, 0], 0),
    "Invert": (augment.invert, lambda i, _: ImageOps.invert(i), [0, 0, 0], 0),
    "Posterize": (augment.posterize, lambda i, bits: ImageOps.posterize(i, int(bits)), [1, 2, 4, 8], 0),
    "Solarize": (augment.solarize, lambda i, at: ImageOps.solarize(i, int(at)), [0, 26, 128, 256], 0),
    "SolarizeAdd": (augment.solarize_add, solarize_add, [0, 99, 110], 0),
    "Color": (augment.saturation, lambda i, f: ImageEnhance.Color(i).enhance(f), [0.1, 1.0, 1.81], 1),
    "Contrast": (augment.contrast, lambda i, f: ImageEnhance.Contrast(i).enhance(f), [0.1, 1.0, 1.81], 1),
    "Brightness": (
        augment.brightness,
        lambda i, f: ImageEnhance.Brightness(i).enhance(f),
        [0.1, 1.0, 1.81],
        1,
    ),
    "Sharpness": (augment.sharpness, lambda i, f: ImageEnhance.Sharpness(i).enhance(f), [0.1, 1.0, 1.81], 1),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["smooth", "noise", "flat", "dark"])
@pytest.mark.parametrize("name", CASES)
def test_operation_agrees_with_pillow(photo: Callable[..., Tensor], name: str, kind: str, channels: int) -> None:
    ours, theirs, amounts, tolerance = CASES[name]
    shape = (len(amounts), channels, 32, 32)
    images = {
        "smooth": photo(len(amounts), channels),
        "noise": torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        "flat": torch.full(shape, 77, dtype=torch.uint8),
        "dark": photo(len(amounts), channels) // 9,
    }[kind]
    before = images.clone()
    results = ours(images, torch.tensor(amounts))
    assert torch.equal(images, before)
    assert results.dtype == torch.uint8
    for image, amount, result in zip(images, amounts, results, strict=True):
        expected = from_pil(theirs(to_pil(image), amount), image)
        assert (result.int() - expected.int()).abs().max() <= tolerance


def test_factor_one_changes_nothing(photo: Callable[..., Tensor]) -> None:
    images = photo(4)
    for operation in (augment.brightness, augment.contrast, augment.saturation, augment.sharpness):
        assert torch.equal(operation(images, torch.ones(4)), images)


def test_posterize_to_no_bits_is_black(photo: Callable[..., Tensor]) -> None:
    assert not augment.posterize(photo(2), torch.zeros(2)).any()


def test_colour_leaves_grey_images_alone(photo: Callable[..., Tensor]) -> None:
    grey = photo(2, channels=1)
    assert torch.equal(augment.saturation(grey, torch.tensor([0.1, 1.9])), grey)


def test_sharpness_of_tiny_images(photo: Callable[..., Tensor]) -> None:
    tiny = photo(2, size=32)[..., :2, :2]
    assert torch.equal(augment.sharpness(tiny, torch.tensor([0.1, 1.9])), tiny)
