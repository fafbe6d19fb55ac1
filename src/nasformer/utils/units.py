"""Quantities as people write them: counts (6M, 1.3G), times (5ms), memory (500MB); groups of options, and ranges."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from reprlib import repr as short
from typing import Any, ClassVar

from nasformer.errors import UserError

COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
LARGEST = 10**18

# Exponents of three digits at most: computing 10**999999 just to refuse it would take minutes.
_DIGITS = r"\d[\d_]{0,29}(?:\.\d{1,30})?"
_COUNT = re.compile(rf"({_DIGITS}(?:[eE][+-]?\d\d?\d?)?)\s*([kKMGB]?)", re.ASCII)
_MEASURE = re.compile(rf"({_DIGITS})\s*([a-zA-Z]*)", re.ASCII)


def parse_quantity(text: str | float) -> int | float:
    """Reads a count such as `6M` (k or K, M, G or B = 10^9); whole numbers come back as int.

    >>> parse_quantity("6M"), parse_quantity("1.3G"), parse_quantity("5_900_000"), parse_quantity(0.5)
    (6000000, 1300000000, 5900000, 0.5)
    """
    match = _COUNT.fullmatch(str(text).strip())
    if match is None:
        raise UserError(
            f"{short(text)} is not a quantity; write a number, or one with K, M, G or B, such as 6M or 1.3G"
        )
    exact = Decimal(match[1]) * COUNTS[match[2]]
    if exact > LARGEST:
        raise UserError(f"{short(text)} is too large; give at most 10^18")
    return int(exact) if exact == int(exact) else float(exact)


def parse_milliseconds(text: str | float) -> float:
    """Reads a time.

    >>> parse_milliseconds("5ms"), parse_milliseconds("0.02 s"), parse_milliseconds("800us")
    (5.0, 20.0, 0.8)
    """
    number, unit = _split(text)
    time = number * MILLISECONDS.get(unit, 0)
    if not 0 < time <= LARGEST:
        raise UserError(f"{short(text)} is not a time; write it with its unit, us, ms or s, such as 5ms")
    return time


def parse_bytes(text: str | float) -> int:
    """Reads a size: KB, MB and GB by thousands, KiB, MiB and GiB by 1024.

    >>> parse_bytes("500MB"), parse_bytes("1.5 GiB"), parse_bytes(1000)
    (500000000, 1610612736, 1000)
    >>> parse_bytes("500 Mb")
    Traceback (most recent call last):
    nasformer.errors.UserError: '500 Mb' is a number of bits; for bytes write MB
    """
    number, unit = _split(text)
    if unit.endswith("b") and not unit.islower() and unit.upper() in BYTES:
        raise UserError(f"{short(text)} is a number of bits; for bytes write {unit[:-1]}B")
    size = number * BYTES.get(unit.upper(), 0)
    if not 0 < size <= LARGEST:
        raise UserError(f"{short(text)} is not a size of memory; write one with its unit, such as 500MB or 1.5GiB")
    return round(size)


def _split(text: str | float) -> tuple[float, str]:
    match = _MEASURE.fullmatch(str(text).strip())
    return (float(match[1]), match[2]) if match else (0.0, "?")


def format_quantity(value: float, digits: int = 3) -> str:
    """Writes a count with `digits` significant digits.

    >>> format_quantity(5_717_416), format_quantity(1.3e9), format_quantity(999_999), format_quantity(12)
    ('5.72M', '1.3G', '1M', '12')
    """
    rounded = float(f"{value:.{digits}g}")  # first round, so that 999,999 becomes 1M and not 1000K
    for unit in "GMK":
        if abs(rounded) >= COUNTS[unit]:
            return f"{rounded / COUNTS[unit]:.{digits}g}{unit}"
    return f"{rounded:.{digits}g}"


def format_exactly(value: float) -> str:
    """Writes a count with K, M or G where four digits say it all, else with all digits.

    >>> format_exactly(3_000_000), format_exactly(1.25e9), format_exactly(4_263_016), format_exactly(7.5)
    ('3M', '1.25G', '4,263,016', '7.5')
    """
    for unit in "GMK":
        digits = f"{value / COUNTS[unit]:.4g}"
        if abs(value) >= COUNTS[unit] and float(digits) * COUNTS[unit] == value:
            return digits + unit
    return format_digits(value)


def format_digits(value: float) -> str:
    """Writes all digits of a count, in groups of three.

    >>> format_digits(4_263_016), format_digits(2.5)
    ('4,263,016', '2.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"


# Ranges of options: a number outside of its range is refused by the name of its option.


@dataclass(frozen=True)
class DeclaredOption:
    """An option that a strategy or another class declares itself, beside the fields of option groups."""

    name: str
    annotation: Any
    default: Any
    help: str


@dataclass
class OptionGroup:
    """Base of groups of options. A command inherits from several, whose checks run one after the other."""

    positional: ClassVar[tuple[str, ...]] = ()
    """Options of a command that are given without a name; one that is a list takes all words."""
    main: ClassVar[tuple[str, ...]] = ()
    """Those that `--help` shows first; none: it shows all."""
    example: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Ends the chain of `super().__post_init__()` calls of the groups that a command inherits from."""

    @classmethod
    def declared_options(cls) -> list[DeclaredOption]:
        """Further options, whose values are in the field `options`."""
        return []

    @classmethod
    def declared_groups(cls) -> tuple[str, dict[str, type]]:
        """Further groups of options by name, and the field that has them."""
        return "", {}


def check_range(owner: object, name: str, least: float | None = None, most: float | None = None, **limits: Any) -> None:
    """Raise UserError unless a field is a finite number in its range; `limits` are those of `check_number`."""
    check_number(name, getattr(owner, name), least, most, **limits)


def check_seed(owner: object) -> None:
    """Raise UserError unless the seed is one that torch takes."""
    check_range(owner, "seed", 0, below=2**63, whole=True)


def check_threads(owner: object) -> None:
    """Raise UserError unless the number of threads is "auto" or one that a machine may have."""
    if vars(owner)["threads"] != "auto":
        check_range(owner, "threads", 1, 4096, whole=True)


def check_number(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    optional: bool = False,
) -> None:
    """Raise UserError unless a value is a finite number in its range.

    Args:
        name: The option that the message names.
        least, most: Ends of the range that belong to it.
        above, below: Ends of the range that do not.
        whole: Whether it must be an integer.
        optional: Whether None is allowed.

    >>> check_number("ema", 1.0, 0, below=1)
    Traceback (most recent call last):
    nasformer.errors.UserError: ema is 1.0; give a number from 0 to below 1
    """
    if value is None and optional:
        return
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and not whole)
    if not (
        is_number
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        expected = _range(least, most, above, below, "a whole number" if whole else "a number")
        finite = ", not infinity" if value == math.inf else ""
        unset = ", or leave it out" if optional else ""
        raise UserError(f"{name} is {short(value)}; give {expected}{finite}{unset}")


def _range(least: float | None, most: float | None, above: float | None, below: float | None, number: str) -> str:
    """A range in words.

    >>> _range(0, None, None, None, "a number"), _range(0, 1, None, None, "a number")
    ('0 or more', 'a number from 0 to 1')
    """
    if most is not None or below is not None:
        end = f"to {most}" if most is not None else f"to below {below}"
        return f"{number} from {least if least is not None else above} {end}"
    return f"more than {above}" if above is not None else f"{least} or more" if least is not None else number
