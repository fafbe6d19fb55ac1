from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nasformer
import tiny
from nasformer.errors import UserError
from nasformer.models.storage import load_model, save_model
from nasformer.utils.files import save_tensors

Change = Callable[[bytes], bytes | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny.supernet().extract(tiny.SMALLEST), tmp_path_factory.mktemp("model"), accuracy=0.5)


def test_a_model_comes_back_ready_for_use(folder: Path) -> None:
    model, original, x = load_model(folder), tiny.supernet().extract(tiny.SMALLEST).eval(), torch.randn(3, 1, 8, 8)
    assert not model.training
    assert model.arch == tiny.SMALLEST
    assert model.options == original.options
    assert torch.equal(model(x), original(x))


def test_the_config_says_what_the_model_is(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["family"] == "autoformer"
    assert config["arch"] == tiny.SMALLEST.to_dict()
    assert config["options"]["patch_size"] == 4
    assert config["accuracy"] == 0.5
    assert config["nasformer"] == nasformer.__version__


def test_the_weights_are_plain_safetensors(folder: Path) -> None:
    from safetensors.torch import load_file

    tiny.assert_same(load_file(folder / "model.safetensors"), tiny.supernet().extract(tiny.SMALLEST))


def test_options_that_are_pairs_come_back_as_pairs(tmp_path: Path) -> None:
    space = tiny.SPACE.with_options(img_size=(8, 12))
    save_model(space.build(tiny.SMALLEST), tmp_path)
    model = load_model(tmp_path)
    assert model.options["img_size"] == (8, 12)
    assert model(torch.randn(1, 1, 8, 12)).shape == (1, 10)


CONFIG, WEIGHTS, AGAIN = "config.json", "model.safetensors", "restore it or extract the model again"
DAMAGES: dict[str, tuple[str, Change, str]] = {
    "no config": (CONFIG, lambda b: None, "is missing; is .* a folder that nasformer wrote"),
    "config cut": (CONFIG, lambda b: b[: len(b) // 2], "is damaged"),
    "config empty": (CONFIG, lambda b: b"{}", f"family is missing, expected a string; {AGAIN}"),
    "config a list": (CONFIG, lambda b: b"[]", "holds no JSON object"),
    "no options": (CONFIG, lambda b: b.replace(b'"options"', b'"opt"'), f"options is missing, .*; {AGAIN}"),
    "no arch": (CONFIG, lambda b: b.replace(b'"arch"', b'"a"'), f"arch is missing, .*; {AGAIN}"),
    "strange arch": (CONFIG, lambda b: b.replace(b'"embed_dim"', b'"dim"'), f"is damaged .*; {AGAIN}"),
    "strange option": (CONFIG, lambda b: b.replace(b'"patch_size"', b'"patch"'), f"is damaged .*; {AGAIN}"),
    "other arch": (
        CONFIG,
        lambda b: b.replace(b'"embed_dim": 16', b'"embed_dim": 24'),
        f"needs .* weights, there are .*; {AGAIN}",
    ),
    "no weights": (WEIGHTS, lambda b: None, "no checkpoint at"),
    "weights cut": (WEIGHTS, lambda b: b[: len(b) // 2], "cannot be read as weights"),
    "weights empty": (WEIGHTS, lambda b: b"", "cannot be read as weights"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_said_to_be_one(folder: Path, tmp_path: Path, damage: str) -> None:
    name, change, message = DAMAGES[damage]
    path = shutil.copytree(folder, tmp_path / "copy") / name
    changed = change(path.read_bytes())
    path.unlink() if changed is None else path.write_bytes(changed)
    with pytest.raises(UserError, match=message) as error:
        load_model(path.parent)
    assert "\n" not in str(error.value)


def test_weights_that_lack_one_or_have_one_more(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "copy") / "model.safetensors"
    state = tiny.supernet().extract(tiny.SMALLEST).state_dict()
    first, *others = state
    renamed = {**{name: state[name] for name in others}, "other": state[first]}
    for changed in ({**state, "extra": torch.ones(1)}, renamed):
        save_tensors(path, changed)
        with pytest.raises(UserError, match="does not fit its config"):
            load_model(path.parent)
    save_tensors(path, {name: state[name] for name in others})
    with pytest.raises(UserError, match=r"needs 3,946 weights, there are 3,930"):
        load_model(path.parent)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model folder at .*; `nasformer extract` makes one"):
        load_model(tmp_path / "nothing")
