"""Images with the boxes and masks of objects in files: COCO's JSON, or PNG masks with a number for each object.

An image that cannot be used (the file is broken, missing, or of another size than the JSON says) is left out, counted
and listed, until there are too many; so is an object (of an unknown class or image, or with an empty box).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import BadImage, read_header
from nasformer.data.files import SURVEY_THREADS, BadImages
from nasformer.data.images import Splits, make_splits
from nasformer.errors import UserError
from nasformer.layers.detection import Target
from nasformer.layers.stem import Grid
from nasformer.tasks.masks import list_folders, read_ids, read_names
from nasformer.tasks.options import DetectOptions
from nasformer.utils.files import read_annotations
from nasformer.utils.schema import from_json

Box = tuple[float, float, float, float]
SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
EXPECTED = (
    "expected annotations/instances_train2017.json with the images in train2017 (also val2017, test2017), "
    "train/_annotations.coco.json beside the images, or train/images and train/masks with a number for each object"
)


@dataclass(frozen=True)
class Instance:
    """An object in an image.

    Args:
        label: Its class, from 0 on.
        box: Left, top, right and bottom in pixels.
        area: In pixels, which decides whether COCO calls it small.
        crowd: Whether it is many of its class at once: not learned, and what is found in it is no mistake.
        mask: As pycocotools encodes it; None where boxes alone are learned.
    """

    label: int
    box: Box
    area: float
    crowd: bool = False
    mask: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Scene:
    """An image file and what is in it."""

    image: str
    rows: int
    columns: int
    instances: tuple[Instance, ...] = ()

    def target(self) -> Target:
        """The objects to learn, without crowds, as the detection head takes them."""
        chosen = [instance for instance in self.instances if not instance.crowd]
        boxes = torch.tensor([instance.box for instance in chosen]).reshape(-1, 4)
        target = {"boxes": boxes, "labels": torch.tensor([1 + one.label for one in chosen], dtype=torch.int64)}
        if all(instance.mask is not None for instance in chosen):
            masks = [decode(instance.mask) for instance in chosen if instance.mask is not None]
            empty = torch.zeros(0, self.rows, self.columns, dtype=torch.uint8)
            target["masks"] = torch.stack(masks) if masks else empty
        return target


@dataclass
class SceneFiles:
    """Images with objects. `labels` has one class for all, as an image has many: so splits are plainly random."""

    scenes: list[Scene]
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.labels = torch.zeros(len(self.scenes), dtype=torch.int64)

    @property
    def images(self) -> list[str]:
        return [scene.image for scene in self.scenes]

    def __len__(self) -> int:
        return len(self.scenes)

    def subset(self, indices: Tensor) -> SceneFiles:
        return SceneFiles([self.scenes[index] for index in indices.tolist()])

    def __add__(self, other: SceneFiles) -> SceneFiles:
        return SceneFiles(self.scenes + other.scenes)


# Masks


def coco_mask() -> Any:
    """pycocotools' masks."""
    try:
        from pycocotools import mask
    except ImportError:
        raise UserError("--task detect needs pycocotools; install it: pip install 'nasformer[dense]'") from None
    return mask


def decode(mask: Mapping[str, Any]) -> Tensor:
    """uint8 [rows, columns]."""
    return torch.from_numpy(np.ascontiguousarray(coco_mask().decode(mask)))


def encode(masks: np.ndarray) -> list[Mapping[str, Any]]:
    """Masks [n, rows, columns] as run lengths."""
    return coco_mask().encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))


def read_mask(segmentation: Any, shape: Grid) -> Mapping[str, Any]:
    """Polygons or run lengths of COCO's JSON as run lengths; raises BadImage."""
    tools, (rows, columns) = coco_mask(), shape
    if isinstance(segmentation, list) and segmentation:
        polygons = [polygon for polygon in segmentation if isinstance(polygon, list)]
        if len(polygons) < len(segmentation) or any(len(polygon) < 6 or len(polygon) % 2 for polygon in polygons):
            raise BadImage("a polygon of its mask has no three corners")
        if not all(isinstance(value, int | float) and math.isfinite(value) for part in polygons for value in part):
            raise BadImage("a polygon of its mask has a corner that is no number")
        return tools.merge(tools.frPyObjects(polygons, rows, columns))
    if not isinstance(segmentation, dict) or not segmentation.get("counts"):
        raise BadImage("it has no mask (--detect.masks false learns boxes alone)")
    if segmentation.get("size") != [rows, columns]:
        raise BadImage(f"its mask is {segmentation.get('size')}, the image {[rows, columns]}")
    counts = segmentation["counts"]
    if isinstance(counts, list):
        whole = all(isinstance(count, int) and count >= 0 for count in counts)
        if not whole or sum(counts) != rows * columns:
            raise BadImage("the run lengths of its mask do not add up to the image")
        return tools.frPyObjects(segmentation, rows, columns)
    compressed = {"size": [rows, columns], "counts": counts}
    try:
        tools.decode(compressed)
    except (ValueError, TypeError, AttributeError) as error:  # pycocotools' own checks
        raise BadImage(f"the run lengths of its mask cannot be read ({error})") from None
    return compressed


