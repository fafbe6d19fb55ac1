"""Journal of a search: an append-only JSONL file, a header with the settings, then one line per evaluated candidate.

A line is on the disk before the search goes on, so a search can be killed at any moment. Nothing in it
depends on the clock or the machine: a resumed run ends with the same bytes as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.search.problem import Candidate
from nasformer.utils.schema import from_json, is_version

VERSION = 1
_START = b'{"journal":'


class Journal:
    """A journal opened for writing; a new one where there is none.

    A last line that was torn by a crash is cut off. Settings other than those in the header are refused.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], *, fsync: bool = True) -> None:
        self.path, self.fsync = Path(path), fsync
        header = {"journal": VERSION, "settings": json.loads(_dumps(settings))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = size = 0
        for line in _read(self.path) if self.path.exists() else ():
            if self._lines == 0:
                _check_settings(self.path, parse_line(line, self.path, 1), header["settings"])
            self._lines, size = self._lines + 1, size + len(line)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._file.truncate(size)
        if not self._lines:
            self.append(header)

    @property
    def lines(self) -> Iterator[bytes]:
        """The lines that were in the file when it was opened, without the header, read one by one."""
        with open(self.path, "rb") as file:
            yield from islice(file, 1, self._lines)

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """These lines as dicts."""
        return (parse_line(line, self.path, number) for number, line in enumerate(self.lines, 2))

    def append(self, *records: Mapping[str, Any]) -> None:
        """Puts lines on the disk, together. If that fails the part already written is taken back."""
        # A lone surrogate, as in the name of a file, becomes its JSON escape.
        lines = "".join(_dumps(record) + "\n" for record in records).encode("utf-8", "backslashreplace")
        end = os.fstat(self._file.fileno()).st_size
        try:
            while lines:  # one write, unless the disk takes just a part of it
                lines = lines[self._file.write(lines) :]
            if self.fsync:
                os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_journal(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and the records of a journal; the file is left as it is."""
    settings, records = stream_journal(path)
    return settings, list(records)


def stream_journal(path: str | Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The settings of a journal, and an iterator over its records.

    A long journal is much smaller as a file than as dicts.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected the journal of a search")
    lines = (parse_line(line, path, number) for number, line in enumerate(_read(path), 1))
    header = next(lines, None)
    if header is None:
        raise UserError(f"{path} is empty; run the search again to fill it")
    return _settings(path, header), lines


@dataclass(frozen=True)
class JournalSettings:
    """The settings of a search, as far as its candidates need them to be read."""

    objectives: list[str] = field(default_factory=list)
    order: str = "pareto"
    budget: dict[str, float] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    space: str | None = None

    @property
    def raised(self) -> list[str]:
        return [name for name in self.objectives if not name.startswith("-")]

    @classmethod
    def load(cls, path: Path) -> JournalSettings:
        return from_json(cls, stream_journal(path)[0], f"{path}, line 1")


def read_candidates(path: Path) -> tuple[JournalSettings, list[Candidate]]:
    """The settings and the candidates of a search; none where there is no journal."""
    if not path.exists():
        return JournalSettings(), []
    records = enumerate(stream_journal(path)[1], 2)
    candidates = [from_json(Candidate, record, f"{path}, line {number}") for number, record in records]
    return JournalSettings.load(path), candidates


def _read(path: Path) -> Iterator[bytes]:
    """The lines of the file without a damaged last one; of the others, only the two ends are looked at."""
    with open(path, "rb") as file:
        start = file.read(len(_START))
        if start != _START[: len(start)]:
            raise UserError(f"{path} is not a search journal; use another --out folder or move that file away")
        file.seek(0)
        last = b""
        for number, line in enumerate(file):
            if number:
                if not (last.startswith(b"{") and last.endswith(b"}\n")):
                    raise _damaged(path, number)
                yield last
            last = line
        if _parse(last) is not None:
            yield last


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """A line of a journal as a dict; UserError for one that is damaged."""
    record = _parse(line)
    if record is None:
        raise _damaged(path, number)
    return record


def _damaged(path: Path, number: int) -> UserError:
    return UserError(f"{path}, line {number} is damaged; restore the file or use another --out folder")


def _parse(line: bytes) -> dict[str, Any] | None:
    """The line as a dict, or None if it is damaged or cut short by a crash."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _settings(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    if not is_version(header["journal"], VERSION) or not isinstance(header.get("settings"), dict):
        raise UserError(f"{path} is a journal of another version of nasformer; use another --out folder")
    return dict(header["settings"])


def _check_settings(path: Path, header: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    before, now = dict(flatten(_settings(path, header))), dict(flatten(settings))
    pairs = {key: (before.get(key, "not set"), now.get(key, "not set")) for key in {**before, **now}}
    changes = ", ".join(f"{key} was {old}, now {new}" for key, (old, new) in pairs.items() if old != new)
    if changes:
        raise UserError(f"{path} belongs to a search with other settings ({changes}); use another --out folder")


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings with nested ones named `outer.inner`."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON cannot hold as it is: dataclasses, mappings such as Arch, and paths."""
    if is_dataclass(value) and not isinstance(value, type):
        # Without what is None: a field that is new and not used leaves older journals valid.
        contents = {item.name: getattr(value, item.name) for item in fields(value)}
        return {name: content for name, content in contents.items() if content is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a journal cannot hold {value!r} ({type(value).__name__})")
