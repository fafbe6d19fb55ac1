from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from nasformer.data.augment import (
    affine,
    apply_move,
    draw_move,
    mirror,
    resized_crop,
    rotation,
    shift_and_flip,
    warp,
)
from nasformer.utils.rng import Draws, generator

SIZE = (32, 32)
FILL = torch.tensor([10, 20, 30], dtype=torch.uint8)
one = torch.ones(1, dtype=torch.float64)


def through_pil(image: Tensor, move: Callable[[Any], Any]) -> Tensor:
    moved = move(Image.fromarray(image.permute(1, 2, 0).numpy()))
    height, width = image.shape[1:]
    return torch.frombuffer(bytearray(moved.tobytes()), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)


def pil_affine(*numbers: float) -> Callable[[Any], Any]:
    def move(image: Any) -> Any:
        kind = Image.Transform.AFFINE
        return image.transform(image.size, kind, numbers, resample=Image.Resampling.BICUBIC, fillcolor=(10, 20, 30))

    return move


@pytest.mark.parametrize(
    ("matrix", "move"),
    [
        (
            rotation(27.0 * one, SIZE),
            lambda i: i.rotate(27, Image.Resampling.BICUBIC, fillcolor=(10, 20, 30)),
        ),
        (
            rotation(-9.0 * one, SIZE),
            lambda i: i.rotate(-9, Image.Resampling.BICUBIC, fillcolor=(10, 20, 30)),
        ),
        (affine(shear_x=0.27 * one), pil_affine(1, 0.27, 0, 0, 1, 0)),
        (affine(shear_y=-0.27 * one), pil_affine(1, 0, 0, -0.27, 1, 0)),
        (affine(right=5.5 * one), pil_affine(1, 0, 5.5, 0, 1, 0)),
        (affine(down=-7.0 * one), pil_affine(1, 0, 0, 0, 1, -7)),
        (mirror(one.bool(), SIZE), lambda i: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    ],
    ids=["rotate", "rotate back", "shear x", "shear y", "right", "down", "mirror"],
)
def test_warp_agrees_with_pillow(photo: Callable[..., Tensor], matrix: Tensor, move: Callable[[Any], Any]) -> None:
    image = photo(1)
    difference = (warp(image, matrix, FILL)[0].int() - through_pil(image[0], move).int()).abs()
    # At the edge torch blends into the fill where Pillow cuts, so compare where all neighbours lie within.
    y, x = torch.meshgrid(torch.arange(32) + 0.5, torch.arange(32) + 0.5, indexing="ij")
    read = torch.einsum("ij,jyx->iyx", matrix[0, :2], torch.stack([x, y, torch.ones_like(x)]).double())
    inside = ((read > 2) & (read < 30)).all(dim=0).expand(3, 32, 32)
    assert inside.float().mean() > 0.4
    assert difference[inside].max() <= 4  # the bicubic kernels differ: a = -0.75 and -0.5


def test_what_lies_outside_has_the_fill_colour(photo: Callable[..., Tensor]) -> None:
    moved = warp(photo(1), affine(right=100.0 * one), FILL)
    assert torch.equal(moved, FILL.view(1, 3, 1, 1).expand_as(moved))


def test_the_identity_changes_nothing(photo: Callable[..., Tensor]) -> None:
    image = photo(1)
    assert torch.equal(warp(image, affine(right=0 * one), FILL), image)


def test_shift_and_flip_by_hand(photo: Callable[..., Tensor]) -> None:
    images = photo(50)
    draws = Draws(generator(0), 50)
    shift = torch.stack([draws.integers(7), draws.integers(7)], dim=1)
    flip = draws.chance(0.5)
    moved = shift_and_flip(images, shift, flip, 3, FILL)
    for image, (down, right), mirrored, result in zip(images, shift.tolist(), flip, moved, strict=True):
        padded = FILL.view(3, 1, 1).repeat(1, 38, 38)
        padded[:, 3:35, 3:35] = image
        window = padded[:, down : down + 32, right : right + 32]
        assert torch.equal(result, window.flip(2) if mirrored else window)


@pytest.mark.parametrize("crop", ["none", "pad"])
def test_copying_and_resampling_are_the_same_movement(photo: Callable[..., Tensor], crop: Any) -> None:
    images, padding = photo(20), 4 if crop == "pad" else 0
    move = draw_move(Draws(generator(1), 20), crop, padding, 0.5, 0.0, SIZE)
    assert not move.resample.any()
    assert move.flip.any()
    assert torch.equal(apply_move(images, move, padding, FILL), warp(images, move.matrix, FILL))


def test_only_images_that_turn_are_resampled(photo: Callable[..., Tensor]) -> None:
    images = photo(6)
    move = draw_move(Draws(generator(1), 6), "pad", 4, 0.5, 0.0, SIZE)
    turned = move.then(rotation(torch.tensor([0.0, 30, 0, 0, 0, 0]), SIZE), torch.arange(6) == 1)
    plain, result = apply_move(images, move, 4, FILL), apply_move(images, turned, 4, FILL)
    assert ((result != plain).flatten(1).any(1) == (torch.arange(6) == 1)).all()
    assert torch.equal(result[1:2], warp(images[1:2], turned.matrix[1:2], FILL))


def test_moving_leaves_the_input_alone(photo: Callable[..., Tensor]) -> None:
    images = photo(4)
    before = images.clone()
    move = draw_move(Draws(generator(1), 4), "none", 0, 0.0, 0.0, SIZE)
    apply_move(images, move, 0, FILL).zero_()
    assert torch.equal(images, before)


def test_rotation_stays_in_range() -> None:
    move = draw_move(Draws(generator(0), 500), "none", 0, 0.0, 15.0, SIZE)
    degrees = torch.atan2(move.matrix[:, 1, 0], move.matrix[:, 0, 0]).rad2deg()
    assert degrees.min() == pytest.approx(-15, abs=0.2)
    assert degrees.max() == pytest.approx(15, abs=0.2)


def test_resized_crop_is_a_crop_and_a_resize(photo: Callable[..., Tensor]) -> None:
    images = photo(40)
    matrix = resized_crop(Draws(generator(0), 40), SIZE)
    ours = warp(images, matrix, FILL)
    for image, result, part in zip(images, ours, matrix, strict=True):
        width, height = round(float(part[0, 0]) * 32), round(float(part[1, 1]) * 32)
        left, top = int(part[0, 2]), int(part[1, 2])
        assert min(left, top, 32 - left - width, 32 - top - height) >= 0
        window = image[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(window, SIZE, mode="bicubic", align_corners=False)[0].clamp(0, 255)
        inner = slice(6, -6)  # at its edge a crop in place still sees its surroundings
        if min(width, height) >= 16:
            assert (result.float() - expected)[:, inner, inner].abs().max() <= 3


def test_resized_crop_has_the_usual_areas() -> None:
    matrix = resized_crop(Draws(generator(0), 4000), SIZE)
    area, aspect = matrix[:, 0, 0] * matrix[:, 1, 1], matrix[:, 0, 0] / matrix[:, 1, 1]
    assert 0.06 < area.min() < 0.1
    assert area.max() == 1
    assert aspect.min() > 0.65  # sides are rounded to whole pixels
    assert aspect.max() < 1.54
    assert area.mean() == pytest.approx(0.51, abs=0.03)
