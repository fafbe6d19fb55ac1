from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nasformer.data import files as image_files
from nasformer.data.sources import list_folder, load_data
from nasformer.errors import UserError

Maker = Callable[..., Path]


def test_train_and_val(image_folder: Maker) -> None:
    data = load_data(str(image_folder({"train": {"ant": 12, "bee": 8}, "val": {"ant": 2, "bee": 3}})), holdout=2)
    assert data.classes == ["ant", "bee"]
    assert torch.bincount(data.train.labels).tolist() == [10, 6]
    assert torch.bincount(data.holdout.labels).tolist() == [2, 2]
    assert torch.bincount(data.test.labels).tolist() == [2, 3]
    assert (data.img_size, data.in_chans) == (12, 3)
    assert (data.test.images[:, 0].float().mean(dim=(1, 2)) >= 100).long().tolist() == data.test.labels.tolist()


def test_photos_need_no_labels_where_a_net_answers_for_them(image_folder: Maker) -> None:
    labelled = image_folder({"": {"ant": 12, "bee": 8}})
    same = load_data(str(labelled), answers=["ant", "bee"])
    assert torch.bincount(same.train.labels).tolist() == torch.bincount(load_data(str(labelled)).train.labels).tolist()
    assert len(set(load_data(str(labelled), answers=2).train.labels.tolist())) == 2
    for other in (load_data(str(labelled), answers=5), load_data(str(labelled / "ant"), answers=5)):
        assert other.classes == ["0", "1", "2", "3", "4"]
        assert set(other.train.labels.tolist()) == {0}
        assert len(other.holdout) > 0
    assert len(other.train) + len(other.holdout) + len(other.test) == 12


def test_without_test_folder_a_fixed_fifth_is_the_test(image_folder: Maker) -> None:
    root = str(image_folder({"train": {"ant": 20, "bee": 30}}))
    first, other = (load_data(root, seed=seed) for seed in (0, 1))
    assert torch.bincount(first.test.labels).tolist() == [4, 6]
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.holdout.images, other.holdout.images)
    everything = torch.cat([first.train.images, first.holdout.images, first.test.images]).flatten(1)
    assert len(everything.unique(dim=0)) == len(everything) == 50


def test_val_is_the_hold_out_where_test_exists(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"train": {"ant": 9, "bee": 5}, "valid": {"ant": 2, "bee": 1}, "test": {"ant": 3, "bee": 1}}
    root = str(image_folder(parts))
    data = load_data(root, holdout=0.5)
    assert (len(data.train), len(data.holdout), len(data.test)) == (14, 3, 4)
    assert capsys.readouterr().err == ""
    everything = load_data(root, holdout=0)
    assert (len(everything.train), len(everything.holdout), len(everything.test)) == (17, 0, 4)
    assert "nothing is held out: the 3 validation images are trained on as well" in capsys.readouterr().err


