"""Paths on object stores (s3://, gs://, whatever fsspec knows) wherever a command takes a path.

What a command reads is copied into remote/ below the current folder; data that is there already, with the same size, is
not copied again. The folder that it writes is copied from the store if it exists, so that a run goes on on another
machine, and back: what has changed every half a minute, and all of it in the end. Everything between works on ordinary
files, also while the store cannot be reached. Nothing keeps two machines from writing the same remote folder at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from nasformer.errors import UserError
from nasformer.utils.progress import repeating, say
from nasformer.utils.units import OptionGroup

FOLDER = Path("remote")
READ = ("data", "run", "runs", "supernet", "model", "table", "images", "latency_profile")
WRITTEN = ("out", "to")
"""Options that name something to read, and a folder to write."""
SECONDS = 30.0
Options = TypeVar("Options", bound=OptionGroup)


def is_remote(value: object) -> bool:
    """Whether a value is the URL of an object store.

    >>> is_remote("s3://bucket/run"), is_remote("runs/digits"), is_remote("timm:resnet18")
    (True, False, False)
    """
    return isinstance(value, str) and bool(re.match(r"[a-z][a-z0-9+.-]*://", value))


def local_path(url: str) -> Path:
    """The local copy of a URL: a relative path, the same on every machine, since run folders compare it.

    >>> print(local_path("s3://bucket/set/train.npz"))
    remote/s3/bucket/set/train.npz
    """
    scheme, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part not in ("", ".", "..")]
    return Path(FOLDER, scheme, *parts)


@dataclass
class RemoteFolder:
    """A file or folder on an object store, and its copy here."""

    url: str
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files that are the same there as here, with the time and size that they had."""

    def __post_init__(self) -> None:
        import fsspec

        self.local = local_path(self.url)
        try:
            self.system, self.path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"{self.url} cannot be opened ({error}); install what fsspec needs for it, or copy it"
            ) from None

    def fetch(self, needed: bool = True, again: bool = True) -> Path:
        """Copies it here.

        Args:
            needed: Whether it must exist.
            again: Whether to copy files that are here with the same size already.
        """
        try:
            exists = self._fetch(again)
        except Exception as error:  # every store has errors of its own, and few of them are an OSError
            raise UserError(f"{self.url} cannot be read ({error}); check its name and your rights") from None
        if needed and not exists:
            raise UserError(f"{self.url} does not exist")
        return self.local

    def _fetch(self, again: bool) -> bool:
        """Copies it here; returns whether it exists."""
        self.system.invalidate_cache()
        if not self.system.exists(self.path):
            return False
        if self.system.isfile(self.path):
            self._fetch_file(self.path, self.local, again)
        for path in self.system.find(self.path) if self.system.isdir(self.path) else ():
            name = path.removeprefix(self.system._strip_protocol(self.path)).lstrip("/")
            self._fetch_file(path, self.local / name, again)
            self.sent[name] = self._state(self.local / name)
        return True

    def _fetch_file(self, path: str, local: Path, again: bool) -> None:
        if again or not local.exists() or local.stat().st_size != self.system.size(path):
            local.parent.mkdir(parents=True, exist_ok=True)
            self.system.get_file(path, str(local))

    def push(self) -> None:
        """Copies back what has changed, and removes what is gone; hidden files such as locks stay here."""
        paths = [path for path in self.local.rglob("*") if path.is_file()] if self.local.is_dir() else []
        names = {str(path.relative_to(self.local)): path for path in paths}
        hidden = {name for name in names if any(part.startswith(".") for part in Path(name).parts)}
        shown = {name: path for name, path in names.items() if name not in hidden}
        for name, path in shown.items():
            state = self._state(path)
            if self.sent.get(name) != state:
                self.system.put_file(str(path), f"{self.path}/{name}")
                self.sent[name] = state
        for name in [name for name in self.sent if name not in shown]:
            self.system.rm_file(f"{self.path}/{name}")
            del self.sent[name]

    @staticmethod
    def _state(path: Path) -> tuple[int, int]:
        return path.stat().st_mtime_ns, path.stat().st_size


@contextmanager
def remote_paths(options: Options) -> Iterator[Options]:
    """Replaces the URLs in the options of a command by local copies, and copies back what the command writes."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    read = {name: values[name] for name in READ if has_remote(values.get(name))}
    written = {name: values[name] for name in WRITTEN if is_remote(values.get(name))}
    if not read and not written:
        yield options
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("paths such as s3://... are for one process; under torchrun copy them to a disk first")
    changes: dict[str, Any] = {name: str(local_path(url)) for name, url in written.items()}
    for name, value in read.items():
        changes[name] = [fetch(path, name) for path in value] if isinstance(value, list) else fetch(value, name)
    with mirrored([RemoteFolder(url) for url in written.values()]):
        yield replace(options, **changes)


def has_remote(value: object) -> bool:
    return any(map(is_remote, value)) if isinstance(value, list) else is_remote(value)


def fetch(path: str, option: str) -> str:
    """The local path of an option; a remote one is copied first."""
    return str(RemoteFolder(path).fetch(again=option != "data")) if is_remote(path) else path


@contextmanager
def mirrored(folders: list[RemoteFolder]) -> Iterator[None]:
    """Copies folders here, and changes in them back, every half a minute and at the end."""
    for folder in folders:
        folder.fetch(needed=False)
    try:
        with repeating(lambda: push(folders), SECONDS):
            yield
    finally:
        missing = push(folders)
    if missing:
        there, here = ", ".join(folder.url for folder in missing), ", ".join(str(folder.local) for folder in missing)
        raise UserError(f"the command is done, but {there} is not complete; copy {here} there")


def push(folders: list[RemoteFolder]) -> list[RemoteFolder]:
    """Copies back what has changed; returns the folders that could not be copied completely."""
    missing = []
    for folder in folders:
        try:
            folder.push()
        except Exception as error:  # a file may be replaced meanwhile, a store be away: the next time
            say(f"{folder.url}: not all could be copied ({error})")
            missing.append(folder)
    return missing
