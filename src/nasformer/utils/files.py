"""Files that are whole or not there: whatever kills the process, the old content or the new one remains."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nasformer.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step; a full disk leaves the old one as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; is {path.parent} a folder that nasformer wrote?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start in another folder") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (holds no JSON object); restore it or start in another folder")
    return content


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file. Serialised in memory first, so that a full disk shows as the OSError it is."""
    from safetensors.torch import save

    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a PyTorch checkpoint, without running code from it."""
    import argparse
    import pathlib

    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # The published files carry their command line beside the weights: plain values, safe to read.
        with torch.serialization.safe_globals([argparse.Namespace, pathlib.PosixPath]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}; give a .safetensors or .pth file") from None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as weights ({reason}); is it complete?") from error
    state = content.get("model", content) if isinstance(content, dict) else content
    if not isinstance(state, dict):
        raise UserError(f"{path} holds a {type(state).__name__}, expected weights by name, as state_dict() gives them")
    return {name: weight for name, weight in state.items() if isinstance(weight, torch.Tensor)}


@contextlib.contextmanager
def locked(path: Path, needed: bool = True) -> Iterator[None]:
    """Holds a lock file as long as the process lives; even a kill lets go of it."""
    if not needed:
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path.parent} is in use by another process; wait for it or use another --out") from None
        yield
