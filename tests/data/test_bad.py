"""Unreadable images are left out, counted and listed, until they are too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nasformer.data.sources import load_data
from nasformer.errors import UserError

Maker = Callable[..., Path]


@pytest.fixture
def root(image_folder: Maker) -> Path:
    return image_folder({"train": {"ant": 100, "bee": 48}, "val": {"ant": 1, "bee": 1}}, size=(16, 16), ext="jpg")


def test_a_rare_one_is_left_out(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole, listed = load_data(str(root), holdout=0), tmp_path / "run" / "bad.txt"
    broken = root / "train" / "bee" / "0007.jpg"
    broken.write_bytes(broken.read_bytes()[:-50])
    data = load_data(str(root), holdout=0, bad_list=listed)
    assert torch.bincount(data.train.labels).tolist() == [100, 47]
    assert torch.equal(data.train.images[:107], whole.train.images[:107])
    assert torch.equal(data.train.images[107:], whole.train.images[108:])
    told = capsys.readouterr().err
    assert "1 of 150 images cannot be read: " in told
    assert "bee/0007.jpg (image file is truncated" in told
    assert f"left out (all of them: {listed})" in told
    load_data(str(root), holdout=0, bad_list=listed)
    (line,) = listed.read_text().splitlines()  # a second start does not list it twice
    assert line.startswith(f"{broken}\timage file is truncated")


def test_the_split_does_not_depend_on_them(root: Path) -> None:
    """Else an image that breaks would move others from the hold-out into training."""
    before = load_data(str(root))
    (root / "train" / "ant" / "0003.jpg").write_bytes(b"")
    after = load_data(str(root))
    missing = (len(before.train) - len(after.train), len(before.holdout) - len(after.holdout))
    assert missing in ((1, 0), (0, 1))
    held = {image.numpy().tobytes() for image in before.holdout.images}
    assert {image.numpy().tobytes() for image in after.holdout.images} <= held


def test_many_are_too_many(root: Path, tmp_path: Path) -> None:
    for number in range(5):
        (root / "train" / "ant" / f"{number:04d}.jpg").write_bytes(b"no image")
    listed = tmp_path / "bad.txt"
    with pytest.raises(UserError) as caught:
        load_data(str(root), holdout=0, bad_list=listed)
    message = str(caught.value)
    assert "5 of 150 images cannot be read" in message
    assert "ant/0002.jpg (cannot identify image file) ..." in message  # the first three of them
    assert "0003.jpg" not in message
    assert "more than 0.01 of them is too many: repair or remove them, or allow more with --max-bad" in message
    assert "\n" not in message
    assert len(listed.read_text().splitlines()) == 5
    assert len(load_data(str(root), holdout=0, max_bad=5 / 150).train) == 143
    with pytest.raises(UserError, match=r"max_bad is 1\.5; give a share from 0 to 1"):
        load_data(str(root), max_bad=1.5)


def test_those_that_only_decoding_finds_are_counted_as_well(root: Path) -> None:
    for number in range(5):
        path = root / "train" / "ant" / f"{number:04d}.jpg"
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"5 of 150 images cannot be read: .*truncated"):
        load_data(str(root), holdout=0)


def test_nothing_can_be_read(root: Path) -> None:
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="none of the 150 images can be read; check the files"):
        load_data(str(root), holdout=0, max_bad=1.0)
