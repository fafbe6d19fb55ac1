from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nasformer.data import folder, load_data
from nasformer.data.folder import list_folder
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


def test_without_test_folder_a_fixed_fifth_is_the_test(image_folder: Maker) -> None:
    root = str(image_folder({"train": {"ant": 20, "bee": 30}}))
    first, other = (load_data(root, seed=seed) for seed in (0, 1))
    assert torch.bincount(first.test.labels).tolist() == [4, 6]
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.holdout.images, other.holdout.images)
    everything = torch.cat([first.train.images, first.holdout.images, first.test.images]).flatten(1)
    assert len(everything.unique(dim=0)) == len(everything) == 50


def test_val_is_the_hold_out_where_test_exists(image_folder: Maker) -> None:
    parts = {"train": {"ant": 9}, "val": {"ant": 3}, "test": {"ant": 4}}
    data = load_data(str(image_folder(parts)), holdout=0.5)
    assert (len(data.train), len(data.holdout), len(data.test)) == (9, 3, 4)


def test_an_unsorted_test_folder_does_not_count(image_folder: Maker) -> None:
    root = image_folder({"train": {"ant": 9}, "val": {"ant": 3}})
    (root / "test").mkdir()
    (root / "test" / "0001.png").write_bytes(b"")
    assert len(load_data(str(root)).test) == 3


def test_images_are_resized_and_cropped(image_folder: Maker) -> None:
    root = str(image_folder({"train": {"ant": 6}, "val": {"ant": 2}}, size=(20, 30), ext="jpg"))
    with pytest.raises(UserError, match="images are 20x30, not square; give img_size to crop them"):
        load_data(root)
    assert load_data(root, img_size=8).train.images.shape[1:] == (3, 8, 8)


def test_images_of_the_right_size_are_left_alone(image_folder: Maker) -> None:
    root = str(image_folder({"train": {"ant": 6}, "val": {"ant": 2}}))
    assert torch.equal(load_data(root, img_size=12).train.images, load_data(root).train.images)


def test_sizes_that_differ_need_a_size(image_folder: Maker) -> None:
    from PIL import Image

    root = image_folder({"train": {"ant": 6}, "val": {"ant": 2}})
    Image.new("L", (9, 9)).save(root / "train" / "ant" / "zzz.png")
    with pytest.raises(UserError, match=r"zzz.png is 9x9, others are 12x12; give img_size"):
        load_data(str(root), holdout=0)
    assert len(load_data(str(root), holdout=0, img_size=12).train) == 7


def test_a_rare_corrupt_image_is_left_out(image_folder: Maker) -> None:
    root = image_folder({"train": {"ant": 100, "bee": 50}, "val": {"ant": 1}}, size=(4, 4), ext="jpg")
    broken = root / "train" / "bee" / "0007.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.warns(UserWarning, match=r"train: 1 of 150 images cannot be read \(first: .*0007.jpg\); left out"):
        data = load_data(str(root), holdout=0)
    assert torch.bincount(data.train.labels).tolist() == [100, 49]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        broken.unlink()
        load_data(str(root), holdout=0)


def test_many_corrupt_images_are_too_many(image_folder: Maker) -> None:
    root = image_folder({"train": {"ant": 50, "bee": 50}, "val": {"ant": 1}}, size=(4, 4))
    for name in ("ant", "bee"):
        (root / "train" / name / "0003.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"2 of 100 images cannot be read .*more than 1% is too many"):
        load_data(str(root), holdout=0)
    for path in (root / "train").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="none of the 100 images can be read"):
        load_data(str(root), holdout=0)


def test_folder_errors(image_folder: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has no class folders in train/; expected train/<class>/"):
        load_data(str(tmp_path))
    root = image_folder({"train": {"ant": 5}, "val": {"ant": 1, "bee": 1}})
    with pytest.raises(UserError, match="has a class 'bee' that train/ lacks"):
        list_folder(root, 1, 0)
    (root / "train" / "bee").mkdir()
    with pytest.raises(UserError, match="bee holds no images"):
        list_folder(root, 1, 0)
    (root / "train" / "bee").rmdir()
    (root / "val" / "bee" / "0000.png").unlink()
    (root / "val" / "bee").rmdir()
    with pytest.raises(UserError, match="cannot hold out 5 images per class: class 'ant' has only 5"):
        list_folder(root, 5, 0)
    monkeypatch.setattr(folder, "IN_MEMORY_LIMIT", 100)
    with pytest.raises(UserError, match="4 images of 12 px do not fit in memory; use a smaller img_size"):
        load_data(str(root), holdout=1)
