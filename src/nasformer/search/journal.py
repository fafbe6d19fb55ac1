"""An append-only JSONL file: a header with the search's settings, then one line per judged candidate.

A line is on the disk before the search goes on, so a search can be killed at any moment. Nothing in it
depends on the clock or the machine: a resumed run ends with the same bytes as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nasformer.errors import UserError

VERSION = 1
_START = b'{"journal":'


class Journal:
    """Opens (or begins) a journal; `records` holds the lines found in it, oldest first.

    A last line that was torn by a crash is cut off. Settings other than those in the header are refused.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], *, fsync: bool = True) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self.records: list[dict[str, Any]] = []
        header = {"journal": VERSION, "settings": json.loads(_dumps(settings))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines, size = _read(self.path) if self.path.exists() else ([], 0)
        if lines:
            _check_settings(self.path, lines[0], header["settings"])
            self.records = lines[1:]
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._file.truncate(size)
        if not lines:
            self.append(header)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Puts lines on the disk, together. If that fails the part already written is taken back."""
        lines = "".join(_dumps(record) + "\n" for record in records).encode()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and the records of a journal, e.g. for a report; the file is left as it is."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected the journal of a search")
    lines, _ = _read(path)
    if not lines:
        raise UserError(f"{path} is empty; run the search again to fill it")
    return _settings(path, lines[0]), lines[1:]


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The sound lines of the file, and the number of bytes they take."""
    data = path.read_bytes()
    if data[: len(_START)] != _START[: len(data)]:
        raise UserError(f"{path} is not a search journal; use another --out folder or move that file away")
    *whole, torn = data.split(b"\n")  # `torn` is empty, or a line cut short by a crash
    lines = [_parse(line) for line in whole]
    if lines and lines[-1] is None and not torn:
        lines.pop()
    if None in lines:
        damaged = lines.index(None) + 1
        raise UserError(f"{path}, line {damaged} is damaged; restore the file or use another --out folder")
    sound = [line for line in lines if line is not None]
    return sound, sum(len(line) + 1 for line in whole[: len(sound)])


def _parse(raw: bytes) -> dict[str, Any] | None:
    """The line as a dict, or None if it is damaged."""
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _settings(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    if header["journal"] != VERSION or "settings" not in header:
        raise UserError(f"{path} is a journal of another version of nasformer; use another --out folder")
    return dict(header["settings"])


def _check_settings(path: Path, header: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    before, now = dict(_flat(_settings(path, header))), dict(_flat(settings))
    pairs = {key: (before.get(key, "not set"), now.get(key, "not set")) for key in {**before, **now}}
    said = ", ".join(f"{key} was {old}, now {new}" for key, (old, new) in pairs.items() if old != new)
    if said:
        raise UserError(f"{path} belongs to a search with other settings ({said}); use another --out folder")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings with nested ones named `outer.inner`."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON does not know: dataclasses, mappings such as Arch, and paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Without what is None: a field that is new and not used leaves older journals valid.
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: content for name, content in named.items() if content is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a journal cannot hold {value!r} ({type(value).__name__})")
