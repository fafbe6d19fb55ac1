"""Options of data: what is refused before any work, and how a hold-out may be written."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from nasformer.data.options import AugmentOptions, DataOptions, HoldoutAmount
from nasformer.data.sources import load_data
from nasformer.errors import UserError

NO_AMOUNT = (-0.1, math.nan, math.inf, 1.0, 1.5, "some", "", "-5 images", "1.5 images", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": -1}, "workers is -1; give a whole number from 0 to 1024"),
        ({"workers": 1.5}, "workers is 1.5; give a whole number from 0 to 1024"),
        ({"max_bad": 1.5}, "max_bad is 1.5; give a number from 0 to 1"),
        ({"max_bad": math.nan}, "max_bad is nan; give a number from 0 to 1"),
        ({"calibration_images": 0}, "calibration_images is 0; give 1 or more"),
        ({"train_images": 0}, "train_images is 0; give 1 or more, or leave it out"),
        ({"seed": -1}, "seed is -1; give a whole number from 0 to below 9223372036854775808"),
        ({"seed": 2**63}, "seed is 9223372036854775808; give a whole number"),
        ({"seed": 0.5}, "seed is 0.5; give a whole number"),
        *(({"holdout": value}, "holdout is .*; give a share of the images below 1 such as 0.1") for value in NO_AMOUNT),
    ],
)
def test_data_options_without_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataOptions(**changes)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (0, 0, "share"),
        (0.1, 0.1, "share"),
        ("0.1", 0.1, "share"),
        (1, 1, "per class"),  # an integer of Python, which the command line has not
        (25.0, 25, "per class"),
        ("25", 25, "per class"),
        ("500 images", 500, "in all"),
        ("500images", 500, "in all"),
        ("1 image", 1, "in all"),
    ],
)
def test_a_hold_out_is_a_share_or_images_per_class_or_in_all(text: Any, value: float, unit: str) -> None:
    assert HoldoutAmount.parse(text) == HoldoutAmount(value, unit)  # type: ignore[arg-type]


def test_a_hold_out_is_kept_in_one_way_of_writing() -> None:
    """A run folder compares it with what it was before."""
    assert DataOptions(holdout="500images").holdout == DataOptions(holdout=" 500 images").holdout == "500 images"
    assert DataOptions(holdout="0.25").holdout == 0.25
    assert DataOptions(holdout="0 images").holdout == 0
    assert DataOptions(holdout="25").holdout == DataOptions(holdout=25.0).holdout == 25


def test_no_data_is_not_the_current_folder() -> None:
    assert DataOptions(data="").data == ""  # a search by proxies needs none
    for nothing in ("", " "):
        with pytest.raises(UserError, match="no data is named; give --data a folder of images"):
            load_data(nothing)


NUMBERS = [item.name for item in fields(AugmentOptions) if item.name not in ("crop", "randaugment")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({name: value}, f"{name} is {value}; give ") for name in NUMBERS for value in (math.nan, math.inf, -1)),
        ({"hflip": 1.5}, "hflip is 1.5; give a number from 0 to 1"),
        ({"smoothing": 2}, "smoothing is 2"),
        ({"mixup": -1}, "mixup is -1; give 0 or more"),
        ({"crop": "random"}, "crop is 'random'; give none, pad or resized"),
        ({"randaugment": "rand-q3"}, "cannot read RandAugment 'rand-q3'"),
    ],
)
def test_augmentations_without_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AugmentOptions(**settings)
