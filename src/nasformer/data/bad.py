"""Images that cannot be read: left out, counted and listed, until they are too many."""

from __future__ import annotations

from pathlib import Path

from nasformer.errors import UserError
from nasformer.progress import say

MAX_BAD = 0.01
"""More than one in a hundred is seldom bad luck: the disk, the download or the format is wrong."""
SHOWN = 3


class BadImages:
    """The unreadable images of a set.

    Args:
        limit: the share of all images from which on they are an error.
        log: a file to list them in, one a line with the reason.
    """

    def __init__(self, limit: float = MAX_BAD, log: Path | None = None, quiet: bool = False) -> None:
        if not 0 <= limit <= 1:
            raise UserError(f"max_bad is {limit}; give a share from 0 to 1, such as 0.01")
        self.limit, self.log, self.quiet = limit, log, quiet
        self.found: dict[str, str] = {}

    def add(self, path: str, reason: str) -> bool:
        """Note a file; False where it was noted before."""
        if path in self.found:
            return False
        self.found[path] = reason
        if self.log:
            self._write(f"{path}\t{reason}\n")
        return True

    def check(self, total: int, what: str) -> None:
        """Raises if they are too many of so many images."""
        if self.found and len(self.found) > self.limit * total:
            told = f"{what}: {self._told(total)}; more than {self.limit:.4g} of them is too many"
            raise UserError(f"{told}: repair or remove them, or allow more with --max-bad{self._listed()}")

    def tell(self, total: int, what: str) -> None:
        if self.found and not self.quiet:
            say(f"{what}: {self._told(total)}; left out{self._listed()}")

    def _told(self, total: int) -> str:
        first = ", ".join(f"{path} ({reason})" for path, reason in list(self.found.items())[:SHOWN])
        more = " ..." if len(self.found) > SHOWN else ""
        return f"{len(self.found)} of {total} images cannot be read: {first}{more}"

    def _listed(self) -> str:
        return f" (all of them: {self.log})" if self.log else ""

    def _write(self, line: str) -> None:
        """Append to the list what an earlier start of the same run has not."""
        assert self.log
        before = self.log.read_text() if self.log.exists() else ""
        if line not in before:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as file:
                file.write(line)
