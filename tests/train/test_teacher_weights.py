"""Weights of a timm teacher from a local file: read by us, without pickles, and checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import tiny
from nasformer.errors import UserError
from nasformer.train.loss import load_teacher
from nasformer.utils.files import save_tensors

CPU = torch.device("cpu")


def teacher(path: Path, num_classes: int = 10) -> torch.nn.Module:
    return load_teacher(f"timm:test_resnet:{path}", num_classes, 1, CPU)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return timm.create_model("test_resnet", num_classes=10, in_chans=1)


def test_checkpoints_of_timm_and_safetensors_are_read(model: torch.nn.Module, tmp_path: Path) -> None:
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "a.pth")
    save_tensors(tmp_path / "a.safetensors", model.state_dict())
    for name in ("a.pth", "a.safetensors"):
        tiny.assert_same(teacher(tmp_path / name), model)


def test_weights_that_do_not_fit_are_named(model: torch.nn.Module, tmp_path: Path) -> None:
    state = model.state_dict()
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"fc\.weight has the shape \[10, \d+\], expected \[7, \d+\] in .*a\.pth; give"):
        teacher(tmp_path / "a.pth", num_classes=7)
    torch.save({name: state[name] for name in list(state)[1:]}, tmp_path / "a.pth")
    with pytest.raises(UserError, match=f"{next(iter(state))} is missing"):
        teacher(tmp_path / "a.pth")
    torch.save({**state, "neck": torch.ones(1)}, tmp_path / "a.pth")
    with pytest.raises(UserError, match="neck is unknown"):
        teacher(tmp_path / "a.pth")


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def test_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, "a.pth")
    with pytest.raises(UserError, match=r"cannot load the teacher timm:test_resnet:a\.pth: a\.pth cannot be read"):
        teacher(Path("a.pth"))
    assert not Path("ran").exists()
