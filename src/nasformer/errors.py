"""The one exception that users see, and how to tell that memory ran out."""


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. On a CPU torch says so in words alone, in others where a size is beyond all bounds."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
