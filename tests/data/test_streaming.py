from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nasformer.data.files import ImageFiles
from nasformer.data.loaders import BatchSource
from nasformer.data.options import AugmentOptions
from nasformer.data.streaming import StreamingFolder, _Items, find_files, seeded
from nasformer.errors import UserError

RECIPE = AugmentOptions(
    crop="resized", randaugment="rand-m9-mstd0.5-inc1", color_jitter=0.4, erasing=0.5, mixup=0.8, cutmix=1.0
)
PLAIN = AugmentOptions(crop="resized", hflip=0.0, smoothing=0.0)


@pytest.fixture
def root(image_folder: Callable[..., Path]) -> Path:
    parts = {"train": {"ant": 20, "bee": 22}, "val": {"ant": 5, "bee": 4}}
    return image_folder(parts, size=(24, 36), ext="jpg")


def stream(root: Path | ImageFiles, **changes: Any) -> StreamingFolder:
    settings: dict[str, Any] = {
        "augment": RECIPE,
        "batch_size": 8,
        "img_size": 16,
        "holdout": 3,
        "workers": 0,
    }
    return StreamingFolder(root, **(settings | changes))


def take(source: BatchSource, count: int, start: int = 0) -> list[tuple[Tensor, Tensor]]:
    return list(islice(source.train_batches(start), count))


def check_same(first: list[tuple[Tensor, Tensor]], second: list[tuple[Tensor, Tensor]]) -> None:
    assert len(first) == len(second) > 0
    for (x, targets), (x_too, targets_too) in zip(first, second, strict=True):
        assert torch.equal(x, x_too)
        assert torch.equal(targets, targets_too)


def test_batches_are_the_same_for_any_number_of_workers_and_on_resume(root: Path) -> None:
    alone = take(stream(root), 8)
    assert alone[0][0].shape == (8, 3, 16, 16)
    assert alone[0][1].shape == (8, 2)
    check_same(alone, take(stream(root, workers=2), 8))
    check_same(alone[5:], take(stream(root, workers=2), 3, start=5))


def test_resuming_decodes_nothing_of_what_came_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nasformer.data import streaming as module

    read: list[str] = []
    original = module.read_image

    def recording(path: str, channels: int) -> Any:
        read.append(path)
        return original(path, channels)

    monkeypatch.setattr(module, "read_image", recording)
    take(stream(root), 1, start=1000)
    assert len(read) == 8


@pytest.mark.parametrize("repeats", [1, 3])
def test_ranks_together_see_the_global_batch(root: Path, repeats: int) -> None:
    (x, targets), *_ = take(stream(root, repeats=repeats), 1, start=4)
    parts = [take(stream(root, rank=rank, world=2, repeats=repeats), 1, start=4)[0] for rank in range(2)]
    assert torch.equal(torch.cat([part for part, _ in parts]), x)
    assert torch.equal(torch.cat([part for _, part in parts]), targets)


def test_repeats_are_augmented_differently(root: Path) -> None:
    (x, _), *_ = take(stream(root, augment=PLAIN, repeats=3, batch_size=6), 1)
    assert len(x.flatten(1).unique(dim=0)) == 6


def test_global_generators_stay_as_they_were(root: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(()).item()]

    with seeded(1):
        expected = draw()
    with seeded(1):
        take(stream(root), 2)
        assert draw() == expected


