from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kill
from nasformer.errors import UserError
from nasformer.utils import files


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for content in (b"old", b"", b"new" * 1000):
        files.write_bytes(path, content)
        assert path.read_bytes() == content
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("place", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: Any, place: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(files.os, place, fail)
        with pytest.raises(type(error)):
            files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_comes_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, "ä"], "b": {"c": True}}
    files.write_json(tmp_path / "file", content)
    assert files.read_json(tmp_path / "file") == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; is .* a folder that nasformer wrote"),
        (b'{"a": ', "is damaged"),
        (b"", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[" * 100_000, r"is damaged \(nested too deeply\)"),
        (b'{"a": ' * 100_000, r"is damaged \(nested too deeply\)"),
        (b'{"a": ' + b"1" * 5000 + b"}", r"is damaged \(Exceeds the limit"),
        (b"[1, 2]", r"is damaged \(holds no JSON object\)"),
    ],
)
def test_json_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"file\.json {message}") as error:
        files.read_json(path)
    assert "\n" not in str(error.value)


def test_json_in_a_folder_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is a folder, expected a JSON file"):
        files.read_json(tmp_path)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(UserError, match=r"file/inner\.json is missing"):
        files.read_json(tmp_path / "file" / "inner.json")
    monkeypatch.setattr(files, "JSON_LIMIT", 2**20)
    (tmp_path / "file").write_bytes(b" " * (3 * 2**20))
    with pytest.raises(UserError, match="has 3 MB, more than the 1 MB that are read; is it the right file"):
        files.read_json(tmp_path / "file")


def test_drafts_of_dead_processes_are_cleared(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    inner = tmp_path / "search"
    stale = [tmp_path / f".result.json.{dead.pid}.tmp", inner / f".journal.{10**30}.tmp"]
    kept = [tmp_path / f".other.{os.getpid()}.tmp", tmp_path / ".hidden.tmp", inner / f"result.{dead.pid}.tmp"]
    (tmp_path / f".export.{dead.pid}.tmp").mkdir()
    inner.mkdir()
    for path in (*stale, *kept, tmp_path / f".export.{dead.pid}.tmp" / "model.py"):
        path.write_text("half")
    files.clear_drafts(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path != inner} == set(kept)
    files.clear_drafts(tmp_path / "missing")


def test_tensors_come_back(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    square = torch.arange(6.0).reshape(2, 3)
    files.save_tensors(tmp_path / "file", {"turned": square.T, "grad": square.clone().requires_grad_()})
    found = load_file(tmp_path / "file")
    assert torch.equal(found["turned"], square.T)
    assert torch.equal(found["grad"], square)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(os.environ["EVIL"]),)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".npz", ".safetensors"])
def test_weights_of_every_format_are_read_without_running_code(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, path = {"fc.weight": torch.arange(6.0).reshape(2, 3)}, tmp_path / f"weights{suffix}"
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    write = {".npz": lambda: np.savez(path, **arrays), ".safetensors": lambda: files.save_tensors(path, weights)}
    write.get(suffix, lambda: torch.save({"model": weights, "epoch": 3}, path))()
    assert torch.equal(files.read_tensors(path)["fc.weight"], weights["fc.weight"])
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    evil: Any = {".npz": lambda: np.savez(path, x=np.array([Evil()], dtype=object))}
    evil.get(suffix, lambda: torch.save({"model": Evil()}, path))()
    with pytest.raises(UserError, match=f"weights{suffix} cannot be read as weights") as error:
        files.read_tensors(path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("wrap", ["model", "state_dict", "model_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_weights_are_found_in_checkpoints(wrap: str, prefix: str, tmp_path: Path) -> None:
    torch.save({wrap: {f"{prefix}a.weight": torch.ones(1)}, "optimizer": {"lr": 1.0}}, tmp_path / "x.pth")
    assert list(files.read_tensors(tmp_path / "x.pth")) == ["a.weight"]


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint at .*x\.pth; give a \.safetensors"):
        files.read_tensors(tmp_path / "x.pth")
    torch.save([1, 2], tmp_path / "x.pth")
    with pytest.raises(UserError, match="holds a list, expected weights by name"):
        files.read_tensors(tmp_path / "x.pth")


def test_a_lock_is_for_one_and_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"
    with files.locked(path):
        with pytest.raises(UserError, match="run is in use by another process"), files.locked(path):
            pass
        with files.locked(path, needed=False):
            pass
    with files.locked(path):
        pass


def test_a_killed_process_lets_go_of_its_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with kill.holding(path), pytest.raises(UserError, match="in use by another process"), files.locked(path):
        pass
    with files.locked(path):
        pass


def test_a_lock_of_another_user_or_on_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shared" / ".lock"
    path.parent.mkdir()

    def forbidden(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "open", forbidden)
        with pytest.raises(PermissionError), files.locked(path):  # the folder cannot be written to
            pass
    path.touch()
    monkeypatch.setattr(files.os, "open", forbidden)
    with files.locked(path), pytest.raises(UserError, match="shared is in use"), files.locked(path):
        pass

    def without_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", without_locks)
    with files.locked(path):
        assert f"{path.parent} cannot be locked (No locks available)" in capsys.readouterr().err


def test_text_need_not_be_unicode(tmp_path: Path) -> None:
    files.write_text(tmp_path / "file", "caf\udce9 ä")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "caf\\udce9 ä"


def test_files_are_text_that_people_can_read(tmp_path: Path) -> None:
    files.write_json(tmp_path / "file", {"a": 1})
    assert (tmp_path / "file").read_text() == '{\n "a": 1\n}\n'
    assert json.loads((tmp_path / "file").read_text()) == {"a": 1}


def test_a_text_file_named_as_weights_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Weights\nare elsewhere")
    with pytest.raises(UserError, match="no plain tensors") as error:
        files.read_tensors(tmp_path / "notes.md")
    assert "weights_only" not in str(error.value)
