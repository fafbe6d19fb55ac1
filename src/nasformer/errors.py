"""The one exception that users see."""


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, what was expected and what to do.

    The command line prints the message on one line, without a traceback, and exits with code 2.
    """
