"""Unreadable images are left out, counted and listed, until they are too many."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nasformer.data import files
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data, open_files
from nasformer.data.streaming import stream_files
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
    with pytest.raises(UserError, match=r"max_bad is 1\.5; give a number from 0 to 1"):
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


def test_a_single_one_is_no_reason_to_stop(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    root = image_folder({"train": {"ant": 5, "bee": 5}, "val": {"ant": 1, "bee": 1}})
    (root / "train" / "ant" / "0000.png").write_bytes(b"")
    assert len(load_data(str(root), holdout=0).train) == 9  # 1 of 12 is far more than one in a hundred
    assert "1 of 12 images cannot be read: " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"1 of 12 images cannot be read: .*; more than 0 of them is too many"):
        load_data(str(root), holdout=0, max_bad=0)
    (root / "train" / "ant" / "0001.png").write_bytes(b"")
    with pytest.raises(UserError, match="2 of 12 images cannot be read"):
        load_data(str(root), holdout=0)


def test_what_is_no_file_is_not_waited_for(
    image_folder: Maker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A named pipe waits for a writer for ever; a socket and a device are no files either."""
    root = image_folder({"train": {"ant": 5, "bee": 5}, "val": {"ant": 1, "bee": 1}})
    os.mkfifo(root / "train" / "ant" / "pipe.png")
    (root / "train" / "bee" / "device.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(root)  # since the path of a socket must be short
        server.bind("train/bee/socket.png")
    data = load_data(str(root), holdout=0, max_bad=0.2)
    assert len(data.train) == 10
    said = capsys.readouterr().err
    assert "3 of 15 images cannot be read" in said
    for name in ("ant/pipe.png", "bee/device.png", "bee/socket.png"):
        assert f"{name} (not a regular file)" in said


def test_names_that_are_not_utf_8_are_shown_with_escapes(
    image_folder: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = image_folder({"train": {"ant": 5, "bee": 5}, "val": {"ant": 1, "bee": 1}})
    for part in ("train", "val"):
        os.rename(root / part / "bee", os.fsencode(root / part) + b"/caf\xe9")
    broken = os.fsencode(root / "train" / "ant") + b"/\xff.png"
    with open(broken, "wb"):
        pass
    data = load_data(str(root), holdout=0, max_bad=0.2, bad_list=tmp_path / "bad.txt")
    assert data.classes == ["ant", r"caf\xe9"]
    assert torch.bincount(data.train.labels).tolist() == [5, 5]
    assert r"train/ant/\xff.png (cannot identify" in capsys.readouterr().err
    assert r"train/ant/\xff.png" in (tmp_path / "bad.txt").read_text(encoding="utf-8")
    found = open_files(str(root), holdout=0, max_bad=0.2)
    source = Batches(stream_files(found), AugmentOptions(), 4)
    assert sum(len(x) for x, _ in source.evaluation("train", 4)) == 10
    assert r"train/ant/\xff.png" in capsys.readouterr().err


# Memory


def test_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  16 kB\nMemAvailable:   1000 kB\n")
    monkeypatch.setattr(files, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(files, "CGROUP", tmp_path)
    assert files.free_memory() == 1000 * 1024
    (tmp_path / "memory.max").write_text("600000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert files.free_memory() == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert files.free_memory() == 1000 * 1024


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_memory", lambda: 1000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert files.fits(500, cpu)
    assert not files.fits(501, cpu)
    assert not files.fits(500, cpu, world=2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (400, 10_000))
    assert files.fits(200, gpu)
    assert not files.fits(201, gpu)
