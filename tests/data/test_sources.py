from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nasformer.data.images import Data, ImageSet
from nasformer.data.sources import load_data
from nasformer.errors import UserError


def rows(images: ImageSet) -> list[bytes]:
    return [image.numpy().tobytes() for image in images.images]


def arrays(**changes: Any) -> dict[str, Any]:
    source = np.random.default_rng(0)
    plain: dict[str, Any] = {
        "train_images": source.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8),
        "train_labels": np.arange(40) % 4,
        "test_images": source.integers(0, 256, (8, 6, 6, 3), dtype=np.uint8),
        "test_labels": np.arange(8) % 4,
    }
    return {key: value for key, value in (plain | changes).items() if value is not None}


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        np.savez(tmp_path / "set.npz", **arrays(**changes))
        return str(tmp_path / "set.npz")

    return write


def check_partition(data: Data, expected: list[bytes]) -> None:
    """Train and hold-out together are the given images, each exactly once."""
    assert sorted(rows(data.train) + rows(data.holdout)) == sorted(expected)


def test_digits() -> None:
    data = load_data("digits", holdout=0.1)
    assert (len(data.train) + len(data.holdout), len(data.test)) == (1437, 360)
    assert data.train.images.shape[1:] == (1, 8, 8)
    assert int(data.train.images.max()) == 255
    assert data.classes == [str(i) for i in range(10)]
    counts = torch.bincount(data.test.labels)
    assert counts.max() - counts.min() <= 2
    assert torch.bincount(data.holdout.labels).min() >= 14


def test_seed_moves_the_hold_out_and_never_the_test() -> None:
    first, same, other = (load_data("digits", seed=seed) for seed in (0, 0, 1))
    assert rows(first.holdout) == rows(same.holdout)
    assert rows(first.train) == rows(same.train)
    assert rows(first.holdout) != rows(other.holdout)
    assert rows(first.test) == rows(other.test)
    check_partition(other, rows(first.train) + rows(first.holdout))


def test_npz(npz: Callable[..., str]) -> None:
    data = load_data(npz(classes=np.array(["ant", "bee", "cat", "dog"])), holdout=2)
    assert data.classes == ["ant", "bee", "cat", "dog"]
    assert load_data(npz(classes=np.array([b"ant", b"bee", b"cat", b"\xff"]))).classes[2:] == ["cat", r"\xff"]
    assert torch.bincount(data.holdout.labels).tolist() == [2, 2, 2, 2]
    assert (data.name, data.in_chans, data.img_size) == ("set", 3, 6)
    images = arrays()["train_images"].transpose(0, 3, 1, 2)
    check_partition(data, [np.ascontiguousarray(image).tobytes() for image in images])
    assert data.mean == pytest.approx((data.train.images.double() / 255).mean(dim=(0, 2, 3)).tolist())


def test_npz_grey_and_resized(npz: Callable[..., str]) -> None:
    data = load_data(npz(train_images=arrays()["train_images"][..., 0], test_images=arrays()["test_images"][..., 0]))
    assert (data.in_chans, data.img_size, data.classes) == (1, 6, ["0", "1", "2", "3"])
    bigger = load_data(npz(), img_size=12)
    assert bigger.img_size == bigger.test.images.shape[-1] == bigger.holdout.images.shape[-2] == 12


def test_npz_hold_out_of_its_own_is_used_as_it_is(npz: Callable[..., str]) -> None:
    own = np.full((3, 6, 6, 3), 9, dtype=np.uint8)
    data = load_data(npz(holdout_images=own, holdout_labels=np.array([0, 1, 1])), holdout=0.5)
    assert (len(data.train), len(data.holdout)) == (40, 3)
    assert (data.holdout.images == 9).all()
    alone = load_data(npz(holdout_images=own, holdout_labels=np.array([0, 1, 1])), holdout=0)
    assert (len(alone.train), len(alone.holdout)) == (43, 0)


