"""UserError, the exception that users see; hints and reasons for its messages; and out-of-memory errors."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """


def suggest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """A hint for a misspelt name: the nearest name, or else `otherwise` or all names.

    >>> suggest("evolutoin", ["random", "evolution"]), suggest("x", ["random", "evolution"])
    ('did you mean evolution?', 'there are: random, evolution')
    """
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else otherwise or f"there are: {', '.join(names)}"


def one_line(error: BaseException, most: int | None = None) -> str:
    """The message of any exception on one line, no longer than `most` characters; without one, its type.

    >>> one_line(ValueError("no such\\n    file")), one_line(ValueError())
    ('no such file', 'ValueError')
    """
    return " ".join(str(error).split())[:most] or type(error).__name__


def last_line(text: str, otherwise: str = "") -> str:
    """The last line of a traceback, which says what went wrong; `otherwise` where there is none."""
    return text.strip().splitlines()[-1] if text.strip() else otherwise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, which torch reports on a CPU by the message alone."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
