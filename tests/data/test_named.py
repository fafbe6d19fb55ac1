"""Sets with a name, as tiny fakes in their official layouts."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from nasformer.data.sources import NAMED, load_data, open_data
from nasformer.errors import UserError


def picture(path: Path, value: int) -> None:
    """Grey in RGB: the value tells which image it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, value, value)).save(path, quality=100)


def values(images: Any) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def write_flowers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = root / "flowers-102"
    for number in range(1, 13):
        picture(base / "jpg" / f"image_{number:05d}.jpg", 10 * number)
    savemat(base / "imagelabels.mat", {"labels": np.arange(12) % 2 + 1})
    splits = {"trnid": [1, 2, 3, 4], "valid": [5, 6], "tstid": [7, 8, 9, 10, 11, 12]}
    savemat(base / "setid.mat", splits)
    unchecked = {name: (file, None) for name, (file, _) in datasets.Flowers102._file_dict.items()}
    monkeypatch.setattr(datasets.Flowers102, "_file_dict", unchecked)


def write_cars(root: Path) -> None:
    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    places = {"train": base / "devkit" / "cars_train_annos.mat", "test": base / "cars_test_annos_withlabels.mat"}
    for part, place in places.items():
        rows = np.zeros(6, dtype=[("class", object), ("fname", object)])
        for number in range(6):
            picture(base / f"cars_{part}" / f"{number:05d}.jpg", 20 * number + (part == "test") * 10)
            rows[number] = (number % 2 + 1, f"{number:05d}.jpg")
        savemat(place, {"annotations": rows})
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi 80", "BMW 3"], dtype=object)})


def write_aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("707-320\nDC-3 Dakota\n")
    for place, part in enumerate(("train", "val", "test")):
        lines = []
        for number in range(4):
            picture(data / "images" / f"{place}{number}.jpg", 60 * place + 10 * number)
            lines.append(f"{place}{number} {('707-320', 'DC-3 Dakota')[number % 2]}\n")
        (data / f"images_variant_{part}.txt").write_text("".join(lines))


def write_pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for place, part in enumerate(("trainval", "test")):
        rows = []
        for number in range(8):
            name = f"{('Abyssinian', 'american_bulldog')[number % 2]}_{number + 10 * place}"
            picture(base / "images" / f"{name}.jpg", 100 * place + 10 * number)
            rows.append(f"{name} {number % 2 + 1} {number % 2 + 1} 1\n")
        (base / "annotations" / f"{part}.txt").write_text("".join(rows))


def write_caltech(root: Path) -> None:
    base = root / "caltech101" / "101_ObjectCategories"
    for place, name in enumerate(("BACKGROUND_Google", "accordion", "yin_yang")):
        for number in range(10):
            picture(base / name / f"image_{number + 1:04d}.jpg", 80 * place + number)


def write_cub(root: Path) -> Path:
    base = root / "CUB_200_2011"
    base.mkdir(parents=True)
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    files = [f"{names[number % 2]}/bird_{number}.jpg" for number in range(10)]
    for number, file in enumerate(files):
        picture(base / "images" / file, 20 * number)

    def write(name: str, rows: list[Any]) -> None:
        (base / name).write_text("".join(f"{number} {row}\n" for number, row in enumerate(rows, 1)))

    write("classes.txt", names)
    write("images.txt", files)
    write("image_class_labels.txt", [number % 2 + 1 for number in range(10)])
    write("train_test_split.txt", [int(number < 6) for number in range(10)])
    return base


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, fine: bool) -> None:
    """Every file with pixels that tell where they are from, and no checksums."""
    kind = datasets.CIFAR100 if fine else datasets.CIFAR10
    folder, label = root / kind.base_folder, "fine_labels" if fine else "labels"
    folder.mkdir(parents=True)
    for place, (name, _) in enumerate(kind.train_list + kind.test_list):
        pixels = np.zeros((8, 3, 32, 32), np.uint8)
        pixels[:, 0], pixels[:, 1] = np.arange(8)[:, None, None], place
        entry = {"data": pixels.reshape(8, -1), label: [number % 2 for number in range(8)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: ["apple", "bear"]}))
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(kind, name, [[file, None] for file, _ in getattr(kind, name)])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": None})


def test_flowers_keep_their_official_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flowers(tmp_path, monkeypatch)
    data = load_data("flowers102", root=tmp_path)
    assert data.classes[:2] == ["pink primrose", "hard-leaved pocket orchid"]
    assert (data.num_classes, data.name) == (102, "flowers102")
    assert [values(part) for part in (data.train, data.holdout)] == [[10, 20, 30, 40], [50, 60]]
    assert values(data.test) == [70, 80, 90, 100, 110, 120]
    assert data.test.labels.tolist() == [0, 1] * 3
    assert values(load_data("flowers102", root=tmp_path, holdout=0).train) == [10, 20, 30, 40, 50, 60]