def test_no_hold_out(npz: Callable[..., str]) -> None:
    data = load_data(npz(), holdout=0, img_size=5)
    assert (len(data.train), len(data.holdout)) == (40, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": None, "test_images": None}, "lacks train_labels, test_images; add them"),
        ({"holdout_images": np.zeros((1, 6, 6, 3), np.uint8)}, "lacks holdout_labels"),
        ({"train_images": np.zeros((40, 6, 6, 3))}, "train_images is float64 of shape"),
        ({"train_images": np.zeros((40, 6), np.uint8)}, r"train_images is uint8 of shape \(40, 6\)"),
        ({"test_images": np.zeros((8, 3, 6, 6), np.uint8)}, "put channels last"),
        ({"train_images": np.zeros((40, 6, 6, 0), np.uint8)}, r"shape \(40, 6, 6, 0\) has no pixels; give"),
        ({"test_images": np.zeros((8, 0, 6), np.uint8)}, r"test_images of shape \(8, 0, 6\) has no pixels"),
        ({"train_images": np.array(3, np.uint8)}, r"train_images is uint8 of shape \(\); give uint8"),
        ({"classes": np.array("ant")}, r"classes is <U3 of shape \(\); give one name for each class"),
        ({"classes": np.array([["a", "b"]])}, r"classes is <U1 of shape \(1, 2\)"),
        ({"classes": np.array([0.5, 1.5, 2.5, 3.5])}, "classes is float64"),
        ({"classes": np.array(["a", "b", "c", None], dtype=object)}, "cannot read .*allow_pickle"),
        ({"train_labels": np.full(40, 10**12)}, "class '0' has no training image; number classes without gaps"),
        ({"test_labels": np.zeros(8)}, "test_labels is float64"),
        ({"train_labels": np.zeros((40, 2), int)}, r"train_labels is int64 of shape \(40, 2\)"),
        ({"train_labels": np.zeros(39, int)}, "40 train_images but 39 train_labels"),
        (
            {"train_labels": np.arange(40) % 4 + 1},
            "class '0' has no training image; number classes without gaps",
        ),
        ({"train_labels": np.arange(40) % 4 - 1}, r"train labels are -1..2, not 0..2"),
        ({"test_labels": np.arange(8)}, r"test labels are 0..7, not 0..3"),
        (
            {"classes": np.array(["a"]), "train_labels": np.zeros(40, int)},
            "has one class only, 'a'; a classifier needs",
        ),
        ({"classes": np.array(["a", "b"])}, r"train labels are 0..3, not 0..1"),
        (
            {"train_images": np.zeros((0, 6, 6, 3), np.uint8), "train_labels": np.zeros(0, int)},
            "train is empty",
        ),
        ({"test_images": np.zeros((0, 6, 6, 3), np.uint8), "test_labels": np.zeros(0, int)}, "test is empty"),
        ({"test_images": np.zeros((8, 6, 6), np.uint8)}, "parts differ in image shape"),
        (
            {"train_labels": np.array(["a"] * 40, dtype=object)},
            "cannot read .*allow_pickle.*write plain arrays",
        ),
    ],
)
def test_npz_errors(npz: Callable[..., str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_data(npz(**changes))
    assert "\n" not in str(caught.value)


def test_non_square_npz_needs_a_size(npz: Callable[..., str]) -> None:
    wide = {
        "train_images": np.zeros((40, 6, 8, 3), np.uint8),
        "test_images": np.zeros((8, 6, 8, 3), np.uint8),
    }
    with pytest.raises(UserError, match="6x8, not square; give img_size"):
        load_data(npz(**wide))
    assert load_data(npz(**wide), img_size=6).img_size == 6


@pytest.mark.parametrize("damage", ["no zip", "cut off", "flipped"])
def test_unreadable_npz(npz: Callable[..., str], damage: str) -> None:
    path = Path(npz())
    whole = path.read_bytes()
    middle = len(whole) // 4
    flipped = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 99]) + whole[middle + 99 :]
    path.write_bytes({"no zip": b"hello", "cut off": whole[:middle], "flipped": flipped}[damage])
    with pytest.raises(UserError, match=r"cannot read .*set.npz \(.*\); write plain arrays") as caught:
        load_data(str(path))
    assert "\n" not in str(caught.value)


def test_npy_in_disguise(tmp_path: Path) -> None:
    with (tmp_path / "set.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UserError, match="cannot read"):
        load_data(str(tmp_path / "set.npz"))


def test_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown dataset 'digit', known: caltech101, .* digits, .*; did you mean 'digits'"
    ):
        load_data("digit")
    with pytest.raises(UserError, match=r"unknown dataset 'xyzzy', known: .*; give one of these"):
        load_data("xyzzy")
    with pytest.raises(UserError, match=r"no file or folder .*missing.npz; check the path"):
        load_data(str(tmp_path / "missing.npz"))
    with pytest.raises(UserError, match="no file or folder some/folder"):
        load_data("some/folder")
    (tmp_path / "set.zip").touch()
    with pytest.raises(UserError, match=r"neither an \.npz file nor a folder"):
        load_data(str(tmp_path / "set.zip"))
    with pytest.raises(UserError, match="img_size 0 is not a size"):
        load_data("digits", img_size=0)
