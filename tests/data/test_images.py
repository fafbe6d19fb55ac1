from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nasformer.data.images import Data, ImageSet, channel_stats, normalise, resize
from nasformer.errors import UserError


def image_set(count: int = 4, channels: int = 3, size: tuple[int, int] = (8, 8), label: int = 0) -> ImageSet:
    return ImageSet(torch.zeros(count, channels, *size, dtype=torch.uint8), torch.full((count,), label))


def data() -> Data:
    return Data("tiny", image_set(), image_set(), image_set(), ["a", "b"], (0.5,) * 3, (0.5,) * 3)


def test_data_says_its_shape() -> None:
    assert (data().num_classes, data().in_chans, data().img_size) == (2, 3, 8)


def test_subset_keeps_images_and_labels_together() -> None:
    images = ImageSet(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5))
    part = images.subset(torch.tensor([3, 1]))
    assert part.images.flatten().tolist() == part.labels.tolist() == [3, 1]
    assert len(part.to("cpu")) == 2


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "images are torch.float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"shape \(2, 4, 4\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), "labels are torch.float32"),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            "2 images but 3 labels",
        ),
    ],
)
def test_image_set_errors(images: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageSet(images, labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": image_set(0)}, "tiny: train is empty"),
        ({"test": image_set(0)}, "tiny: test is empty"),
        ({"test": image_set(channels=1)}, "parts differ in image shape"),
        ({"test": image_set(label=2)}, r"tiny: test labels are 2..2, not 0..1"),
        ({"holdout": image_set(label=-1)}, r"tiny: holdout labels are -1..-1, not 0..1"),
        (
            {part: image_set(size=(8, 6)) for part in ("train", "holdout", "test")},
            "images are 8x6, not square",
        ),
    ],
)
def test_data_errors(change: dict[str, ImageSet], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(data(), **change)  # type: ignore[arg-type]


def test_an_empty_hold_out_is_allowed() -> None:
    assert len(dataclasses.replace(data(), holdout=image_set(0)).holdout) == 0


def test_stats_and_normalise(photo: Callable[..., Tensor]) -> None:
    images = photo(600)  # more than a chunk
    mean, std = channel_stats(images)
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())
    x = normalise(images, mean, std)
    assert x.dtype == torch.float32
    assert x.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    assert x.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=1e-3)


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    images = torch.full((2, 1, 4, 4), 7, dtype=torch.uint8)
    assert normalise(images, *channel_stats(images)).abs().max() < 1e-5


@pytest.mark.parametrize("size", [16, 48])
def test_resize_agrees_with_pillow(photo: Callable[..., Tensor], size: int) -> None:
    from PIL import Image

    images = photo(3)
    ours = resize(images, size)
    for image, mine in zip(images, ours, strict=True):
        pil = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((size, size), Image.Resampling.BICUBIC)
        theirs = torch.frombuffer(bytearray(pil.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
        assert (mine.int() - theirs.int()).abs().max() <= 1


def test_resize_crops_the_centre_and_leaves_the_right_size_alone(photo: Callable[..., Tensor]) -> None:
    wide = torch.zeros(2, 1, 10, 30, dtype=torch.uint8)
    wide[..., 10:20] = 200
    assert (resize(wide, 10) == 200).all()
    images = photo(2)
    assert resize(images, 32) is images
    assert resize(images[:0], 16).shape == (0, 3, 16, 16)
