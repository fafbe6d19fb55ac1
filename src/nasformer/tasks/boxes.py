"""Images with the boxes and masks of objects in files: COCO's JSON, or PNG masks with a number for each object.

An image that cannot be used (the file is broken, missing, or of another size than the JSON says) is left out, counted
and listed, until there are too many; so is an object (of an unknown class or image, or with an empty box).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from nasformer.data.decode import BadImage
from nasformer.data.files import BadImages
from nasformer.data.images import SplitAmounts, Splits, make_splits
from nasformer.data.sources import made_for
from nasformer.errors import UserError
from nasformer.layers.detection import Target
from nasformer.layers.stem import Grid
from nasformer.tasks.masks import (
    FileData,
    MaskFiles,
    check_all,
    check_image,
    check_unique,
    list_folders,
    read_ids,
    read_names,
    val_and_test,
)
from nasformer.tasks.options import DetectOptions
from nasformer.utils.files import read_annotations
from nasformer.utils.progress import say
from nasformer.utils.schema import from_json

Box = tuple[float, float, float, float]
FAR = 10
"""Distance, in sides of the image, from which on a corner of a polygon is refused rather than cut off."""
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
    """An image file and its objects."""

    image: str
    rows: int
    columns: int
    instances: tuple[Instance, ...] = ()

    def target(self) -> Target:
        """The objects to learn, without crowds, as the detection head takes them."""
        chosen = [instance for instance in self.instances if not instance.crowd]
        boxes = torch.tensor([instance.box for instance in chosen]).reshape(-1, 4)
        labels = torch.tensor([1 + instance.label for instance in chosen], dtype=torch.int64)
        target = {"boxes": boxes, "labels": labels}
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
    """A mask in run lengths as uint8 [rows, columns]."""
    return torch.from_numpy(np.ascontiguousarray(coco_mask().decode(mask)))


def encode(masks: np.ndarray) -> list[Mapping[str, Any]]:
    """Masks [n, rows, columns] as run lengths."""
    return coco_mask().encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))


def read_mask(segmentation: Any, shape: Grid) -> Mapping[str, Any]:
    """Polygons or run lengths of COCO's JSON as run lengths; raises BadImage."""
    if isinstance(segmentation, list) and segmentation:
        mask = read_polygons(segmentation, shape)
    elif isinstance(segmentation, dict) and segmentation.get("counts"):
        mask = read_run_lengths(segmentation, shape)
    else:
        raise BadImage("it has no mask (--detect.masks false learns boxes alone)")
    if not coco_mask().area(mask):
        raise BadImage("its mask has no pixel")
    return mask


def read_polygons(segmentation: list[Any], shape: Grid) -> Mapping[str, Any]:
    tools, (rows, columns) = coco_mask(), shape
    polygons = [polygon for polygon in segmentation if isinstance(polygon, list)]
    if len(polygons) < len(segmentation) or any(len(polygon) < 6 or len(polygon) % 2 for polygon in polygons):
        raise BadImage("a polygon of its mask has no three corners")
    values = [value for polygon in polygons for value in polygon]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise BadImage("a polygon of its mask has a corner that is no number")
    if max(map(abs, values)) > FAR * max(shape):  # pycocotools walks along every edge, and may crash
        raise BadImage("a polygon of its mask has a corner far outside of the image")
    return tools.merge(tools.frPyObjects(polygons, rows, columns))


def read_run_lengths(segmentation: Mapping[str, Any], shape: Grid) -> Mapping[str, Any]:
    """Run lengths as they are, or compressed; pycocotools would read and write wherever wrong ones lead it."""
    (rows, columns), counts = shape, segmentation["counts"]
    if segmentation.get("size") != [rows, columns]:
        raise BadImage(f"its mask is {segmentation.get('size')}, the image {[rows, columns]}")
    lengths = uncompressed(counts) if isinstance(counts, str) else counts
    if not isinstance(lengths, list) or not all(isinstance(length, int) and length >= 0 for length in lengths):
        raise BadImage("the run lengths of its mask cannot be read")
    if sum(lengths) != rows * columns:
        raise BadImage("the run lengths of its mask do not add up to the image")
    return coco_mask().frPyObjects({"size": [rows, columns], "counts": lengths}, rows, columns)


