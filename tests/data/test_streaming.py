from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nasformer.data import streaming
from nasformer.data.decode import decode_image
from nasformer.data.files import ImageFiles
from nasformer.data.loaders import Batches, BatchSource
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import open_files
from nasformer.data.streaming import ImageStream, stream_files
from nasformer.errors import UserError

RECIPE = AugmentOptions(
    crop="resized", randaugment="rand-m9-mstd0.5-inc1", color_jitter=0.4, erasing=0.5, mixup=0.8, cutmix=1.0
)
PLAIN = AugmentOptions(crop="resized", hflip=0.0, smoothing=0.0)
AS_THEY_ARE = AugmentOptions(crop="none", hflip=0.0, smoothing=0.0)


@pytest.fixture
def root(image_folder: Callable[..., Path]) -> Path:
    parts = {"train": {"ant": 20, "bee": 22}, "val": {"ant": 5, "bee": 4}}
    return image_folder(parts, size=(24, 36), ext="jpg")


FILES = {"img_size": 16, "holdout": 3, "seed": 0, "max_bad": 0.01}


def opened(root: Path | ImageFiles, changes: dict[str, Any]) -> tuple[ImageFiles, dict[str, Any]]:
    """The files, and what is left of the settings for batches of them."""
    asked = {name: changes.pop(name) if name != "seed" else changes.get(name, 0) for name in FILES if name in changes}
    files = root if isinstance(root, ImageFiles) else open_files(str(root), **(FILES | asked))
    return files, {"augment": RECIPE, "batch_size": 8} | changes


def stream(root: Path | ImageFiles, workers: int = 1, **changes: Any) -> Batches:
    files, settings = opened(root, changes)
    return Batches(stream_files(files, workers), **settings)


def in_memory(root: Path | ImageFiles, **changes: Any) -> Batches:
    files, settings = opened(root, changes)
    return Batches(files.decode(uncropped=True), **settings)


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
    check_same(alone, take(stream(root, workers=3), 8))
    check_same(alone[5:], take(stream(root, workers=3), 3, start=5))


PAD = AugmentOptions(crop="pad", rotate=10.0, randaugment="rand-m9", erasing=0.5, cutmix=1.0)


@pytest.mark.parametrize("augment", [RECIPE, PAD, AS_THEY_ARE], ids=["resized", "pad", "none"])
@pytest.mark.parametrize("img_size", [16, 40, None], ids=["shrunk", "enlarged", "as it is"])
def test_streamed_batches_are_those_in_memory(
    image_folder: Callable[..., Path], augment: AugmentOptions, img_size: int | None
) -> None:
    size = (24, 24) if img_size is None else (24, 36)
    root = image_folder({"train": {"ant": 12, "bee": 9}, "val": {"ant": 3, "bee": 2}}, size=size, ext="jpg")
    settings: dict[str, Any] = {"augment": augment, "img_size": img_size}
    memory, streamed = in_memory(root, **settings), stream(root, **settings)
    assert (memory.mean, memory.std, memory.preprocessing) == (streamed.mean, streamed.std, streamed.preprocessing)
    assert (memory.data.uncropped is None) == (img_size is None)
    check_same(take(memory, 3, start=2), take(streamed, 3, start=2))
    for split in ("holdout", "test"):
        check_same(list(memory.evaluation(split, 4)), list(streamed.evaluation(split, 4)))  # type: ignore[arg-type]
    for shown, expected in zip(memory.calibration(9, 4), streamed.calibration(9, 4), strict=True):
        assert torch.equal(shown, expected)


