"""How a set is split: hold-out and training subset, balanced over the classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from nasformer.data.images import Data, balanced_subset, stratified
from nasformer.data.sources import from_dataset, load_data, open_files
from nasformer.errors import UserError
from nasformer.utils.rng import generator


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 5),
)
def test_fraction_is_disjoint_exhaustive_and_balanced(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator(seed))]
    rest, taken = stratified(labels, fraction, generator(seed))
    assert sorted(rest.tolist() + taken.tolist()) == list(range(len(labels)))
    for label, count in enumerate(counts):
        found = int((labels[taken] == label).sum())
        assert found == 0 if count == 1 else 1 <= found < count
        if count * fraction >= 1:
            assert abs(found - count * fraction) <= 1


def test_fraction_takes_the_exact_total() -> None:
    labels = torch.arange(1000) % 7
    assert len(stratified(labels, 0.1234, generator(0))[1]) == math.ceil(123.4)
    assert len(stratified(labels, 0.3, generator(0))[1]) == 300


def test_int_takes_so_many_of_each_class() -> None:
    labels = torch.tensor([0] * 5 + [1] * 9 + [2] * 4)
    rest, taken = stratified(labels, 3, generator(0))
    assert torch.bincount(labels[taken]).tolist() == [3, 3, 3]
    assert torch.bincount(labels[rest]).tolist() == [2, 6, 1]


def test_the_generator_decides() -> None:
    labels = torch.arange(200) % 4
    first = stratified(labels, 0.2, generator(0))[1]
    assert torch.equal(first, stratified(labels, 0.2, generator(0))[1])
    assert not torch.equal(first, stratified(labels, 0.2, generator(1))[1])


@pytest.mark.parametrize("amount", [0, 0.0])
def test_nothing_is_a_valid_amount(amount: float | int) -> None:
    rest, taken = stratified(torch.tensor([0, 1, 1]), amount, generator(0))
    assert (rest.tolist(), taken.tolist()) == ([0, 1, 2], [])


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=8), share=st.floats(0, 1), seed=st.integers(0, 5))
def test_a_number_in_all_is_exact_and_even_where_it_can(counts: list[int], share: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = int(share * (len(labels) - len(counts)))
    rest, taken = stratified(labels, f"{images} images", generator(seed))
    assert sorted(rest.tolist() + taken.tolist()) == list(range(len(labels)))
    assert len(taken) == images
    found = torch.bincount(labels[taken], minlength=len(counts))
    for label, count in enumerate(counts):
        assert found[label] < count
        assert found[label] == count - 1 or found[label] >= found.max() - 1


def test_500_images_of_ten_classes_are_50_of_each() -> None:
    labels = torch.arange(2000) % 10
    taken = stratified(labels, "500images", generator(0))[1]
    assert torch.bincount(labels[taken]).tolist() == [50] * 10


def test_a_larger_subset_holds_the_smaller_one() -> None:
    labels = torch.arange(200) % 4
    small, large = (set(balanced_subset(labels, images, generator(3)).tolist()) for images in (40, 90))
    assert (len(small), len(large)) == (40, 90)
    assert small < large
    assert balanced_subset(labels, 200, generator(3)).tolist() == list(range(200))


def test_errors() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1])
    with pytest.raises(UserError, match="cannot hold out 2 images per class: class 'cat' has only 2"):
        stratified(labels, 2, generator(0), ["dog", "cat"])
    with pytest.raises(UserError, match="class 1 has only 2"):
        stratified(labels, 2, generator(0))
    with pytest.raises(UserError, match="cannot hold out 4 images: only 3 can be spared, since every class keeps one"):
        stratified(labels, "4 images", generator(0))
    for amount in (-1, 1.5):
        with pytest.raises(UserError, match=f"holdout is {amount}; give a share of the images below 1"):
            stratified(labels, amount, generator(0))
    with pytest.raises(UserError, match="train_images is 6, but there are only 5 to train on; give fewer"):
        balanced_subset(labels, 6, generator(0))
    with pytest.raises(UserError, match="train_images is 1, but there are 2 classes; give one for each at least"):
        balanced_subset(labels, 1, generator(0))


# The parts of a whole set, whatever it is made of

PARTS = {"train": {"ant": 40, "bee": 30, "cat": 20}, "test": {"ant": 3, "bee": 3, "cat": 3}}


def open_arrays(root: Path, **options: Any) -> dict[str, set[bytes]]:
    path, arrays = root / "set.npz", dict[str, Any]()
    for part, classes in PARTS.items():
        labels = np.repeat(np.arange(3), list(classes.values()))
        arrays[f"{part}_labels"] = labels
        arrays[f"{part}_images"] = np.random.default_rng(len(part)).integers(0, 256, (len(labels), 4, 4), np.uint8)
    np.savez(path, **arrays)
    return pixels(load_data(str(path), quiet=True, **options))


def open_folder(root: Path, **options: Any) -> dict[str, set[bytes]]:
    return pixels(load_data(str(root / "set"), quiet=True, **options))


def open_stream(root: Path, **options: Any) -> dict[str, set[bytes]]:
    splits = open_files(str(root / "set"), img_size=12, quiet=True, **options).splits
    parts = {"train": splits.train, "holdout": splits.holdout, "test": splits.test}
    return {part: set(files.paths.tolist()) for part, files in parts.items()}


def open_dataset(root: Path, **options: Any) -> dict[str, set[bytes]]:
    labels = [label for label, count in enumerate(PARTS["train"].values()) for _ in range(count)]
    items = [(np.full((4, 4), number, np.uint8), label) for number, label in enumerate(labels)]
    return pixels(from_dataset(items, items[:2], quiet=True, **options)) | {"test": set()}


def pixels(data: Data) -> dict[str, set[bytes]]:
    parts = {"train": data.train, "holdout": data.holdout, "test": data.test}
    return {name: {image.numpy().tobytes() for image in part.images} for name, part in parts.items()}


@pytest.mark.parametrize("opened", [open_arrays, open_folder, open_stream, open_dataset])
def test_hold_out_and_subset_never_overlap(
    image_folder: Callable[..., Path], tmp_path: Path, opened: Callable[..., dict[str, set[bytes]]]
) -> None:
    if opened in (open_folder, open_stream):
        image_folder(PARTS)
    whole = opened(tmp_path, holdout="15 images", seed=1)
    few = opened(tmp_path, holdout="15 images", seed=1, train_images=31)
    assert (len(whole["train"]), len(whole["holdout"])) == (75, 15)
    assert len(few["train"]) == 31
    assert few["holdout"] == whole["holdout"]
    assert few["test"] == whole["test"]
    assert few["train"] < whole["train"]
    assert not whole["train"] & whole["holdout"]
    assert opened(tmp_path, holdout="15 images", seed=1, train_images=31) == few
    other = opened(tmp_path, holdout="15 images", seed=2, train_images=31)
    assert other["holdout"] != few["holdout"]
    assert other["train"] != few["train"]


def test_a_subset_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    data = load_data("digits", train_images=100)
    assert torch.bincount(data.train.labels).tolist() == [10] * 10
    assert capsys.readouterr().err == "digits: trained on 100 of 1293 images, as train_images asks\n"
