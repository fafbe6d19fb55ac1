"""Times and sizes as people write them: 5ms, 500MB."""

from __future__ import annotations

import re

from nasformer.errors import UserError

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