@pytest.mark.parametrize("size", [(24, 24), (24, 36), (20, 90)], ids=["as it is", "scaled", "long"])
def test_batches_decoded_by_one_call(
    image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """As on a GPU, whose part the CPU takes here: with broken, turned and other files between the JPEGs."""
    root = image_folder({"train": {"ant": 12, "bee": 9}, "val": {"ant": 3, "bee": 2}}, size=size, ext="jpg")
    from PIL import Image

    turned, broken, other = (root / "train" / "ant" / f"000{number}.jpg" for number in (1, 3, 5))
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.open(turned).save(turned, exif=exif)
    truncate(broken)
    Image.open(other).save(other.with_suffix(".png"))
    other.unlink()
    settings: dict[str, Any] = {"augment": PLAIN, "img_size": size[0], "max_bad": 0.1, "holdout": 0, "batch_size": 21}
    expected, calls = take(stream(root, **settings), 3), list[int]()
    original = streaming.decode_jpegs
    monkeypatch.setattr(streaming, "decode_jpegs", lambda *args: (calls.append(len(args[0])), original(*args))[1])
    by_one_call = property(lambda self: self.fill is not None or not self.source.scaled)
    monkeypatch.setattr(ImageStream, "decodes_on_gpu", by_one_call)
    found = take(stream(root, **settings), 3)
    assert max(calls) == 19  # one is turned, one no JPEG; halved until the broken one is found
    for (x, targets), (x_too, targets_too) in zip(expected, found, strict=True):
        assert torch.equal(targets, targets_too)
        assert (x - x_too).abs().mean() < (1e-6 if size == (24, 24) else 0.1)  # scaled down on the way, or not


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [(24, 24), (24, 36)], ids=["as it is", "scaled"])
def test_a_gpu_decodes_what_the_cpu_decodes(
    tmp_path: Path, photo: Callable[..., Tensor], size: tuple[int, int]
) -> None:
    from PIL import Image

    for number, pixels in enumerate(photo(16, size=48)):
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize(size[::-1])
        path = tmp_path / "set" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=95, subsampling=0)
    settings: dict[str, Any] = {"augment": PLAIN, "img_size": 24, "holdout": 0}
    expected, found = (take(stream(tmp_path / "set", device=device, **settings), 4) for device in ("cpu", "cuda"))
    for (x, targets), (x_too, targets_too) in zip(expected, found, strict=True):
        assert torch.equal(targets, targets_too.cpu())
        assert (x - x_too.cpu()).abs().mean() < 0.03
    again = take(stream(tmp_path / "set", device="cuda", **settings), 4)
    check_same(found, again)  # bit for bit
    root = tmp_path / "set" / "a"
    truncate(root / "0.jpg")
    assert len(take(stream(tmp_path / "set", device="cuda", max_bad=0.2, **settings), 2)) == 2


def test_crops_are_taken_from_the_whole_file(tmp_path: Path) -> None:
    """The outermost columns of a wide image, which the view of evaluation does not show, are seen in training."""
    from PIL import Image

    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, :20], wide[:, -20:] = 255, 255
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(wide).save(tmp_path / "set" / name / f"{number}.png")
    source = stream(tmp_path / "set", holdout=0, img_size=28, augment=PLAIN)
    shown = torch.cat([x for x, _ in source.evaluation("train", 8)])
    assert len(shown.unique()) == 1  # black
    assert torch.cat([x for x, _ in take(source, 4)]).unique().numel() > 10


def test_the_hold_out_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, read = stream(root), list[int]()
    original = ImageStream._load
    monkeypatch.setattr(ImageStream, "_load", lambda *args: (read.append(args[1]), original(*args))[1])
    first, second = (list(source.evaluation("holdout", 4)) for _ in range(2))
    check_same(first, second)
    assert len(read) == 6
    monkeypatch.setattr(streaming, "fits", lambda *_: False)
    too_large = stream(root)
    check_same(first, list(too_large.evaluation("holdout", 4)))
    assert isinstance(too_large._split("holdout"), ImageStream)


def test_what_is_read_ahead_ends_with_its_use(root: Path) -> None:
    import threading

    before = threading.active_count()
    batches = stream(root, workers=3).train_batches()
    next(batches)
    assert threading.active_count() > before
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_resuming_decodes_nothing_of_what_came_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, read = stream(root), list[int]()
    original = ImageStream._load
    monkeypatch.setattr(ImageStream, "_load", lambda *args: (read.append(args[1]), original(*args))[1])
    take(source, 1, start=1000)
    assert 8 <= len(read) <= 8 * (1 + streaming.AHEAD)


