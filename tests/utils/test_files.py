from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

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


def test_tensors_come_back(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    square = torch.arange(6.0).reshape(2, 3)
    files.save_tensors(tmp_path / "file", {"turned": square.T, "grad": square.clone().requires_grad_()})
    found = load_file(tmp_path / "file")
    assert torch.equal(found["turned"], square.T)
    assert torch.equal(found["grad"], square)


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


def test_files_are_text_that_people_can_read(tmp_path: Path) -> None:
    files.write_json(tmp_path / "file", {"a": 1})
    assert (tmp_path / "file").read_text() == '{\n "a": 1\n}\n'
    assert json.loads((tmp_path / "file").read_text()) == {"a": 1}