def uncompressed(counts: str) -> list[int] | None:
    """Run lengths of COCO's text, five bits a letter; from the third on, the difference to the last but one.

    >>> uncompressed("52203")
    [5, 2, 2, 2, 5]
    """
    lengths, value, shift = list[int](), 0, 0
    for letter in counts:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= 1 << shift if bits & 16 else 0
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    return None if shift else lengths


# COCO's JSON


@dataclass(frozen=True)
class CocoImage:
    """An entry of `images`."""

    id: int
    file_name: str
    width: int
    height: int


@dataclass(frozen=True)
class CocoCategory:
    """An entry of `categories`."""

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
        content = read_annotations(path)
        entries = content.get("annotations")
        if isinstance(entries, list) and any(isinstance(entry, dict) and "segments_info" in entry for entry in entries):
            raise UserError(f"{path} has panoptic segments; give COCO's instances, or learn them with --task panoptic")
        return from_json(cls, content, path, "give instances in the format of COCO")


def find_coco(root: Path) -> dict[str, Path]:
    """The JSON file of each part."""
    files = [*sorted((root / "annotations").glob("instances_*.json")), *sorted((root / "annotations").glob("*.json"))]
    files += sorted(root.glob("*/_annotations.coco.json"))
    by_part: dict[str, Path] = {}
    for file in files:
        name = file.parent.name if file.name == "_annotations.coco.json" else file.stem.removeprefix("instances_")
        for word, split in SPLITS.items():
            if name.rstrip("0123456789") == word:
                by_part.setdefault(split, file)
    return by_part if "train" in by_part else {}


def image_folder(root: Path, file: Path, first: str) -> Path:
    """The folder with the images of a JSON file."""
    name = file.stem.removeprefix("instances_")
    folders = (root / name, root / "images" / name, root / "images", file.parent, root)
    return next((folder for folder in folders if (folder / first).is_file()), folders[0])


def read_coco(
    file: Path, root: Path, categories: Mapping[int, CocoCategory], masks: bool, bad: BadImages, bad_objects: BadImages
) -> list[Scene]:
    """The images of a JSON file with their objects; those that cannot be used are recorded and left out.

    Args:
        categories: Those of the training file by their ids, in the order of classes.
    """
    content, classes = CocoFile.load(file), {number: index for index, number in enumerate(categories)}
    check_categories(file, content.categories, categories)
    images = unique_images(file, content.images, bad)
    objects: dict[int, list[Instance]] = {number: [] for number in images}
    for number, raw in enumerate(content.annotations):
        try:
            of_image = raw.get("image_id")
            image = images.get(of_image) if isinstance(of_image, int) else None
            if image is None:
                raise BadImage(f"it is of the image {of_image}, which is not listed")
            instance = read_instance(raw, (image.height, image.width), classes, masks)
            if instance in objects[image.id]:
                raise BadImage("the same object is listed before")
            objects[image.id].append(instance)
        except BadImage as error:
            bad_objects.add(f"{file}: annotation {raw.get('id', number)}", str(error))
    bad_objects.check(len(content.annotations), str(file))
    folder = image_folder(root, file, content.images[0].file_name if content.images else "")
    return [
        Scene(str(folder / image.file_name), image.height, image.width, tuple(objects[image.id]))
        for image in images.values()
    ]


def check_categories(file: Path, categories: Sequence[Any], others: Mapping[int, Any]) -> None:
    """Refuses categories of a file that are ambiguous or contradict those of the training file.

    Args:
        others: Those of the training file by id; an object of another id is noted as it is read.
    """
    check_unique([category.id for category in categories], f"{file} has two categories with the id")
    check_unique([category.name for category in categories], f"{file} has two categories named")
    for category in categories:
        if (other := others.get(category.id, category)) != category:
            raise UserError(
                f"{file}: category {category.id} ({category.name}) has another name or kind than in the training file "
                f"({other.name}); give both the same categories"
            )


