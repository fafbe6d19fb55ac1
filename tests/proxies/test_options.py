from __future__ import annotations

from typing import Any

import pytest

from nasformer.errors import UserError
from nasformer.proxies.registry import ProbeOptions
from nasformer.utils.units import OptionGroup


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats is 0; give 1 or more"),
        ({"probe_size": 0}, "probe_size is 0; give a number from 1 to 4096"),
        ({"probe_size": 4097}, "probe_size is 4097; give a number from 1 to 4096"),
        ({"probe_img_size": 0}, "probe_img_size is 0; give a number from 1 to 16384, or leave it out"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ProbeOptions(**options)


def test_other_groups_of_options_are_checked_too() -> None:
    class Other(OptionGroup):
        def __post_init__(self) -> None:
            raise UserError("checked")

    class Command(ProbeOptions, Other):
        pass

    with pytest.raises(UserError, match="checked"):
        Command()


def test_options_are_arguments_of_a_scorer() -> None:
    expected = {"repeats": 2, "batch_size": 64, "img_size": 16, "threads": None}
    assert ProbeOptions(repeats=2, probe_img_size=16).probing() == expected
    assert ProbeOptions(threads=2).probing()["threads"] == 2