# COCO's JSON


@dataclass(frozen=True)
class CocoImage:
    id: int
    file_name: str
    width: int
    height: int


@dataclass(frozen=True)
class CocoCategory:
    id: int
    name: str


@dataclass(frozen=True)
class CocoFile:
    """A JSON file of instances. Objects are checked one by one, as one that is wrong is left out."""

    images: list[CocoImage]
    categories: list[CocoCategory]
    annotations: list[dict[str, Any]]

    @classmethod
    def load(cls, path: Path) -> CocoFile:
        return from_json(cls, read_annotations(path), path, "give instances in the format of COCO")


def find_coco(root: Path) -> dict[str, Path]:
    """The JSON file of each part."""
    files = [*sorted((root / "annotations").glob("instances_*.json")), *sorted((root / "annotations").glob("*.json"))]
    files += sorted(root.glob("*/_annotations.coco.json"))
    found: dict[str, Path] = {}
    for file in files:
        name = file.parent.name if file.name == "_annotations.coco.json" else file.stem.removeprefix("instances_")
        for word, split in SPLITS.items():
            if name.rstrip("0123456789") == word:
                found.setdefault(split, file)
    return found if "train" in found else {}


def image_folder(root: Path, file: Path, first: str) -> Path:
    """Where the images of a JSON file are."""
    name = file.stem.removeprefix("instances_")
    places = (root / name, root / "images" / name, root / "images", file.parent, root)
    return next((place for place in places if (place / first).is_file()), places[0])


def read_coco(file: Path, root: Path, classes: Mapping[int, int], masks: bool, bad: BadImages) -> list[Scene]:
    """The images of a JSON file with their objects; objects that cannot be used are noted.

    Args:
        classes: Numbers of classes by the ids of categories.
    """
    content = CocoFile.load(file)
    images = {image.id: image for image in content.images}
    objects: dict[int, list[Instance]] = {number: [] for number in images}
    for number, raw in enumerate(content.annotations):
        try:
            asked = raw.get("image_id")
            image = images.get(asked) if isinstance(asked, int) else None
            if image is None:
                raise BadImage(f"it is of the image {asked}, which is not listed")
            objects[image.id].append(read_instance(raw, (image.height, image.width), classes, masks))
        except BadImage as error:
            bad.add(f"{file}: annotation {raw.get('id', number)}", str(error))
    bad.check(len(content.annotations), str(file))
    folder = image_folder(root, file, content.images[0].file_name if content.images else "")
    return [
        Scene(str(folder / image.file_name), image.height, image.width, tuple(objects[image.id]))
        for image in content.images
    ]


def read_instance(raw: Mapping[str, Any], shape: Grid, classes: Mapping[int, int], masks: bool) -> Instance:
    """An annotation of COCO's JSON; what reaches beyond the image is cut off. Raises BadImage."""
    category = raw.get("category_id")
    if not isinstance(category, int) or category not in classes:
        raise BadImage(f"its category {category} is not listed")
    box = clipped_box(raw.get("bbox"), shape)
    mask = read_mask(raw.get("segmentation"), shape) if masks else None
    area = raw.get("area")
    if not isinstance(area, int | float) or not math.isfinite(area):
        area = (box[2] - box[0]) * (box[3] - box[1])
    return Instance(classes[category], box, area, bool(raw.get("iscrowd")), mask)


def clipped_box(values: Any, shape: Grid) -> Box:
    """Left, top, right and bottom, within the image, of a box that is given by left, top, width and height.

    >>> clipped_box([10, 20, 30, 40], (50, 100))
    (10.0, 20.0, 40.0, 50.0)
    """
    try:
        left, top, width, height = (float(value) for value in values)
    except (TypeError, ValueError):
        raise BadImage("its box is not left, top, width and height") from None
    if not all(map(math.isfinite, (left, top, width, height))):
        raise BadImage("its box has a number that is not finite")
    right, bottom = min(left + width, float(shape[1])), min(top + height, float(shape[0]))
    left, top = max(left, 0.0), max(top, 0.0)
    if right <= left or bottom <= top:
        raise BadImage("its box is empty or outside of the image")
    return left, top, right, bottom


# PNG masks