def unique_images(file: Path, images: Iterable[CocoImage], bad: BadImages) -> dict[int, CocoImage]:
    """The images of a JSON file by id; those whose id or file occurs before are recorded and left out."""
    by_id, names = dict[int, CocoImage](), set[str]()
    for image in images:
        if image.id in by_id or image.file_name in names:
            reason = f"another image has its id {image.id}" if image.id in by_id else "it is listed twice"
            bad.add(f"{file}: image {image.file_name} of id {image.id}", reason)
        else:
            by_id[image.id] = image
            names.add(image.file_name)
    return by_id


def read_instance(raw: Mapping[str, Any], shape: Grid, classes: Mapping[int, int], masks: bool) -> Instance:
    """An object from an annotation of COCO's JSON, clipped to the image; raises BadImage."""
    category = raw.get("category_id")
    if not isinstance(category, int) or category not in classes:
        raise BadImage(f"its category {category} is not listed")
    box = clipped_box(raw.get("bbox"), shape)
    mask = read_mask(raw.get("segmentation"), shape) if masks else None
    area = raw.get("area")
    if not isinstance(area, int | float) or not 0 < area < math.inf:
        area = (box[2] - box[0]) * (box[3] - box[1])
    if (crowd := raw.get("iscrowd", 0)) not in (0, 1):
        raise BadImage(f"its iscrowd is {crowd!r}, which must be 0 or 1")
    return Instance(classes[category], box, area, bool(crowd), mask)


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
    """The box around the pixels of a mask.

    >>> mask_box(np.array([[0, 0, 0], [0, 1, 1]]))
    (1.0, 1.0, 3.0, 2.0)
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


# A folder


def open_scenes(root: Path, options: DetectOptions, bad: BadImages, **amounts: Unpack[SplitAmounts]) -> FileData:
    """Reads, splits and checks the images of a folder; one that is left out does not move others."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; name one with images and objects: {EXPECTED}")
    coco_mask()  # says what to install before anything is read
    bad_objects = BadImages(bad.limit, bad.log, bad.quiet, what="objects cannot be used")
    parts, classes = read_parts(root, options.masks is not False, bad, bad_objects)
    check_listed_once(parts, root)
    splits = make_splits(parts["train"], *val_and_test(parts), classes, **amounts)
    total, checked = len(splits), [SceneFiles(check_scenes(part, bad)) for part in splits.parts()]
    objects = sum(len(scene.instances) for part in checked for scene in part.scenes)
    bad.check(total, str(root))
    bad.tell(total, str(root))
    bad_objects.tell(objects + len(bad_objects.reasons), str(root))
    if not len(checked[0]) or not len(checked[2]):
        raise UserError(f"{root}: no image of the train or of the test part can be used; check images and annotations")
    if not any(not instance.crowd for scene in checked[0].scenes for instance in scene.instances):
        raise UserError(f"{root}: the training images have no objects; check the annotations")
    pixels = sum(scene.rows * scene.columns for part in checked for scene in part.scenes)
    train, held_out, last = checked
    return FileData(Splits(train, held_out, last, classes, splits.notes), pixels)


