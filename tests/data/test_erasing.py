from __future__ import annotations

import pytest
import torch

from nasformer.data.augment import erase
from nasformer.utils.rng import Draws, generator


def test_boxes_have_timms_areas_and_aspects() -> None:
    images = torch.full((2000, 1, 40, 40), 99.0)
    erased = (erase(images, Draws(generator(0), 2000), 1.0) != 99).squeeze(1)
    assert (images == 99).all()
    area = erased.flatten(1).sum(1)
    height, width = erased.any(2).sum(1), erased.any(1).sum(1)
    assert torch.equal(area, height * width)  # one full box each
    assert area.min() > 0
    share = area / 1600
    assert share.min() > 0.015
    assert share.max() < 0.351  # sides are rounded to whole pixels
    assert share.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.01)
    aspect = (height / width)[area > 100].log()
    assert aspect.abs().max() < 1.4
    assert aspect.mean().item() == pytest.approx(0, abs=0.05)


def test_probability() -> None:
    images = torch.full((4000, 1, 8, 8), 99.0)
    changed = (erase(images, Draws(generator(0), 4000), 0.25) != 99).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(erase(images, Draws(generator(0), 4000), 0.0), images)


def test_the_noise_is_normal_and_differs_between_images() -> None:
    images = torch.full((300, 3, 32, 32), 99.0)
    result = erase(images, Draws(generator(0), 300), 1.0)
    noise = result[result != 99]
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.std().item() == pytest.approx(1, abs=0.02)
    both = (result[0] != 99) & (result[1] != 99)
    assert both.any()
    assert (result[0] != result[1])[both].all()


def test_boxes_lie_anywhere() -> None:
    erased = erase(torch.full((2000, 1, 16, 16), 99.0), Draws(generator(0), 2000), 1.0) != 99
    share = erased.float().mean(0)[0]
    assert share.min() > 0.004  # even the corners