def test_cars(tmp_path: Path) -> None:
    write_cars(tmp_path)
    data = load_data("stanford_cars", root=tmp_path, holdout=1)
    assert data.classes == ["Audi 80", "BMW 3"]
    assert sorted(values(data.train) + values(data.holdout)) == [0, 20, 40, 60, 80, 100]
    assert values(data.test) == [10, 30, 50, 70, 90, 110]
    assert [value // 20 % 2 for value in values(data.train)] == data.train.labels.tolist()


def test_aircraft(tmp_path: Path) -> None:
    write_aircraft(tmp_path)
    data = load_data("fgvc_aircraft", root=tmp_path)
    assert data.classes == ["707-320", "DC-3 Dakota"]
    expected = [[0, 10, 20, 30], [60, 70, 80, 90], [120, 130, 140, 150]]
    assert [values(part) for part in (data.train, data.holdout, data.test)] == expected
    assert data.holdout.labels.tolist() == [0, 1, 0, 1]


def test_pets(tmp_path: Path) -> None:
    write_pets(tmp_path)
    data = load_data("oxford_pets", root=tmp_path, holdout=1)
    assert data.classes == ["Abyssinian", "american bulldog"]
    assert (len(data.train), len(data.holdout)) == (6, 2)
    assert values(data.test) == [100 + 10 * number for number in range(8)]
    assert data.test.labels.tolist() == [0, 1] * 4


def test_caltech_has_no_split_so_that_one_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_caltech(tmp_path)
    first, other = (load_data("caltech101", root=tmp_path, seed=seed) for seed in (0, 1))
    assert first.classes == ["accordion", "yin_yang"]
    assert Counter(first.test.labels.tolist()) == {0: 2, 1: 2}
    assert values(first.test) == values(other.test)
    assert "caltech101: no test images of its own: 4 of 20, a fifth of each class" in capsys.readouterr().err


def test_birds_by_path_and_by_name(tmp_path: Path) -> None:
    base = write_cub(tmp_path)
    data = load_data(str(base), holdout=1)
    assert data.classes == ["Black footed Albatross", "Laysan Albatross"]
    assert values(data.test) == [120, 140, 160, 180]
    assert data.test.labels.tolist() == [0, 1, 0, 1]
    assert sorted(values(data.train) + values(data.holdout)) == [0, 20, 40, 60, 80, 100]
    for again in (load_data(str(tmp_path), holdout=1), load_data("cub200", root=tmp_path, holdout=1)):
        assert torch.equal(again.train.images, data.train.images)
    with (base / "images.txt").open("a") as file:
        file.write("99 nowhere/else.jpg\n")
    with pytest.raises(UserError, match="is not cub200 in its official layout"):
        load_data("cub200", root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_cifar(tmp_path, monkeypatch, fine=name == "cifar100")
    data = load_data(name, root=tmp_path, holdout=2)
    count = 8 if name == "cifar100" else 40
    assert (len(data.train), len(data.holdout), len(data.test)) == (count - 4, 4, 8)
    assert (data.classes, data.img_size, data.in_chans) == (["apple", "bear"], 32, 3)
    assert values(data.test) == list(range(8))
    assert data.test.labels.tolist() == [0, 1] * 4
    assert load_data(name, root=tmp_path, img_size=16).img_size == 16


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_set_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_data(name, root=tmp_path)
    folder = tmp_path / NAMED[name].folder
    assert f"{name} is not at {folder}; " in str(caught.value)
    assert "--data-root" in str(caught.value)
    assert ("add --download" in str(caught.value)) == NAMED[name].downloads
    assert list(tmp_path.iterdir()) == []
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=f"is not {name} in its official layout"):
        load_data(name, root=tmp_path)


def test_downloads_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, bool]] = []

    class Pets:
        def __init__(self, root: Path, download: bool = False) -> None:
            asked.append((root, download))
            write_pets(root)

    monkeypatch.setattr(datasets, "OxfordIIITPet", Pets)
    with pytest.raises(UserError, match="add --download"):
        load_data("oxford_pets", root=tmp_path)
    assert asked == []
    assert len(load_data("oxford_pets", root=tmp_path, download=True).test) == 8
    assert asked == [(tmp_path, True)]


def test_downloads_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("<urlopen error no network>")

    monkeypatch.setattr(datasets, "Flowers102", offline)
    with pytest.raises(UserError, match=r"cannot download flowers102 \(<urlopen error no network>\)"):
        load_data("flowers102", root=tmp_path, download=True)
    with pytest.raises(UserError, match="stanford_cars cannot be downloaded; put it at"):
        load_data("stanford_cars", root=tmp_path, download=True)


def test_a_missing_image_is_one_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pets(tmp_path)
    (tmp_path / "oxford-iiit-pet" / "images" / "Abyssinian_10.jpg").unlink()
    assert len(load_data("oxford_pets", root=tmp_path, max_bad=0.1).test) == 7
    assert "Abyssinian_10.jpg ([Errno 2] No such file or directory" in capsys.readouterr().err


def test_files_can_be_streamed(tmp_path: Path) -> None:
    from nasformer.data.files import ImageFiles
    from nasformer.data.loaders import Batches
    from nasformer.data.options import AugmentOptions
    from nasformer.data.streaming import stream_files

    write_pets(tmp_path)
    files = open_data("oxford_pets", root=tmp_path, holdout=1)
    assert isinstance(files, ImageFiles)
    source = Batches(stream_files(files), AugmentOptions(crop="resized"), batch_size=4)
    x, targets = next(source.train_batches())
    assert (x.shape, targets.shape, source.classes[0]) == ((4, 3, 8, 8), (4, 2), "Abyssinian")
