"""Packing image files into shards, and reading them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nasformer.cli.main import main
from nasformer.data import shards
from nasformer.data.decode import BadImage
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.shards import load_shards, pack_files
from nasformer.data.sources import list_files, load_data, open_files
from nasformer.data.streaming import stream_files
from nasformer.errors import UserError

PLAIN = AugmentOptions(crop="resized", hflip=0.0, smoothing=0.0)


@pytest.fixture
def photos(image_folder: Callable[..., Path]) -> Path:
    parts = {"train": {"ant": 9, "bee": 8}, "val": {"ant": 2, "bee": 2}, "test": {"ant": 2, "bee": 3}}
    return image_folder(parts, size=(24, 36), ext="jpg")


def pack(source: Path, to: Path, size: int = 256, shard_images: int = 5, max_bad: float = 0.01) -> Path:
    pack_files(list_files(str(source)), to, size, 90, shard_images, max_bad)
    return to


def test_a_packed_set_is_that_of_its_files(photos: Path, tmp_path: Path) -> None:
    packed = pack(photos, tmp_path / "packed")
    assert len(list(packed.glob("train-*.tar"))) == 4
    files, read = (load_data(str(source), img_size=16) for source in (photos, packed))
    for part in ("train", "holdout", "test"):
        assert torch.equal(getattr(files, part).images, getattr(read, part).images)
        assert torch.equal(getattr(files, part).labels, getattr(read, part).labels)
    assert (files.classes, files.mean, len(read.holdout)) == (read.classes, read.mean, 4)  # val/ as it is
    streamed = Batches(stream_files(open_files(str(packed), img_size=16)), PLAIN, 8)
    expected = Batches(stream_files(open_files(str(photos), img_size=16)), PLAIN, 8)
    assert torch.equal(streamed.train(3)[0], expected.train(3)[0])


def test_large_images_are_scaled_once_and_small_ones_keep_their_bytes(photos: Path, tmp_path: Path) -> None:
    small = photos / "train" / "ant" / "small.png"
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(small)
    Image.open(photos / "train" / "ant" / "0000.jpg").convert("L").save(photos / "train" / "ant" / "0000.jpg")
    listing = load_shards(pack(photos, tmp_path / "packed", size=12))
    sizes = [listing.train.header(index)[0] for index in range(len(listing.train))]
    assert sorted(set(sizes)) == [(8, 8), (18, 12)]
    assert [listing.train.header(index)[1] for index in range(2)] == [True, False]  # grey stays grey
    kept = next(index for index, size in enumerate(sizes) if size == (8, 8))
    assert listing.train.path(kept).endswith("/000000009.png")
    assert listing.train.read(kept).numpy().tobytes() == small.read_bytes()


def test_a_shard_is_a_plain_tar_of_images_and_classes(photos: Path, tmp_path: Path) -> None:
    packed = pack(photos, tmp_path / "packed")
    labels = dict[str, int]()
    for path in packed.glob("train-*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                if member.name.endswith(".cls"):
                    labels[member.name[:9]] = int(content.read())
                else:
                    assert Image.open(io.BytesIO(content.read())).size == (36, 24)
    listing = list_files(str(photos))
    assert [labels[f"{number:09d}"] for number in range(17)] == listing.train.labels.tolist()


def test_what_cannot_be_read_is_left_out(photos: Path, tmp_path: Path) -> None:
    broken = photos / "train" / "ant" / "0004.jpg"
    broken.write_bytes(broken.read_bytes()[:-50])
    packed = pack(photos, tmp_path / "packed")
    assert len(load_shards(packed).train) == 16
    assert (packed / "bad_images.txt").read_text().startswith(f"{broken}\timage file is truncated")
    broken.with_name("0005.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 of 26 images cannot be read: .*--max-bad"):
        pack(photos, tmp_path / "other")


def test_packing_goes_on_where_it_stopped(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = pack(photos, tmp_path / "whole"), tmp_path / "stopped"
    packed, original = list[Any](), shards.packed_image

    def stop(*args: Any) -> Any:
        packed.append(args)
        if len(packed) > 12:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "packed_image", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(photos, stopped)
    with pytest.raises(UserError, match="is not packed completely; run the same nasformer pack command again"):
        load_shards(stopped)
    with pytest.raises(UserError, match="has shards of other images or settings"):
        pack(photos, stopped, size=12)
    monkeypatch.setattr(shards, "packed_image", lambda *args: (packed.append(args), original(*args))[1])
    packed.clear()
    pack(photos, stopped)
    assert len(packed) == 26 - 10  # two shards were finished
    for path in whole.glob("*.tar"):
        assert path.read_bytes() == (stopped / path.name).read_bytes()
    assert (whole / "shards.json").read_text() == (stopped / "shards.json").read_text()


def test_damage_is_found(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "packed"
    assert main(["pack", str(photos), "--to", str(packed), "--shard-images", "5", "--size", "12"]) == 0
    said = capsys.readouterr().out
    assert "17 train, 4 val, 5 test images in 6 shards" in said
    assert f"use it with --data {packed}" in said
    assert main(["pack", str(packed), "--check"]) == 0
    capsys.readouterr()
    shard = packed / "train-000002.tar"
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)
    assert main(["pack", str(packed), "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"damaged": ["train-000002.tar"]}
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"train-000002.tar has \d+ bytes, not \d+: it is damaged"):
        load_shards(packed)


def test_a_broken_image_in_a_shard_is_named(photos: Path, tmp_path: Path) -> None:
    packed = pack(photos, tmp_path / "packed", shard_images=100)
    shards._mapped.cache_clear()
    offset, size = (json.loads((packed / "train-000000.json").read_text())[name][0] for name in ("offsets", "sizes"))
    content = bytearray((packed / "train-000000.tar").read_bytes())
    content[offset : offset + size] = bytes(size)
    (packed / "train-000000.tar").write_bytes(content)
    files = open_files(str(packed), img_size=16, max_bad=0.1)
    (name,) = files.bad.reasons
    assert name.startswith(f"{packed / 'train-000000.tar'}/0000")
    assert len(files.decode().train) == 16


def test_errors(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="digits is not made of image files, so there is nothing to pack"):
        list_files("digits")
    for argv, message in (
        (["pack", str(photos)], "say what to pack and where to"),
        (["pack", str(photos), "--to", "x", "--quality", "0"], "quality is 0; give a whole number from 1 to 100"),
        (["pack", str(tmp_path), "--check"], "shards.json is missing"),
        (["pack", str(photos), "--to", str(photos)], "holds other files; give an empty or a new --to folder"),
    ):
        assert main(argv) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(BadImage):
        shards.packed_image(torch.zeros(100, dtype=torch.uint8), 256, 90)
