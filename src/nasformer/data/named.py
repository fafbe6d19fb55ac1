"""Sets with a name, from a local folder in their official layout: those of torchvision, and CUB-200-2011.

Their own splits are used. A set with a validation split of its own (Flowers, Aircraft) has that as its hold-out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nasformer.data.files import Files, Listing
from nasformer.data.folder import class_names, list_classes
from nasformer.data.images import ImageSet, Parts
from nasformer.errors import UserError

CUB_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


@dataclass(frozen=True)
class Named:
    """A set: the folder in the data root, its class in torchvision (which can download it), and how to read it."""

    folder: str
    torchvision: str | None
    read: Callable[[str, Path], Parts | Listing]
    downloads: bool = True

    def open(self, name: str, root: Path, download: bool) -> Parts | Listing:
        if download:
            self._download(name, root)
        if not (root / self.folder).is_dir():
            fetch = "add --download" if self.downloads else "put it there by hand (it has no download)"
            raise UserError(
                f"{name} is not at {root / self.folder}; name the folder above with --data-root, or {fetch}"
            )
        try:
            return self.read(name, root)
        except (OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
            told = " ".join(str(error).split())
            raise UserError(f"{root / self.folder} is not {name} in its official layout ({told})") from error

    def _download(self, name: str, root: Path) -> None:
        if not self.downloads or not self.torchvision:
            raise UserError(f"{name} cannot be downloaded; put it at {root / self.folder} by hand")
        try:
            _torchvision(self.torchvision)(root, download=True)
        except (OSError, RuntimeError, ImportError) as error:
            raise UserError(f"cannot download {name} ({' '.join(str(error).split())}); fetch it by hand") from error


def read_cifar(name: str, root: Path) -> Parts:
    """Arrays, not files: they are in memory at once."""
    train, test = (_torchvision(name.upper())(root, train=part) for part in (True, False))
    parts = [ImageSet(_channels_first(part.data), torch.tensor(part.targets)) for part in (train, test)]
    return Parts(parts[0], parts[1], list(train.classes))


def read_flowers(name: str, root: Path) -> Listing:
    return _official("Flowers102", name, root, ("train", "val", "test"))


def read_aircraft(name: str, root: Path) -> Listing:
    return _official("FGVCAircraft", name, root, ("train", "val", "test"))


def read_cars(name: str, root: Path) -> Listing:
    return _official("StanfordCars", name, root, ("train", None, "test"))


def read_pets(name: str, root: Path) -> Listing:
    """annotations/trainval.txt and test.txt: `Abyssinian_100 1 1 1`, which is name and class, from 1."""
    base, parts, classes = root / "oxford-iiit-pet", [], dict[int, str]()
    for part in ("trainval", "test"):
        rows = [line.split() for line in (base / "annotations" / f"{part}.txt").read_text().splitlines() if line]
        parts.append(Files.of((base / "images" / f"{row[0]}.jpg", int(row[1]) - 1) for row in rows))
        classes |= {int(row[1]) - 1: row[0].rsplit("_", 1)[0].replace("_", " ") for row in rows}
    return Listing(name, parts[0], [classes[label] for label in range(len(classes))], test=parts[1])


def read_caltech(name: str, root: Path) -> Listing:
    """No split of its own, so that one is made. Its background images are no class."""
    base = root / "caltech101" / "101_ObjectCategories"
    classes = [found for found in class_names(base) if found != "BACKGROUND_Google"]
    if not classes:
        raise ValueError("no folders of classes")
    return Listing(name, list_classes(base, classes), classes)


def is_cub(folder: Path) -> bool:
    return all((folder / file).is_file() for file in CUB_FILES)


def read_cub(name: str, root: Path) -> Listing:
    return list_cub(root / "CUB_200_2011", name)


def list_cub(folder: Path, name: str | None = None) -> Listing:
    """Its text files: image number and path, class (from 1), 1 for train and 0 for test."""
    images, labels, split, names = (dict(_rows(folder / file)) for file in CUB_FILES)
    train, test = (
        Files.of((folder / "images" / path, int(labels[key]) - 1) for key, path in images.items() if split[key] == part)
        for part in ("1", "0")
    )
    classes = [re.sub(r"^\d+\.", "", names[str(number + 1)]).replace("_", " ") for number in range(len(names))]
    return Listing(name or str(folder), train, classes, test=test)


NAMED: dict[str, Named] = {
    "cifar10": Named("cifar-10-batches-py", "CIFAR10", read_cifar),
    "cifar100": Named("cifar-100-python", "CIFAR100", read_cifar),
    "flowers102": Named("flowers-102", "Flowers102", read_flowers),
    "stanford_cars": Named("stanford_cars", "StanfordCars", read_cars, downloads=False),
    "fgvc_aircraft": Named("fgvc-aircraft-2013b", "FGVCAircraft", read_aircraft),
    "caltech101": Named("caltech101/101_ObjectCategories", "Caltech101", read_caltech),
    "oxford_pets": Named("oxford-iiit-pet", "OxfordIIITPet", read_pets),
    "cub200": Named("CUB_200_2011", None, read_cub, downloads=False),
}


def _official(kind: str, name: str, root: Path, splits: tuple[str, str | None, str]) -> Listing:
    """Torchvision's sets hand the path of an image to a loader of ours, which gives it back."""
    sets = [_torchvision(kind)(root, split=part, loader=str) if part else None for part in splits]
    train, val, test = (Files.of(part[i] for i in range(len(part))) if part else None for part in sets)
    assert sets[0] is not None
    assert train is not None
    return Listing(name, train, list(sets[0].classes), val, test)


def _torchvision(kind: str) -> Any:
    from torchvision import datasets

    return getattr(datasets, kind)


def _channels_first(images: Any) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _rows(path: Path) -> list[tuple[str, str]]:
    lines = (line.strip().split(" ", 1) for line in path.read_text().splitlines() if line.strip())
    return [(key, value) for key, value in lines]