def read_png(image: str, path: str, masks: bool) -> Scene:
    """An image whose mask has 0 where there is nothing, and a number of its own for each object; raises BadImage."""
    ids = read_ids(path)
    numbers = [number for number in np.unique(ids).tolist() if number]
    shapes = ids[None] == np.array(numbers)[:, None, None]
    encoded: list[Any] = encode(shapes) if numbers and masks else [None] * len(numbers)
    instances = [
        Instance(0, mask_box(shape), float(shape.sum()), mask=mask) for shape, mask in zip(shapes, encoded, strict=True)
    ]
    return Scene(image, ids.shape[0], ids.shape[1], tuple(instances))


def mask_box(mask: np.ndarray) -> Box:
    """
    >>> mask_box(np.array([[0, 0, 0], [0, 1, 1]]))
    (1.0, 1.0, 3.0, 2.0)
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


# A folder


@dataclass(frozen=True)
class SceneData:
    """Images with objects in three parts, all of which can be used."""

    name: str
    splits: Splits[SceneFiles]
    labels: SceneLabels
    pixels: int
    """Of all images together, to know what they take in memory."""


@dataclass(frozen=True)
class SceneLabels:
    classes: list[str]


def open_scenes(
    root: Path,
    options: DetectOptions,
    bad: BadImages,
    *,
    holdout: float | str,
    seed: int,
    train_images: int | None = None,
) -> SceneData:
    """Reads, splits and checks the images of a folder; one that is left out moves no other one."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; name one with images and objects: {EXPECTED}")
    coco_mask()  # says what to install before anything is read
    bad_objects = BadImages(bad.limit, bad.log, bad.quiet, what="objects cannot be used")
    parts, classes = read_parts(root, options.masks is not False, bad, bad_objects)
    # As VOC's and ADE20K's: the val part of a set without a test part is the test part.
    val, test = (parts.get("val"), parts["test"]) if "test" in parts else (None, parts.get("val"))
    splits = make_splits(parts["train"], val, test, classes, holdout=holdout, seed=seed, train_images=train_images)
    total, checked = len(splits), [SceneFiles(list(check_scenes(part, bad))) for part in splits.parts()]
    objects = sum(len(scene.instances) for part in checked for scene in part.scenes)
    bad.check(total, str(root))
    bad.tell(total, str(root))
    bad_objects.tell(objects + len(bad_objects.reasons), str(root))
    if not len(checked[0]) or not len(checked[2]):
        raise UserError(f"{root}: no image of the train or of the test part can be used; check images and annotations")
    if not any(scene.instances for scene in checked[0].scenes):
        raise UserError(f"{root}: the training images have no objects; check the annotations")
    pixels, (train, held_out, last) = sum(one.rows * one.columns for part in checked for one in part.scenes), checked
    used = Splits(train, held_out, last, classes, splits.notes)
    return SceneData(str(root), used, SceneLabels(classes), pixels)


def read_parts(
    root: Path, masks: bool, bad: BadImages, bad_objects: BadImages
) -> tuple[dict[str, SceneFiles], list[str]]:
    """The parts of a folder, by name, and the names of the classes."""
    if files := find_coco(root):
        categories = sorted(CocoFile.load(files["train"]).categories, key=lambda category: category.id)
        if not categories:
            raise UserError(f"{files['train']} lists no categories; add them")
        classes = {category.id: number for number, category in enumerate(categories)}
        parts = {split: read_coco(file, root, classes, masks, bad_objects) for split, file in files.items()}
        return {split: SceneFiles(scenes) for split, scenes in parts.items()}, [one.name for one in categories]
    if (listing := list_folders(root)) is None:
        raise UserError(f"{root} has no images with objects; {EXPECTED}")
    pairs = {"train": listing.train, "val": listing.val, "test": listing.test}
    found = {split: SceneFiles(list(read_pngs(part, masks, bad))) for split, part in pairs.items() if part is not None}
    names = root / "classes.txt"
    return found, list(read_names(names).values())[:1] if names.is_file() else ["object"]


def read_pngs(files: Any, masks: bool, bad: BadImages) -> Iterator[Scene]:
    def read(image: str, mask: str) -> Scene | str:
        try:
            return read_png(image, mask, masks)
        except BadImage as error:
            return str(error)

    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        for image, found in zip(files.images, pool.map(read, files.images, files.masks), strict=True):
            if isinstance(found, str):
                bad.add(image, found)
            else:
                yield found


def check_scenes(files: SceneFiles, bad: BadImages) -> Iterable[Scene]:
    """The images that can be read and have the size that is said; others are noted."""

    def check(scene: Scene) -> str:
        try:
            (width, height), _ = read_header(scene.image)
        except BadImage as error:
            return str(error)
        said, true = f"{scene.columns} x {scene.rows}", f"{width} x {height}"
        return "" if said == true else f"its annotation is for {said} pixels, it has {true}"

    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        for scene, reason in zip(files.scenes, pool.map(check, files.scenes), strict=True):
            if reason:
                bad.add(scene.image, reason)
            else:
                yield scene