def test_hold_out_is_balanced_and_never_trained_on(root: Path) -> None:
    source = stream(root, augment=PLAIN)
    held, train = source._files["holdout"], source._files["train"]
    assert torch.bincount(held.labels).tolist() == [3, 3]
    assert len(train) == 36
    assert not set(held.paths.tolist()) & set(train.paths.tolist())
    assert source.steps_per_epoch == 36 // 8
    other = stream(root, augment=PLAIN, seed=1)._files["holdout"]
    assert set(other.paths.tolist()) != set(held.paths.tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_gives_a_split_once_in_order(root: Path, workers: int) -> None:
    source = stream(root, workers=workers)
    found = list(source.evaluation("test", 4))
    assert [len(x) for x, _ in found] == [4, 4, 1]
    assert torch.cat([labels for _, labels in found]).tolist() == [0] * 5 + [1] * 4
    assert sum(len(x) for x, _ in source.evaluation("holdout", 4)) == 6
    red = torch.cat([x for x, _ in found])[:, 0].mean(dim=(1, 2))
    assert red[:5].max() < red[5:].min()  # the fixture's classes differ in red


def test_calibration_shows_training_images_as_evaluation_does(root: Path) -> None:
    source = stream(root)
    everything, _ = next(source.evaluation("train", 1000))
    shown = list(source.calibration(7, batch_size=4))
    assert [len(part) for part in shown] == [4, 3]
    index = [int((everything == image).flatten(1).all(1).nonzero()[0]) for image in torch.cat(shown)]
    assert len(set(index)) == 7
    assert index != sorted(index)  # a folder is in the order of its classes
    assert torch.equal(torch.cat(list(stream(root, rank=1, world=2).calibration(7, batch_size=4))), torch.cat(shown))


def test_labels_belong_to_their_images(root: Path) -> None:
    for x, targets in take(stream(root, augment=PLAIN), 4):
        red = x[:, 0].mean(dim=(1, 2)) * 0.229 + 0.485
        assert ((red > 0.3).long() == targets.argmax(1)).all()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_gives_its_place_to_the_next_of_its_class(
    root: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    """The header of a truncated file is fine, so that it is found out only when it is decoded."""
    truncate(root / "train" / "ant" / "0019.jpg")
    source = stream(root, augment=PLAIN, holdout=0, batch_size=42, max_bad=0.1, workers=workers)
    (x, targets), *_ = take(source, 1)
    assert targets.argmax(1).bincount().tolist() == [20, 22]
    red = x[:, 0].mean(dim=(1, 2)) * 0.229 + 0.485
    assert ((red > 0.3).long() == targets.argmax(1)).all()
    assert len(x) == 42
    (path,) = source.bad.reasons
    assert path.endswith("train/ant/0019.jpg")
    take(source, 2)
    assert capsys.readouterr().err.count("0019.jpg (image file is truncated") == 1  # said once
    again = stream(root, augment=PLAIN, holdout=0, batch_size=42, max_bad=0.1)
    check_same(take(source, 3)[1:], take(again, 2, start=1))


def test_an_unreadable_file_is_replaced_like_its_neighbour(root: Path) -> None:
    files = find_files(str(root), holdout=0, img_size=16)
    items = _Items(files.splits.train, np_tensor, 3, replace=True)
    expected = items[(3, 0)][0]
    truncate(root / "train" / "ant" / "0002.jpg")
    image, label, bad = items[(2, 0)]
    assert torch.equal(image, expected)  # type: ignore[arg-type]
    assert (label, len(bad)) == (0, 1)
    for number in range(3, 20):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    assert torch.equal(items[(2, 0)][0], items[(0, 0)][0])  # type: ignore[arg-type] # round to the first
    for number in (0, 1):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    assert items[(2, 0)][1] == 1  # no file of the class is left


def np_tensor(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_evaluation_leaves_unreadable_files_out(root: Path) -> None:
    truncate(root / "val" / "bee" / "0001.jpg")
    source = stream(root, holdout=0, max_bad=0.1)
    found = list(source.evaluation("test", 1))  # one of the batches is empty
    assert torch.cat([labels for _, labels in found]).tolist() == [0] * 5 + [1] * 3
    assert sum(len(x) for x in source.calibration(42, 8)) == 42


def test_too_many_unreadable_files_end_the_stream(root: Path) -> None:
    for number in range(3):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    source = stream(root, holdout=0, batch_size=42, max_bad=0.05)
    with pytest.raises(
        UserError, match=r"3 of 51 images cannot be read: .*ant/000.*; more than 0.05 of them is too many"
    ):
        take(source, 1)


def test_errors(root: Path, image_folder: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"no file or folder .*nowhere; check the path"):
        stream(root / "nowhere")
    with pytest.raises(UserError, match="digits is not made of image files, so it cannot be streamed"):
        stream(Path("digits"))
    with pytest.raises(UserError, match="crop=resized and rotate=0 only"):
        stream(root, augment=AugmentOptions())
    with pytest.raises(UserError, match="with 1 or 3 channels only"):
        stream(find_files(str(root), in_chans=4))
    with pytest.raises(UserError, match="no images are held out"):
        next(stream(root, holdout=0).evaluation("holdout", 4))
    with pytest.raises(UserError, match="cannot hold out 20 images per class: class 'ant' has only 20"):
        stream(root, holdout=20)
    for path in (root / "train").rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="42 of 51 images cannot be read"):
        stream(root)
    with pytest.raises(UserError, match="42 of 51 images cannot be read"):
        stream(root, max_bad=0.8)


def test_without_augmentation_images_are_shown_as_in_evaluation(root: Path) -> None:
    source = stream(root, augment=AugmentOptions(crop="none", hflip=0.0, smoothing=0.0), holdout=0, batch_size=42)
    (x, _), *_ = take(source, 1)
    (expected, _), *_ = source.evaluation("train", 42)
    assert torch.equal(x.flatten(1).sort(0).values, expected.flatten(1).sort(0).values)


def test_grey_images(root: Path) -> None:
    from PIL import Image

    for path in root.rglob("*.jpg"):
        with Image.open(path) as image:
            image.convert("L").save(path)
    source = stream(root)
    (x, _), *_ = take(source, 1)
    assert (source.in_chans, len(source.mean), x.shape) == (1, 1, (8, 1, 16, 16))
    assert next(source.evaluation("test", 4))[0].shape == (4, 1, 16, 16)
    assert stream(find_files(str(root), in_chans=3)).in_chans == 3


def test_full_magnitude_does_not_trip_over_pillow(root: Path) -> None:
    """At magnitude 10 timm posterizes to 0 bits, which Pillow 13 refuses."""
    strongest = AugmentOptions(crop="resized", randaugment="rand-m10-n4-p1-inc1")
    assert len(take(stream(root, augment=strongest), 8)) == 8
