"""Every kind of file that people have, against what one would see on a screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nasformer.data.decode import (
    CROP_PCT,
    ORIENTATION,
    BadImage,
    channels_first,
    decode_image,
    jpeg_header,
    read_bytes,
    read_header,
    read_image,
    resize_and_crop,
)
from nasformer.data.files import shrink
from nasformer.data.sources import load_data

Maker = Callable[..., Path]
RED, GREEN = (200, 10, 20), (10, 180, 30)


def two_halves(left: Any, right: Any, mode: str = "RGB") -> Any:
    """An image of 8 x 16 pixels, in two colours."""
    image = Image.new(mode, (16, 8), left)
    image.paste(right, (8, 0, 16, 8))
    return image


def pixels(path: Path, channels: int = 3) -> np.ndarray:
    return np.asarray(read_image(str(path), channels)).astype(int)


def near(found: np.ndarray, expected: Any, slack: int = 6) -> bool:
    return bool((abs(found - np.array(expected)) <= slack).all())


def test_16_bit_png_is_not_white(tmp_path: Path) -> None:
    """Pillow alone cuts everything above 255 off."""
    ramp = (np.arange(128, dtype=np.uint16).reshape(8, 16) * 500).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    assert np.asarray(Image.open(tmp_path / "deep.png").convert("RGB")).min(axis=2).max() == 255
    found = pixels(tmp_path / "deep.png")
    assert np.array_equal(found[..., 0], ramp >> 8)
    assert (found == found[..., :1]).all()
    assert np.array_equal(pixels(tmp_path / "deep.png", 1), ramp >> 8)
    Image.fromarray(ramp).save(tmp_path / "deep.tif")
    assert np.array_equal(pixels(tmp_path / "deep.tif", 1), ramp >> 8)


def test_cmyk_jpeg(tmp_path: Path) -> None:
    two_halves(RED, GREEN).convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    with Image.open(tmp_path / "print.jpg") as image:
        assert image.mode == "CMYK"
    found = pixels(tmp_path / "print.jpg")
    assert near(found[:, :6], RED, 12)
    assert near(found[:, 10:], GREEN, 12)
    assert pixels(tmp_path / "print.jpg", 1).shape == (8, 16)


def test_palette_png(tmp_path: Path) -> None:
    two_halves(RED, GREEN).convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "few.png")
    with Image.open(tmp_path / "few.png") as image:
        assert image.mode == "P"
    found = pixels(tmp_path / "few.png")
    assert near(found[:, :8], RED, 0)
    assert near(found[:, 8:], GREEN, 0)


@pytest.mark.parametrize("kind", ["RGBA", "P", "LA"])
def test_what_is_transparent_is_white(tmp_path: Path, kind: str) -> None:
    """The colour below would be shown by merely leaving the transparency out."""
    if kind == "P":
        image = two_halves(0, 1, "P")
        image.putpalette([*RED, *GREEN])
        image.save(tmp_path / "clear.png", transparency=1)
    elif kind == "LA":
        two_halves((90, 255), (10, 0), "LA").save(tmp_path / "clear.png")
    else:
        two_halves((*RED, 255), (*GREEN, 0), "RGBA").save(tmp_path / "clear.png")
    found = pixels(tmp_path / "clear.png")
    assert near(found[:, :8], 90 if kind == "LA" else RED, 0)
    assert near(found[:, 8:], 255, 0)
    with_alpha = pixels(tmp_path / "clear.png", 4)
    assert near(with_alpha[:, :8, 3], 255, 0)
    assert near(with_alpha[:, 8:, 3], 0, 0)


def test_images_are_the_right_way_up(tmp_path: Path) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 16, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn clockwise to show
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(pixels(tmp_path / "turned.png"), np.asarray(upright))


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("cut.jpg", lambda whole: whole[: len(whole) // 2], "truncated"),
        ("cut.png", lambda whole: whole[: len(whole) // 2], "truncated|broken"),
        ("text.jpg", lambda _: b"Dear Sir or Madam", "cannot identify image file"),
        ("empty.jpg", lambda _: b"", "cannot identify image file"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, damage: Callable[[bytes], bytes], reason: str) -> None:
    path = tmp_path / name
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadImage, match=reason) as caught:
        decode_image(read_bytes(str(path)), 3)
    assert str(tmp_path) not in str(caught.value)
    if "cut" not in name:
        with pytest.raises(BadImage, match=reason):
            read_header(str(path))


def test_floats_are_refused_with_a_reason(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(BadImage, match="pixels are floats; save them as 8 or 16 bits"):
        read_image(str(tmp_path / "float.tif"))
    Image.fromarray(np.full((4, 4), 70_000, np.int32)).save(tmp_path / "wide.tif")
    with pytest.raises(BadImage, match="pixels have 32 bits"):
        read_image(str(tmp_path / "wide.tif"))


def test_grey_among_colour_is_colour_and_all_grey_is_grey(image_folder: Maker) -> None:
    from nasformer.errors import UserError

    root = image_folder({"train": {"ant": 5, "bee": 5}, "test": {"ant": 2, "bee": 2}})
    files = sorted(root.rglob("*.png"))
    for path in files[1:]:
        with Image.open(path) as image:
            image.convert("L").save(path)
    data = load_data(str(root), holdout=0)
    assert data.in_chans == 3
    grey = (data.test.images == data.test.images[:, :1]).flatten(1).all(1)
    assert grey.sum() == len(data.test) - (files[0].parts[-3] == "test")
    with Image.open(files[0]) as image:
        image.convert("L").save(files[0])
    alone = load_data(str(root), holdout=0)
    assert (alone.in_chans, len(alone.mean)) == (1, 1)
    assert torch.equal(
        alone.train.images.expand(-1, 3, -1, -1), load_data(str(root), holdout=0, in_chans=3).train.images
    )
    assert load_data(str(root), holdout=0, in_chans=4).train.images[:, 3].min() == 255
    with pytest.raises(UserError, match=r"1 \(grey\), 3 \(RGB\) or 4 \(RGBA\) channels, not 2"):
        load_data(str(root), in_chans=2)


# Size


def resized_then_cropped(image: Any, size: int) -> Any:
    """The same view by way of the whole image, resized."""
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))


@pytest.mark.parametrize("size", [(30, 20), (200, 300), (97, 31), (225, 224), (50, 50), (300, 33)])
def test_what_the_crop_shows_is_resized_as_the_whole_would_be(photo: Callable[..., Any], size: tuple[int, int]) -> None:
    """But for rounding, of which there is some in each direction."""
    image = Image.fromarray(photo(1)[0].permute(1, 2, 0).numpy()).resize(size)
    for side in (16, 96, 224):
        found = np.asarray(resize_and_crop(image, (side, side), CROP_PCT)).astype(int)
        assert found.shape == (side, side, 3)
        assert abs(found - np.asarray(resized_then_cropped(image, side))).max() <= 2


def test_an_image_of_the_right_size_is_left_alone(photo: Callable[..., Any]) -> None:
    image = Image.fromarray(photo(1)[0].permute(1, 2, 0).numpy())
    assert np.array_equal(resize_and_crop(image, (32, 32), crop_pct=1.0), image)


@pytest.mark.parametrize("size", [(1, 65_000), (65_000, 1)])
def test_a_very_long_image_takes_little_memory(tmp_path: Path, size: tuple[int, int]) -> None:
    """Resized as a whole it would have 16,640,000 x 256 pixels."""
    Image.new("RGB", size, (10, 20, 30)).save(tmp_path / "long.png")
    image = read_image(str(tmp_path / "long.png"))
    assert np.array_equal(
        np.unique(np.asarray(resize_and_crop(image, (224, 224), CROP_PCT)).reshape(-1, 3), axis=0), [[10, 20, 30]]
    )
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    assert sorted(shrink(pixels, 256).shape[1:]) == [1, 3]


def test_the_whole_of_an_image_is_shrunk_as_pillow_does(photo: Callable[..., Any]) -> None:
    image = Image.fromarray(photo(1, size=64)[0].permute(1, 2, 0).numpy()).resize((90, 60))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    found = shrink(pixels, 32).permute(1, 2, 0).numpy().astype(int)
    assert abs(found - np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC))).max() <= 1
    assert torch.equal(shrink(pixels, 60), pixels)  # never enlarged
    stripes = torch.arange(40, dtype=torch.uint8).expand(1, 4, 40)
    assert torch.equal(shrink(stripes, 8), stripes[:, :, 14:26])  # of a very long one the middle


# JPEG by torchvision: Pillow's pixels


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_torchvision_gives_the_pixels_of_pillow(
    photo: Callable[..., Any], tmp_path: Path, mode: str, channels: int
) -> None:
    image = Image.fromarray(photo(1)[0].permute(1, 2, 0).numpy()).resize((45, 30)).convert(mode)
    for number, options in enumerate([{"quality": 90}, {"subsampling": 0}, {"progressive": True}]):
        path = str(tmp_path / f"{number}.jpg")
        image.save(path, **options)
        found = decode_image(read_bytes(path), channels)
        assert np.array_equal(found.numpy(), channels_first(read_image(path, channels)))
        header = jpeg_header(read_bytes(path))
        assert header is not None
        assert (header.height, header.width, header.components) == (30, 45, len(mode))
        assert header.plain(channels) == ((channels == 3 and mode != "CMYK") or (channels == 1 and mode == "L"))


@pytest.mark.parametrize("orientation", range(9))
def test_torchvision_turns_images_as_pillow_does(photo: Callable[..., Any], tmp_path: Path, orientation: int) -> None:
    exif, path = Image.Exif(), str(tmp_path / "turned.jpg")
    exif[ORIENTATION] = orientation
    Image.fromarray(photo(1)[0].permute(1, 2, 0).numpy()).resize((45, 30)).save(path, exif=exif)
    content = read_bytes(path)
    assert np.array_equal(decode_image(content, 3).numpy(), channels_first(read_image(path, 3)))
    header = jpeg_header(content)
    assert header is not None
    assert header.upright == (orientation < 2)
    broken = content.clone()
    broken[26:40] = 255  # in what the camera wrote
    assert decode_image(broken, 3).shape[0] == 3


def test_what_is_no_jpeg_has_no_header(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    for content in (read_bytes(str(tmp_path / "image.png")), torch.empty(0, dtype=torch.uint8)):
        assert jpeg_header(content) is None
    Image.new("RGB", (4, 4)).save(tmp_path / "image.jpg")
    content = read_bytes(str(tmp_path / "image.jpg"))
    assert all(jpeg_header(content[:length]) is None for length in range(150))  # cut off before the frame


def test_an_image_beyond_the_limit_against_bombs_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (12, 10)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for read in (read_image, read_header):
        with (
            pytest.warns(Image.DecompressionBombWarning),
            pytest.raises(BadImage, match="12 x 10 pixels are more than Pillow's limit of 100"),
        ):
            read(str(tmp_path / "large.png"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # of twice as many Pillow itself refuses to read the header
    with pytest.raises(BadImage, match="exceeds limit"):
        read_image(str(tmp_path / "large.png"))
    Image.new("L", (12, 10)).save(tmp_path / "large.jpg")
    with pytest.raises(BadImage, match="exceeds limit"):  # torchvision has no limit of its own
        decode_image(read_bytes(str(tmp_path / "large.jpg")), 1)
