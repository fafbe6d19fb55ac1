"""Image files from the command line to the model: what is decided, said, listed and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import small_run
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.data.loaders import Split
from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.runs import base as runs
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.files import read_json

RECIPE = {"epochs": 1, "batch_size": 8, "augment": {"crop": "resized"}}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos of all sizes in class folders, and nothing else."""
    for number in range(40):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 100, (20, 24 + number % 3, 3)) + 100 * (number % 2)
        Image.fromarray(noise.astype(np.uint8)).save(path)
    return tmp_path / "photos"


def settings(photos: Path, **changes: Any) -> dict[str, Any]:
    plain = {"data": str(photos), "img_size": 16, "train": RECIPE, "workers": 0, "device": "cpu"}
    return plain | changes


def test_from_photos_to_a_model_that_knows_its_classes(photos: Path, tmp_path: Path, capsys: Any) -> None:
    broken = photos / "cat" / "04.jpg"
    broken.write_bytes(broken.read_bytes()[:-100])
    run = tmp_path / "run"
    assert main(small_run.words("run", run, **settings(photos, max_bad=0.05))) == 0
    said = capsys.readouterr().err
    assert "no test images of its own: 8 of 40, a fifth of each class" in said
    assert "40 images of 16 px, 0.029 MiB when decoded: kept in memory" in said
    assert f"1 of 40 images cannot be read: {broken} (image file is truncated" in said
    assert (run / "bad_images.txt").read_text().startswith(str(broken))
    for place in (run / "model" / "config.json", run / "supernet" / "supernet.json"):
        assert read_json(place)["classes"] == ["cat", "dog"]
    assert main(["extract", str(run), "--to", str(tmp_path / "cut")]) == 0
    assert read_json(tmp_path / "cut" / "config.json")["classes"] == ["cat", "dog"]
    capsys.readouterr()
    assert main(["evaluate", str(run / "model"), "--data", str(photos), "--max-bad", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["accuracy"]
    assert found == read_json(run / "result.json")["winner"]["test_accuracy"]


def test_every_process_lists_what_it_meets(photos: Path, tmp_path: Path, capsys: Any) -> None:
    """The headers of truncated files are fine: a process meets them in its own batches, but only the first speaks."""
    for path in (photos / "cat" / "00.jpg", photos / "dog" / "01.jpg"):
        path.write_bytes(path.read_bytes()[:-100])
    config = DataOptions(data=str(photos), stream=True, workers=0, holdout=0, max_bad=0.1)
    recipe, listed = Recipe(batch_size=4, augment=AugmentOptions(crop="resized")), tmp_path / "bad_images.txt"
    batches = runs.load_batches(config, recipe, World(1, 2), torch.device("cpu"), 16, bad_list=listed)
    splits: list[Split] = ["train", "test"]
    assert sum(len(x) for split in splits for x, _ in batches.evaluation(split, 40)) == 38
    assert sorted(Path(line.split("\t")[0]).name for line in listed.read_text().splitlines()) == ["00.jpg", "01.jpg"]
    assert capsys.readouterr().err == ""


def test_too_many_bad_images_are_one_line(photos: Path, tmp_path: Path, capsys: Any) -> None:
    for number in (0, 2, 4, 6):
        (photos / "cat" / f"{number:02d}.jpg").write_text("Dear Sir or Madam")
    message = small_run.refused(capsys, small_run.words("train", tmp_path / "run", **settings(photos), max_bad=0.02))
    assert "4 of 40 images cannot be read" in message
    assert str(tmp_path / "run" / "bad_images.txt") in message
    assert len((tmp_path / "run" / "bad_images.txt").read_text().splitlines()) == 4


def test_what_does_not_fit_is_streamed_also_when_memory_comes_free(
    photos: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on must see the same batches, so that it is decided once."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "fits", lambda *_: False)
        assert main(small_run.words("train", run, **settings(photos))) == 0
    assert "when decoded: too large for memory, streamed from disk" in capsys.readouterr().err
    assert read_json(run / "config.json")["stream"] is True
    trained = (run / "supernet" / "supernet.safetensors").read_bytes()
    assert main(small_run.words("train", run, **settings(photos))) == 0
    assert main(small_run.words("search", run, **{k: v for k, v in settings(photos).items() if k != "train"})) == 0
    assert "in memory" not in capsys.readouterr().err
    assert read_json(run / "config.json")["stream"] is True
    assert (run / "supernet" / "supernet.safetensors").read_bytes() == trained
    assert main(small_run.words("train", tmp_path / "other", **settings(photos, stream=False))) == 0
    assert read_json(tmp_path / "other" / "config.json")["stream"] is False
    assert "kept in memory" not in capsys.readouterr().err  # as it was asked for


def test_photos_of_all_sizes_get_that_of_the_space(photos: Path, tmp_path: Path, capsys: Any) -> None:
    asked = {"img_size": None, "patch_size": 16, "model": {"drop_path_rate": 0.0}}
    assert main(small_run.words("train", tmp_path / "run", **settings(photos, **asked))) == 0
    size = read_json(tmp_path / "run" / "supernet" / "supernet.json")["options"]["img_size"]
    assert f"images differ in size or are not square: resized to {size} px" in capsys.readouterr().err


def test_photos_in_grey_where_that_is_asked_for(photos: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    assert main(small_run.words("train", run, **settings(photos, in_chans=1))) == 0
    searching = {name: value for name, value in settings(photos, space=None).items() if name != "train"}
    assert main(small_run.words("search", run, **searching)) == 0  # which reads them as the supernet does
    assert read_json(run / "model" / "config.json")["options"]["in_chans"] == 1
    assert main(["evaluate", str(run / "model"), "--data", str(photos)]) == 0


@pytest.mark.parametrize("words", [["--download"], ["--download", "true"], ["--download=true"], []])
def test_switches_need_no_value(words: list[str], tmp_path: Path, capsys: Any) -> None:
    argv = ["train", "--space", "autoformer-micro", "--data", "cub200", *words, "--out", str(tmp_path / "run")]
    message = small_run.refused(capsys, [*argv, "--data-root", str(tmp_path)])
    assert ("cub200 cannot be downloaded" if words else f"cub200 is not at {tmp_path}") in message
