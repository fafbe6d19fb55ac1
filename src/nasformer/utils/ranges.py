"""Ranges of options: a number outside of its range is refused by the name of its option."""

from __future__ import annotations

import math
from typing import Any

from nasformer.errors import UserError


def check_range(owner: object, name: str, least: float | None = None, most: float | None = None, **limits: Any) -> None:
    """Raise UserError unless a field is a finite number in its range; `limits` are those of `check_number`."""
    check_number(name, getattr(owner, name), least, most, **limits)


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
    known = isinstance(value, int | float) and math.isfinite(value) and (not whole or isinstance(value, int))
    if not (
        known
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        expected = _range(least, most, above, below, "a whole number" if whole else "a number")
        finite = ", not infinity" if value == math.inf else ""
        unset = ", or leave it out" if optional else ""
        raise UserError(f"{name} is {value!r}; give {expected}{finite}{unset}")


def _range(least: float | None, most: float | None, above: float | None, below: float | None, number: str) -> str:
    """A range in words.

    >>> _range(0, None, None, None, "a number"), _range(0, 1, None, None, "a number")
    ('0 or more', 'a number from 0 to 1')
    """
    if most is not None or below is not None:
        end = f"to {most}" if most is not None else f"to below {below}"
        return f"{number} from {least if least is not None else above} {end}"
    return f"more than {above}" if above is not None else f"{least} or more" if least is not None else number