def test_a_stream_travels_to_other_processes(root: Path) -> None:
    source = stream(root)
    check_same(take(pickle.loads(pickle.dumps(source)), 2), take(source, 2))


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
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    take(stream(root), 2)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_hold_out_is_balanced_and_never_trained_on(root: Path) -> None:
    source = stream(root, augment=PLAIN)
    held, train = source.data.holdout.files, source.data.train.files  # type: ignore[union-attr]
    assert torch.bincount(held.labels).tolist() == [3, 3]
    assert len(train) == 36
    assert not set(held.paths.tolist()) & set(train.paths.tolist())
    assert source.steps_per_epoch == 36 // 8
    other = stream(root, augment=PLAIN, seed=1).data.holdout.files  # type: ignore[union-attr]
    assert set(other.paths.tolist()) != set(held.paths.tolist())


@pytest.mark.parametrize("workers", [0, 3])
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
    source = stream(root, augment=PLAIN)
    for x, targets in take(source, 4):
        red = x[:, 0].mean(dim=(1, 2)) * source.std[0] + source.mean[0]
        assert ((red > 0.3).long() == targets.argmax(1)).all()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize("workers", [0, 3])
def test_an_unreadable_file_gives_its_place_to_the_next_of_its_class(
    root: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    """The header of a truncated file is fine, so that it is found out only when it is decoded."""
    truncate(root / "train" / "ant" / "0019.jpg")
    source = stream(root, augment=PLAIN, holdout=0, batch_size=42, max_bad=0.1, workers=workers)
    (x, targets), *_ = take(source, 1)
    assert targets.argmax(1).bincount().tolist() == [20, 22]
    red = x[:, 0].mean(dim=(1, 2)) * source.std[0] + source.mean[0]
    assert ((red > 0.3).long() == targets.argmax(1)).all()
    assert len(x) == 42
    (path,) = source.data.train.source.bad.reasons  # type: ignore[union-attr]
    assert path.endswith("train/ant/0019.jpg")
    take(source, 2)
    assert capsys.readouterr().err.count("0019.jpg (image file is truncated") == 1  # said once
    again = stream(root, augment=PLAIN, holdout=0, batch_size=42, max_bad=0.1)
    check_same(take(source, 3)[1:], take(again, 2, start=1))


def test_an_unreadable_file_is_replaced_like_its_neighbour(root: Path) -> None:
    files = open_files(str(root), holdout=0, img_size=16)
    items = ImageStream(files.splits.train, files, lambda content: decode_image(content, 3), threads=1)
    expected = items._load(3, replace=True).image
    truncate(root / "train" / "ant" / "0002.jpg")
    item = items._load(2, replace=True)
    assert torch.equal(item.image, expected)  # type: ignore[arg-type]
    assert (item.label, len(item.bad)) == (0, 1)
    for number in range(3, 20):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    first = items._load(0, replace=True).image
    assert torch.equal(items._load(2, replace=True).image, first)  # type: ignore[arg-type] # round to the first
    for number in (0, 1):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    assert items._load(2, replace=True).label == 1  # no file of the class is left


def test_evaluation_leaves_unreadable_files_out(root: Path) -> None:
    truncate(root / "val" / "bee" / "0001.jpg")
    source = stream(root, holdout=0, max_bad=0.1)
    found = list(source.evaluation("test", 1))  # one of the batches is empty
    assert torch.cat([labels for _, labels in found]).tolist() == [0] * 5 + [1] * 3
    assert sum(len(x) for x in source.calibration(42, 8)) == 42


def test_too_many_unreadable_files_end_the_stream(root: Path) -> None:
    for number in range(3):
        truncate(root / "train" / "ant" / f"{number:04d}.jpg")
    with pytest.raises(
        UserError, match=r"3 of 51 images cannot be read: .*ant/000.*; more than 0.05 of them is too many"
    ):
        take(stream(root, holdout=0, batch_size=42, max_bad=0.05), 1)


def test_errors(root: Path, image_folder: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"no file or folder .*nowhere; check the path"):
        stream(root / "nowhere")
    with pytest.raises(UserError, match="digits is not made of image files, so it cannot be streamed"):
        stream(Path("digits"))
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


def test_transparency_can_be_streamed(root: Path) -> None:
    (x, _), *_ = take(stream(open_files(str(root), in_chans=4, img_size=16)), 1)
    assert x.shape == (8, 4, 16, 16)


def test_without_augmentation_images_are_shown_as_in_evaluation(root: Path) -> None:
    source = stream(root, augment=AS_THEY_ARE, holdout=0, batch_size=42)
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
    assert stream(open_files(str(root), in_chans=3)).in_chans == 3
