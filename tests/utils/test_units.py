"""Quantities as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from nasformer.errors import UserError
from nasformer.utils.units import format_quantity, parse_bytes, parse_milliseconds, parse_quantity

QUANTITIES: list[tuple[Any, float]] = [
    ("6M", 6_000_000),
    ("6 M", 6_000_000),
    (" 250k ", 250_000),
    ("250K", 250_000),
    ("1.3G", 1_300_000_000),
    ("1.3B", 1_300_000_000),
    ("5_900_000", 5_900_000),
    ("5.868M", 5_868_000),
    ("0", 0),
    ("1e6", 1_000_000),
    ("2.5", 2.5),
    (42, 42),
    (1e9, 1_000_000_000),
    (0.5, 0.5),
]
NO_NUMBERS = ["", "M", "six", "-6M", "6,5M", "nan", "inf", True, "1.2.3", "1e999999", "9" * 100_000]


@pytest.mark.parametrize(("text", "value"), QUANTITIES)
def test_quantities_are_read_exactly(text: Any, value: float) -> None:
    assert parse_quantity(text) == value
    assert type(parse_quantity(text)) is type(value)


@pytest.mark.parametrize("text", [*NO_NUMBERS, "6T", "6m", "6MB"])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match="is not a quantity; write a number") as caught:
        parse_quantity(text)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("text", ["2e18", "1e99", 1e300, "9999999999G"])
def test_quantities_beyond_all_models_are_refused(text: Any) -> None:
    with pytest.raises(UserError, match="is too large; give at most"):
        parse_quantity(text)


@given(st.integers(0, 999), st.sampled_from(["", "K", "M", "G"]))
def test_short_quantities_survive_the_round_trip(number: int, unit: str) -> None:
    value = parse_quantity(f"{number}{unit}")
    assert parse_quantity(format_quantity(value)) == value


@given(st.integers(0, 10**12))
def test_formatting_keeps_three_digits(value: int) -> None:
    assert parse_quantity(format_quantity(value)) == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("1.5 GiB", 1_610_612_736), ("64kib", 65_536), ("2gb", 2_000_000_000), (1000, 1000)],
)
def test_sizes_of_memory(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", [*NO_NUMBERS, "0MB", "5TB", "1e9", "9999999999GB", -5])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match="is not a size of memory; write one with its unit"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "meant"), [("500 Mb", "MB"), ("1Gb", "GB"), ("5Kb", "KB"), ("5Mib", "MiB")])
def test_bits_are_no_bytes(text: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"'{text}' is a number of bits; for bytes write {meant}"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [*NO_NUMBERS, "0ms", "5", "5m", "9" * 25 + "s"])
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(UserError, match="is not a time; write it with its unit"):
        parse_milliseconds(text)