def test_class_folders_alone(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of class folders is split as if it were train/."""
    root = image_folder({"train": {"ant": 20, "bee": 30}})
    split, said = load_data(str(root)), capsys.readouterr().err
    plain, said_too = load_data(str(root / "train")), capsys.readouterr().err
    for part in ("train", "holdout", "test"):
        assert torch.equal(getattr(plain, part).images, getattr(split, part).images)
        assert torch.equal(getattr(plain, part).labels, getattr(split, part).labels)
    assert plain.classes == ["ant", "bee"]
    assert "no test images of its own: 10 of 50, a fifth of each class" in said
    assert "no test images of its own: 10 of 50" in said_too
    load_data(str(root), quiet=True)
    assert capsys.readouterr().err == ""


def test_an_unsorted_test_folder_does_not_count(image_folder: Maker) -> None:
    root = image_folder({"train": {"ant": 9, "bee": 2}, "val": {"ant": 3, "bee": 1}})
    (root / "test").mkdir()
    (root / "test" / "0001.png").write_bytes(b"")
    assert len(load_data(str(root)).test) == 4


def test_images_are_resized_and_cropped(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(image_folder({"train": {"ant": 6, "bee": 2}, "val": {"ant": 2}}, size=(20, 30), ext="jpg"))
    assert load_data(root, usual_size=16).img_size == 16
    assert "images differ in size or are not square: resized to 16 px" in capsys.readouterr().err
    assert load_data(root, img_size=8).train.images.shape[1:] == (3, 8, 8)
    assert capsys.readouterr().err == ""


def test_images_of_the_right_size_are_left_alone(image_folder: Maker) -> None:
    root = str(image_folder({"train": {"ant": 6, "bee": 2}, "val": {"ant": 2}}))
    assert torch.equal(load_data(root, img_size=12).train.images, load_data(root).train.images)


def test_sizes_that_differ(image_folder: Maker) -> None:
    from PIL import Image

    root = image_folder({"train": {"ant": 6, "bee": 2}, "val": {"ant": 2}})
    Image.new("L", (9, 9)).save(root / "train" / "ant" / "zzz.png")
    data = load_data(str(root), holdout=0)
    assert (len(data.train), data.img_size) == (9, 224)
    assert load_data(str(root), holdout=0, img_size=12).img_size == 12


def test_empty_and_hidden_folders_are_no_classes(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    root = image_folder({"train": {"ant": 5, "bee": 5, "wasp": 0}, "test": {"ant": 1, "bee": 1, "wasp": 0}})
    (root / "train" / ".cache").mkdir()
    (root / "train" / ".cache" / "x.png").touch()
    (root / "train" / "wasp" / "notes.txt").touch()
    assert load_data(str(root)).classes == ["ant", "bee"]
    said = capsys.readouterr().err
    assert "left out 1 of 3 class folders, which hold no images: wasp" in said
    assert "1 file of types that are not read: .txt (1)\n" in said


def test_types_that_are_not_read_are_named(image_folder: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    root = image_folder({"train": {"ant": 5, "bee": 5}, "test": {"ant": 1, "bee": 1}})
    for number in range(4):
        (root / "train" / "ant" / f"{number}.HEIC").touch()
    for path in ("train/bee/notes.txt", "test/bee/x.heic", "train/bee/README", "train/bee/.DS_Store"):
        (root / path).touch()
    load_data(str(root))
    note = "7 files of types that are not read: .heic (5), .txt (1), without ending (1); convert photos to JPEG"
    assert note in capsys.readouterr().err
    for path in root.rglob("*.png"):
        path.unlink()
    with pytest.raises(UserError, match=r"has no class folders in train/ with images \(6 files of types that are not"):
        load_data(str(root))


def test_folder_errors(image_folder: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has no class folders with images; expected <class>/"):
        load_data(str(tmp_path))
    root = image_folder({"train": {"ant": 5}, "val": {"ant": 1, "bee": 1}})
    with pytest.raises(UserError, match="has a class 'bee' that train/ lacks"):
        load_data(str(root))
    (root / "val" / "bee" / "0000.png").unlink()
    with pytest.raises(UserError, match="has one class only, 'ant'; a classifier needs two or more"):
        load_data(str(root))
    (root / "train" / "ant").rename(root / "train" / "nothing")
    for path in (root / "train" / "nothing").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="has no class folders in train/ with images; expected"):
        load_data(str(root))


def test_too_many_to_hold_out(image_folder: Maker) -> None:
    with pytest.raises(UserError, match="cannot hold out 5 images per class: class 'ant' has only 5"):
        list_folder(image_folder({"train": {"ant": 5, "bee": 9}, "val": {"ant": 1}})).split(5, 0)


def test_too_many_for_memory(image_folder: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "free_memory", lambda: 100)
    with pytest.raises(
        UserError, match=r"12 images of 12 px take 0.0049 MiB in memory, .*; stream them or use a smaller"
    ):
        load_data(str(image_folder({"train": {"ant": 7, "bee": 5}})), holdout=1)


def test_decoding_many_shows_progress(
    image_folder: Maker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_files, "FEW", 5)
    root = str(image_folder({"train": {"ant": 5, "bee": 5}, "test": {"ant": 2, "bee": 1}}))
    load_data(root)
    assert re.fullmatch(r"decode: 13/13, \d+ s, about 0 s left *\n", capsys.readouterr().err)
    load_data(root, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("where", ["train", "train/bee"])
def test_a_folder_that_may_not_be_read(image_folder: Maker, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It must not pass for an empty one. Permissions do not bind the root user, so they are acted."""
    root = image_folder({"train": {"ant": 5, "bee": 5}})
    original = os.scandir

    def guarded(path: Any = ".") -> Any:
        if Path(os.fsdecode(path)) == root / where:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path)

    def listed(self: Path) -> Any:
        with guarded(self) as entries:
            return iter([self / entry.name for entry in entries])

    monkeypatch.setattr(os, "scandir", guarded)
    monkeypatch.setattr(Path, "iterdir", listed)  # which goes round os.scandir in some versions
    with pytest.raises(
        UserError, match=rf"cannot read the folder .*{where} \(Permission denied\); check its permission"
    ):
        load_data(str(root))


def test_of_large_sets_a_sample_is_surveyed(image_folder: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "SURVEYED", 10)
    seen: list[str] = []
    original = image_files.read_header
    monkeypatch.setattr(image_files, "read_header", lambda path: (seen.append(path), original(path))[1])
    data = load_data(str(image_folder({"train": {"ant": 40, "bee": 20}, "test": {"ant": 1, "bee": 1}})))
    assert (len(data.train) + len(data.holdout), len(data.test)) == (60, 2)
    assert len(seen) == len(set(seen)) in (10, 11, 12)
    assert {"ant", "bee"} <= {Path(path).parent.name for path in seen}
