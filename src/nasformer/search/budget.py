"""What a model may cost: named limits, each a lowest and a highest value, as people write them ("6M")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal

from nasformer.errors import UserError
from nasformer.space.feasible import Window, in_short

# ----------------------------------------------------------------------------------------------------------------------
# Times and sizes as people write them: 5ms, 500MB.
# ----------------------------------------------------------------------------------------------------------------------

_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_MEASURE = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)


def parse_milliseconds(text: str | float) -> float:
    """Reads a time.

    >>> parse_milliseconds("5ms"), parse_milliseconds("0.02 s"), parse_milliseconds("800us")
    (5.0, 20.0, 0.8)
    """
    number, unit = _split(text)
    if unit not in _TIMES or number <= 0:
        raise UserError(f"{text!r} is not a time; write it with its unit, us, ms or s, such as 5ms")
    return number * _TIMES[unit]


def parse_bytes(text: str | float) -> int:
    """Reads a size: KB, MB and GB by thousands, KiB, MiB and GiB by 1024.

    >>> parse_bytes("500MB"), parse_bytes("1.5 GiB"), parse_bytes(1000)
    (500000000, 1610612736, 1000)
    """
    number, unit = _split(text)
    if unit.upper() not in _SIZES or number <= 0:
        raise UserError(f"{text!r} is not a size of memory; write one with its unit, such as 500MB or 1.5GiB")
    return round(number * _SIZES[unit.upper()])


def _split(text: str | float) -> tuple[float, str]:
    match = _MEASURE.fullmatch(str(text).strip())
    return (float(match[1]), match[2]) if match else (0.0, "?")


_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_QUANTITY = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([kKMGB]?)", re.ASCII)


def parse_quantity(text: str | float) -> int | float:
    """Reads a count such as `6M` (k or K, M, G or B = 10^9); whole numbers come back as int.

    >>> parse_quantity("6M"), parse_quantity("1.3G"), parse_quantity("5_900_000"), parse_quantity(0.5)
    (6000000, 1300000000, 5900000, 0.5)
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise UserError(f"{text!r} is not a quantity; write a number, or one with K, M, G or B, such as 6M or 1.3G")
    exact = Decimal(match[1]) * _UNITS[match[2]]
    return int(exact) if exact == int(exact) else float(exact)


def format_quantity(value: float, digits: int = 3) -> str:
    """Writes a count with so many significant digits.

    >>> format_quantity(5_717_416), format_quantity(1.3e9), format_quantity(999_999), format_quantity(12)
    ('5.72M', '1.3G', '1M', '12')
    """
    rounded = float(f"{value:.{digits}g}")  # first round, so that 999,999 becomes 1M and not 1000K
    for unit in "GMK":
        if abs(rounded) >= _UNITS[unit]:
            return f"{rounded / _UNITS[unit]:.{digits}g}{unit}"
    return f"{rounded:.{digits}g}"


@dataclass(frozen=True)
class Budget:
    """Limits on the costs of an architecture; both ends belong to the budget, None leaves an end open.

    A new cost needs just its fields here, `min_<name>` and `max_<name>` or one of the two.

    >>> budget = Budget(min_params=5_000_000, max_params=6_000_000, max_macs=1_300_000_000)
    >>> print(budget)
    5M <= params <= 6M, macs <= 1.3G
    >>> budget.fits({"params": 5_700_000, "macs": 1_200_000_000})
    True
    """

    min_params: float | None = None
    max_params: float | None = None
    min_macs: float | None = None
    max_macs: float | None = None
    max_latency_ms: float | None = None
    max_memory_bytes: float | None = None

    def limits(self) -> dict[str, tuple[float | None, float | None]]:
        """The costs that are limited: name -> (lowest, highest)."""
        names = dict.fromkeys(field.name.partition("_")[2] for field in fields(self))
        ends = {n: (getattr(self, f"min_{n}", None), getattr(self, f"max_{n}", None)) for n in names}
        return {name: end for name, end in ends.items() if end != (None, None)}

    def windows(self) -> list[Window]:
        return [Window(name, low, high) for name, (low, high) in self.limits().items()]

    def fits(self, costs: Mapping[str, float]) -> bool:
        return all(window.excess(costs) == 0 for window in self.windows())

    def __str__(self) -> str:
        parts = []
        for name, (low, high) in self.limits().items():
            left = "" if low is None else f"{in_short(low)} <= "
            right = "" if high is None else f" <= {in_short(high)}"
            parts.append(f"{left}{name}{right}")
        return ", ".join(parts) or "no limit"
