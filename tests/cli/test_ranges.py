"""Numbers that no option can mean are refused by the option's name, before anything is imported or done."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import pytest

from nasformer.cli.main import COMMANDS, find_command, make_parser
from nasformer.errors import UserError


def numbers(command: str) -> dict[str, Any]:
    """The options of a command that are numbers, with their types."""
    options = make_parser(find_command(command)).options.values()
    return {option.name: members(option.annotation) for option in options if members(option.annotation) & {int, float}}


def members(annotation: Any) -> set[Any]:
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return set(get_args(annotation)) if is_union else {annotation}


@pytest.mark.parametrize("command", COMMANDS)
def test_numbers_beyond_all_sense_are_refused(command: str) -> None:
    parser = make_parser(find_command(command))
    for name, kinds in numbers(command).items():
        if str in kinds:  # a quantity such as 6M, which is read later
            continue
        later = name == "index" or name.startswith("search.")  # by the number of images, and by the strategy
        for text in (".nan", ".inf", "-.inf", "1e999", "-1e-9", "x", "[]", "1" * 5000, *([] if later else ["-1"])):
            with pytest.raises(UserError, match=name.rpartition(".")[2].replace("_", "[-_]")) as refusal:
                parser.parse([parser.options[name].flag, text])
            assert "\n" not in str(refusal.value)
            assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("command", COMMANDS)
def test_seeds_and_sizes_have_an_upper_end(command: str) -> None:
    parser = make_parser(find_command(command))
    for name in {"seed", "img_size", "num_classes", "in_chans", "probe_size", "resamples"} & numbers(command).keys():
        with pytest.raises(UserError, match=name):
            parser.parse([parser.options[name].flag, str(10**30)])
