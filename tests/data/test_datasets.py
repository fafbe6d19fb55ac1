from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import from_dataset
from nasformer.errors import UserError


class Items(Dataset[Any]):
    """Images by number, each in its own shade, in some form."""

    classes = ("even", "odd")

    def __init__(self, count: int, form: Any, broken: tuple[int, ...] = ()) -> None:
        self.count, self.form, self.broken, self.read = count, form, broken, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        if index in self.broken:
            raise OSError("image file is truncated")
        return self.form(np.full((8, 8, 3), 3 * index, np.uint8)), index % 2


FORMS: dict[str, Any] = {
    "pillow": Image.fromarray,
    "bytes": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
    "floats": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
    "array": lambda pixels: pixels,
    "float array": lambda pixels: pixels.astype(np.float64) / 255,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_bytes(form: str) -> None:
    train, test = Items(40, FORMS[form]), Items(10, FORMS[form])
    data = from_dataset(train, test, holdout=3, name="mine")
    assert (len(data.train), len(data.holdout), len(data.test)) == (34, 6, 10)
    assert (data.name, data.classes, data.in_chans, data.img_size) == ("mine", ["even", "odd"], 3, 8)
    shades = torch.cat([data.train.images, data.holdout.images])[:, 0, 0, 0]
    assert sorted(shades.tolist()) == [3 * number for number in range(40)]
    assert torch.equal(data.test.images[:, 1, 3, 4], 3 * torch.arange(10, dtype=torch.uint8))
    assert torch.equal(data.train.images[:, 0, 0, 0] // 3 % 2, data.train.labels)
    assert train.read == list(range(40))  # once each
    assert next(Batches(data, AugmentOptions(), batch_size=4).train_batches())[0].shape == (4, 3, 8, 8)


def test_a_test_set_is_made_where_none_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    first, other = (from_dataset(Items(50, FORMS["bytes"]), seed=seed) for seed in (0, 1))
    assert (len(first.train), len(first.holdout), len(first.test)) == (36, 4, 10)
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.holdout.images, other.holdout.images)
    assert "dataset: no test images of its own: 10 of 50, a fifth of each class" in capsys.readouterr().err


def test_a_hold_out_of_its_own() -> None:
    data = from_dataset(*(Items(count, FORMS["array"]) for count in (20, 6, 4)))
    assert (len(data.train), len(data.test), len(data.holdout)) == (20, 6, 4)


def test_names_of_classes() -> None:
    plain = TensorDataset(torch.zeros(12, 1, 8, 8, dtype=torch.uint8), torch.arange(12) % 3)
    assert from_dataset(plain, quiet=True).classes == ["0", "1", "2"]
    assert from_dataset(plain, quiet=True, classes=["a", "b", "c"]).classes == ["a", "b", "c"]
    with pytest.raises(UserError, match=r"labels are 0\.\.2, not 0\.\.1"):
        from_dataset(plain, quiet=True, classes=["a", "b"])
    assert from_dataset(plain, quiet=True).in_chans == 1


def test_sizes_and_channels_that_differ() -> None:
    mixed = [(Image.new("L" if number % 2 else "RGB", (10 + number, 12), 50), number % 2) for number in range(12)]
    with pytest.raises(UserError, match=r"has images of shape \(3, 12, 10\) and \(3, 12, 11\); give img_size"):
        from_dataset(mixed, quiet=True)
    data = from_dataset(mixed, quiet=True, img_size=8)
    assert data.train.images.shape[1:] == (3, 8, 8)
    assert int(data.train.images[data.train.labels == 1].min()) == 50
    tensors = [(torch.zeros(5, 9, 12), number % 2) for number in range(12)]
    assert from_dataset(tensors, quiet=True, img_size=6).in_chans == 5


def test_items_that_raise(capsys: pytest.CaptureFixture[str]) -> None:
    data = from_dataset(Items(40, FORMS["pillow"], broken=(7,)), Items(10, FORMS["pillow"]), holdout=0, max_bad=0.02)
    assert len(data.train) == 39
    assert (
        "1 of 50 images cannot be read: dataset: train[7] (image file is truncated); left out"
        in capsys.readouterr().err
    )
    with pytest.raises(UserError, match=r"2 of 50 images cannot be read: .*more than 0.01 of them is too many"):
        from_dataset(Items(40, FORMS["pillow"], broken=(7, 9)), Items(10, FORMS["pillow"]))
    with pytest.raises(UserError, match="none of the 3 items can be read"):
        from_dataset(Items(3, FORMS["pillow"], broken=(0, 1, 2)))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.randn(3, 8, 8) * 3, 0), "has floats from .*; give 0 to 1, without normalisation"),
        ((torch.zeros(3, 8, 8, dtype=torch.int32), 0), "is an image of torch.int32; give uint8"),
        ((torch.zeros(1, 3, 8, 8), 0), r"is a Tensor of shape \(1, 3, 8, 8\); give a Pillow image"),
        (("cat.jpg", 0), "is a str; give a Pillow image"),
        ((torch.zeros(3, 8, 8), "cat"), "has the label 'cat'; give a class number"),
        ((torch.zeros(3, 8, 8), 0.5), "has the label 0.5; give a class number"),
        ((torch.zeros(3, 8, 8), 0), "has one class only, '0'; a classifier needs two or more"),
    ],
)
def test_items_that_are_none(item: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_dataset([item] * 4, quiet=True)
