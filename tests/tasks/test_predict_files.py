"""Which files `nasformer predict` answers: folders are looked through, broken images left out and told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from nasformer.errors import UserError
from nasformer.runs import single
from nasformer.runs.single import list_images, predict_images
from nasformer.tasks.options import PredictOptions


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, mode in (("b.png", "L"), ("a.png", "RGBA"), ("c.JPG", "RGB")):
        Image.new(mode, (5, 9)).save(tmp_path / name, "JPEG" if name.endswith("JPG") else None)
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "c.JPG").read_bytes()[:100])
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the files that a task was asked for, one list for each time."""
    asked = list[list[str]]()

    def predict(trained: Any, options: PredictOptions) -> Iterator[str]:
        asked.append([Path(file).name for file in options.images])
        yield from options.images

    monkeypatch.setattr(single, "get_task", lambda name: SimpleNamespace(predict=predict))
    trained = SimpleNamespace(model=SimpleNamespace(task="any"))
    monkeypatch.setattr(single, "TrainedModel", SimpleNamespace(load=lambda folder, device: trained))
    return asked


def predict(*images: Path) -> list[Any]:
    return list(predict_images(Path("model"), PredictOptions(images=[str(image) for image in images])))


def test_a_folder_stands_for_its_images_and_broken_ones_are_told(
    photos: Path, asked: list[list[str]], capsys: Any
) -> None:
    predict(photos, photos / "b.png")
    assert asked == [["a.png", "b.png", "c.JPG", "b.png"]]
    assert "left out: " in (told := capsys.readouterr().err)
    assert "broken.jpg cannot be read as an image" in told


def test_the_first_answers_do_not_wait_for_all_files(
    photos: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(single, "CHECKED", 2)
    answers = predict_images(Path("model"), PredictOptions(images=[str(photos)]))
    assert Path(str(next(answers))).name == "a.png"
    assert asked == [["a.png", "b.png"]]
    assert [Path(str(answer)).name for answer in answers] == ["b.png", "c.JPG"]
    assert asked == [["a.png", "b.png"], ["c.JPG"]]
    assert "broken.jpg cannot be read as an image" in capsys.readouterr().err


def test_files_of_one_name_are_numbered_together(
    photos: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "CHECKED", 1)
    predict(photos / "a.png", photos / "b.png", photos / "a.png")
    assert asked == [["a.png", "b.png", "a.png"]]


def test_without_one_image_that_can_be_read_there_is_nothing_to_answer(
    photos: Path, asked: list[list[str]], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"notes.txt cannot be read as an image .*; give PNG or JPEG files"):
        predict(photos / "notes.txt")
    with pytest.raises(UserError, match=r"there is no image .*nothing.png; check the path"):
        predict(photos / "b.png", photos / "nothing.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"the folder .*empty has no images"):
        list_images([str(tmp_path / "empty")])
    assert asked == []
