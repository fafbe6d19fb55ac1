"""Reading and writing of files: atomic writes, JSON, weights without pickles, and lock files.

A write replaces a file in one step: whatever kills the process, the old content or the new one remains.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nasformer.errors import UserError
from nasformer.utils.progress import say

if TYPE_CHECKING:
    from torch import Tensor

RESTORE = "restore it or start in another folder"
JSON_LIMIT = 512 * 2**20  # bytes; no file of ours comes near it, and parsing needs several times as much memory


# Atomic writes


def draft_path(path: Path) -> Path:
    """The temporary path under which this process writes a file or folder, before it takes its name."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the old one in one step at the end; a full disk leaves that as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_path(path)
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    with open_atomic(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # names of files need not be Unicode


def clear_drafts(folder: Path) -> None:
    """Remove the drafts that killed processes left in a folder and below it.

    Only processes of this machine can be asked whether they live: on a disk that several share, lock the folder first.
    """
    for draft in [*folder.rglob(".*.tmp")]:
        match = re.fullmatch(r"\..+\.([0-9]+)\.tmp", draft.name)
        if match and not _is_running(int(match[1])):
            shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True


# JSON


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def append_json(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line to a JSONL file of incidents; unlike a journal it may lose its last lines in a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(json.dumps(record) + "\n")


def complete_lines(path: Path) -> list[bytes]:
    """The lines of a JSONL file, without a last one that is being written or was cut off; none without a file."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


def parse_json(text: str | bytes, where: object, advice: str = RESTORE) -> Any:
    """The value of a JSON text, or an error that names where it stands."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        reason = str(error)
    raise UserError(f"{where} is damaged ({reason}); {advice}")


def read_limited(path: Path) -> bytes:
    """The content of a JSON file, which may be a pipe; an error where it is too large or, as /dev/zero, has no end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > JSON_LIMIT else file.read(-1 if path.is_file() else JSON_LIMIT + 1)
    size = max(size, len(content))
    if size > JSON_LIMIT:
        limit = f"more than the {JSON_LIMIT / 2**20:.0f} MB that are read"
        raise UserError(f"{path} has {size / 2**20:.0f} MB, {limit}; is it the right file?")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or an error that names the file."""
    try:
        content = parse_json(read_limited(path), path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is missing; is {path.parent} a folder that nasformer wrote?") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, expected a JSON file; {RESTORE}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (holds no JSON object); {RESTORE}")
    return content


def read_annotations(path: Path) -> dict[str, Any]:
    """The object in a user's JSON file of annotations, of any size."""
    try:
        content = parse_json(path.read_bytes(), path, "restore it")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); restore it") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; expected lists of annotations by name")
    return content


def lacking(entries: Any, keys: Sequence[str]) -> str | None:
    """The first key that an object of a list lacks; None where none does, or where it is no list of objects.

    >>> lacking([{"id": 1, "name": "cat"}, {"id": 2}], ("id", "name"))
    'name'
    """
    objects = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((key for entry in objects for key in keys if key not in entry), None)


# Weights

NESTED = ("model", "state_dict_ema", "model_ema", "state_dict")
"""Where training scripts keep the weights in a checkpoint; timm's prefers the moving average too."""
WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Serialised in memory first, so that a full disk shows as the OSError it is."""
    from safetensors.torch import save

    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a weight file (.safetensors, .npz, or a PyTorch checkpoint), without running code from it."""
    import torch

    try:
        content = _read_weights(path)
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}; give a .safetensors, .pth, .pt, .bin or .npz file") from None
    except Exception as error:  # each format has errors of its own
        is_pickle = "weights_only" in str(error)  # torch's advice is to run whatever the file holds
        reason = "no plain tensors" if is_pickle else (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as weights ({reason}); is it complete?") from error
    if isinstance(content, dict):
        content = next((content[key] for key in NESTED if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path} holds a {kind}, expected weights by name, as state_dict() gives them")
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    for prefix in WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _read_weights(path: Path) -> Any:
    import argparse
    import pathlib

    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load, load_file

        is_unicode = not any("\ud800" <= letter <= "\udfff" for letter in str(path))
        return load_file(path) if is_unicode else load(path.read_bytes())  # it takes no other names
    if path.suffix == ".npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    # AutoFormer's published files carry their command line beside the weights: plain values, safe to read.
    with torch.serialization.safe_globals([argparse.Namespace, pathlib.PosixPath]):
        return torch.load(path, map_location="cpu", weights_only=True)


# Locks


@contextlib.contextmanager
def locked(path: Path, needed: bool = True) -> Iterator[None]:
    """Holds a lock file, so that no other process works in its folder. The lock of a killed process is released.

    The folder may be shared: the lock file may be another user's, and a file system without locks is only warned of.
    """
    if not needed:
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_lock(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path.parent} is in use by another process; wait for it or use another --out") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
                raise
            say(f"warning: {path.parent} cannot be locked ({error.strerror}); let no other process write there")
        yield


def _open_lock(path: Path) -> IO[bytes]:
    """The lock file for reading and writing, or for reading alone where it belongs to another user."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except PermissionError:
        if not path.exists():
            raise
        return open(path, "rb")
