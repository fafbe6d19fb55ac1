"""Which files `nasformer predict` answers: folders are looked through, broken images left out and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nasformer.errors import UserError
from nasformer.runs.single import readable_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, mode in (("b.png", "L"), ("a.png", "RGBA"), ("c.JPG", "RGB")):
        Image.new(mode, (5, 9)).save(tmp_path / name, "JPEG" if name.endswith("JPG") else None)
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "c.JPG").read_bytes()[:100])
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def test_a_folder_stands_for_its_images_and_broken_ones_are_told(photos: Path, capsys: Any) -> None:
    found = readable_images([str(photos), str(photos / "b.png")])
    assert [Path(file).name for file in found] == ["a.png", "b.png", "c.JPG", "b.png"]
    assert "left out: " in (told := capsys.readouterr().err)
    assert "broken.jpg cannot be read as an image" in told


def test_without_one_image_that_can_be_read_there_is_nothing_to_answer(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"notes.txt cannot be read as an image .*; give PNG or JPEG files"):
        readable_images([str(photos / "notes.txt")])
    with pytest.raises(UserError, match=r"there is no image .*nothing.png; check the path"):
        readable_images([str(photos / "b.png"), str(photos / "nothing.png")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"the folder .*empty has no images"):
        readable_images([str(tmp_path / "empty")])