def read_parts(
    root: Path, masks: bool, bad: BadImages, bad_objects: BadImages
) -> tuple[dict[str, SceneFiles], list[str]]:
    """The parts of a folder, by name, and the names of the classes."""
    if files := find_coco(root):
        listed = sorted(CocoFile.load(files["train"]).categories, key=lambda category: category.id)
        if not listed:
            raise UserError(f"{files['train']} lists no categories; add them")
        check_categories(files["train"], listed, {})
        categories = {category.id: category for category in listed}
        parts = {split: read_coco(file, root, categories, masks, bad, bad_objects) for split, file in files.items()}
        return {split: SceneFiles(scenes) for split, scenes in parts.items()}, [category.name for category in listed]
    if (listing := list_folders(root)) is None:
        raise UserError(f"{root} has no images with objects; {EXPECTED}{made_for(root, 'detect')}")
    name = object_name(root)
    if not name:
        check_objects(root, listing.train)
    pairs = {"train": listing.train, "val": listing.val, "test": listing.test}
    scenes = {split: SceneFiles(read_pngs(part, masks, bad)) for split, part in pairs.items() if part is not None}
    if not name and not bad.quiet:
        objects = sum(len(scene.instances) for part in scenes.values() for scene in part.scenes)
        read = sum(map(len, scenes.values()))
        say(f"{root}: each value of a mask but 0 is taken for one object: {objects} in {read} images")
    return scenes, [name or "object"]


def object_name(root: Path) -> str:
    """The class named for the objects of PNG masks; refuses several names: those masks number classes, not objects."""
    for path in (root / "classes.txt", root / "labels.json"):
        names = list(read_names(path).values()) if path.is_file() else []
        if len(names) > 1:
            raise UserError(
                f"{path} names {len(names)} classes, so the masks number classes: use --task segment. If they number "
                "objects, which have one class, keep only that name in the file"
            )
        if names:
            return names[0]
    return ""


SAMPLED = 64
"""Masks that are looked at to know whether their values are objects."""
LEAST_PIECE = 0.05
"""The share of a value's pixels that a piece has at least: smaller ones are specks."""


def check_objects(root: Path, files: MaskFiles) -> None:
    """Refuses masks most of whose values lie in several pieces each: they are classes, or several objects have one."""
    pieces = [count for path in files.masks[:: max(1, len(files) // SAMPLED)] for count in pieces_of_values(path)]
    several = sum(count > 1 for count in pieces)
    if several > len(pieces) / 2:
        raise UserError(
            f"{root}: {several} of {len(pieces)} values of masks lie in several pieces: they are classes, or objects "
            "share a value; for classes use --task segment, or else give each object in a mask a value of its own. If "
            "each value is one object all the same, name what it is in classes.txt, in one line"
        )


def pieces_of_values(path: str) -> list[int]:
    """In how many pieces the pixels of each value lie, but for 0; none of a mask that cannot be read."""
    from scipy import ndimage  # which takes a second to import

    try:
        ids = read_ids(path)
    except BadImage:
        return []
    counts = list[int]()
    for number, box in enumerate(ndimage.find_objects(ids), 1):
        if box is not None:
            parts, _ = ndimage.label(ids[box] == number, np.ones((3, 3)))
            sizes = np.bincount(parts.flatten())[1:]
            counts.append(int((sizes >= LEAST_PIECE * sizes.sum()).sum()))
    return counts


def read_pngs(files: MaskFiles, masks: bool, bad: BadImages) -> list[Scene]:
    def read(index: int) -> Scene:
        return read_png(files.images[index], files.masks[index], masks)

    return [scene for scene in check_all(files.images, read, bad) if scene]


def check_listed_once(parts: Mapping[str, SceneFiles], root: Path) -> None:
    """Refuses images that are in two parts, as they would be trained and tested on."""
    counts = Counter(image for part in parts.values() for image in part.images)
    if twice := [image for image, count in counts.items() if count > 1]:
        raise UserError(f"{root}: {len(twice)} images are in two parts, such as {twice[0]}; keep each in one")


def check_scenes(files: SceneFiles, bad: BadImages) -> list[Scene]:
    """The images that can be read and have the annotated size; others are recorded and left out."""

    def check(index: int) -> Scene:
        scene = files.scenes[index]
        width, height = check_image(scene.image)
        annotated, actual = f"{scene.columns} x {scene.rows}", f"{width} x {height}"
        if annotated != actual:
            raise BadImage(f"its annotation is for {annotated} pixels, it has {actual}")
        return scene

    return [scene for scene in check_all(files.images, check, bad) if scene]
