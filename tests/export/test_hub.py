"""The upload of an export, with a client that only takes notes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiny
from nasformer.cli.main import main
from nasformer.models.storage import save_model
from small_run import json_output, refused


class FakeApi:
    uploads: list[tuple[str, list[str]]] = []  # noqa: RUF012 - shared by all clients, as the Hub is
    error: Exception | None = None

    def create_repo(self, repo: str, **_: Any) -> str:
        if self.error:
            raise self.error
        return f"https://hub.example/{repo}"

    def upload_folder(self, repo_id: str, folder_path: str, **_: Any) -> None:
        self.uploads.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeApi.uploads.clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=FakeApi))
    save_model(tiny.MICRO.build(tiny.MICRO.root.smallest()), tmp_path / "model")
    folders = [str(tmp_path / "model"), "--to", str(tmp_path / "out"), "--formats", ""]
    return ["export", *folders, "--push-to-hub", "me/mine"]


def test_the_whole_export_is_uploaded(words: list[str], capsys: Any) -> None:
    assert json_output(capsys, *words)["hub"] == "https://hub.example/me/mine"
    assert FakeApi.uploads == [("me/mine", ["README.md", "config.json", "model.safetensors"])]


def test_a_missing_package_or_a_wrong_name_is_refused_before_the_export(
    words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "give OWNER/NAME" in refused(capsys, [*words[:-1], "mine"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "install it: nasformer[hub]" in refused(capsys, words)
    assert not (tmp_path / "out").exists()


def test_what_the_hub_refuses_is_said_and_the_export_stays(
    words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FakeApi, "error", RuntimeError("401: who are you?\nmore"))
    assert main(words) == 2
    assert "the Hub refused me/mine (401: who are you?)" in capsys.readouterr().err
    assert (tmp_path / "out" / "README.md").exists()
