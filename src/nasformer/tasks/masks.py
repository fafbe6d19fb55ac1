"""Images with masks in files: their layouts, classes, checks and pictures.

A pair that cannot be used (a mask is missing, has another size or ids without a class, or a file is broken) is left
out, counted and listed like an image that cannot be read, until there are too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from nasformer.data.decode import BadImage, attempt, read_header
from nasformer.data.files import FEW, SURVEY_THREADS, BadImages
from nasformer.data.images import SplitAmounts, Splits, make_splits
from nasformer.data.sources import made_for
from nasformer.errors import UserError
from nasformer.tasks.options import MOST_ID, SegmentOptions
from nasformer.utils.files import parse_json, read_limited
from nasformer.utils.progress import progress, say
from nasformer.utils.schema import from_json

IGNORED = 255
"""The value of pixels without a class in the masks that training and evaluation see."""
UNKNOWN = -1
MOST_CLASSES = 255
IDS = MOST_ID + 1
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CITYSCAPES_CLASSES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}
CITYSCAPES_IDS = 34
T = TypeVar("T")


@dataclass
class MaskFiles:
    """Images and their masks; a mask that is missing is an empty text.

    `labels` has one class for all, as a mask has many: so splits are plainly random.
    """

    images: list[str]
    masks: list[str]
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.labels = torch.zeros(len(self.images), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, indices: Tensor) -> MaskFiles:
        return self.keep(indices.tolist())

    def keep(self, indices: Iterable[int]) -> MaskFiles:
        chosen = list(indices)
        return MaskFiles([self.images[index] for index in chosen], [self.masks[index] for index in chosen])

    def __add__(self, other: MaskFiles) -> MaskFiles:
        return MaskFiles(self.images + other.images, self.masks + other.masks)


@dataclass
class MaskListing:
    """The content of a folder, as its author split it, and the names of ids where the layout has some."""

    train: MaskFiles
    val: MaskFiles | None = None
    test: MaskFiles | None = None
    names: dict[int, str] = field(default_factory=dict)
    ignore: list[int] = field(default_factory=list)


# Layouts


def folder_pairs(images: Path, masks: Path, mask_name: Callable[[str], str] = lambda stem: stem) -> MaskFiles:
    """Every image below a folder, with the mask of the same name at the same place below another."""
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
    pairs = [(path, masks / path.relative_to(images).parent / f"{mask_name(path.stem)}.png") for path in files]
    without = len(set(masks.rglob("*.png")) - {mask for _, mask in pairs}) if mask_name("x") == "x" else 0
    if without:
        say(f"{masks}: {without} masks have no image of their name; they are not used")
    return MaskFiles([str(image) for image, _ in pairs], [str(mask) if mask.is_file() else "" for _, mask in pairs])


def list_folders(root: Path) -> MaskListing | None:
    """train/images and train/masks, or images/train and masks/train; or images and masks, not split."""
    parts: dict[str, MaskFiles] = {}
    for split in ("train", "val", "test"):
        for images, masks in (
            (root / split / "images", root / split / "masks"),
            (root / "images" / split, root / "masks" / split),
        ):
            if images.is_dir() and masks.is_dir():
                parts[split] = folder_pairs(images, masks)
    if "train" in parts:
        return MaskListing(parts["train"], parts.get("val"), parts.get("test"))
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return MaskListing(folder_pairs(root / "images", root / "masks"))
    return None


def list_voc(root: Path) -> MaskListing | None:
    """Pascal VOC: its val list is the test part, as the masks of its own test part are not public."""
    lists = root / "ImageSets" / "Segmentation"
    if not (lists / "train.txt").is_file():
        return None

    def listed(name: str) -> MaskFiles:
        stems = read_text(lists / f"{name}.txt").split()
        masks = [root / "SegmentationClass" / f"{stem}.png" for stem in stems]
        images = [str(root / "JPEGImages" / f"{stem}.jpg") for stem in stems]
        return MaskFiles(images, [str(mask) if mask.is_file() else "" for mask in masks])

    test = listed("val") if (lists / "val.txt").is_file() else None
    return MaskListing(listed("train"), None, test, dict(enumerate(VOC_CLASSES)), [255])


def list_ade20k(root: Path) -> MaskListing | None:
    """ADE20K of the scene-parsing challenge: id 0 is ignored, `validation` is the test part."""
    images, masks = root / "images", root / "annotations"
    if not (images / "training").is_dir() or not (masks / "training").is_dir():
        return None
    info, names = root / "objectInfo150.txt", {number: str(number) for number in range(1, 151)}
    if info.is_file():
        rows = [line.split("\t") for line in read_text(info).splitlines()[1:] if line.strip()]
        if not all(row[0].isdecimal() for row in rows):
            raise UserError(f"{info} has a line that begins with no id; restore the file or remove it")
        names = {int(row[0]): row[-1].split(",")[0].strip() for row in rows}
    test = folder_pairs(images / "validation", masks / "validation") if (images / "validation").is_dir() else None
    return MaskListing(folder_pairs(images / "training", masks / "training"), None, test, names, [0])


def list_cityscapes(root: Path) -> MaskListing | None:
    """Cityscapes' fine annotations: 19 of 34 ids are learned, `val` is the test part."""
    images, masks = root / "leftImg8bit", root / "gtFine"
    if not (images / "train").is_dir() or not (masks / "train").is_dir():
        return None

    def mask_name(stem: str) -> str:
        return f"{stem.removesuffix('_leftImg8bit')}_gtFine_labelIds"

    test = folder_pairs(images / "val", masks / "val", mask_name) if (images / "val").is_dir() else None
    ignore = [number for number in range(CITYSCAPES_IDS) if number not in CITYSCAPES_CLASSES]
    train = folder_pairs(images / "train", masks / "train", mask_name)
    return MaskListing(train, None, test, dict(CITYSCAPES_CLASSES), ignore)


LAYOUTS: dict[str, Callable[[Path], MaskListing | None]] = {
    "voc": list_voc,
    "ade20k": list_ade20k,
    "cityscapes": list_cityscapes,
    "folders": list_folders,
}
EXPECTED = (
    "expected train/images and train/masks (also val and test), images/train and masks/train, images and masks, or "
    "the layout of VOC, ADE20K or Cityscapes"
)


def list_masks(root: Path, layout: str = "auto") -> MaskListing:
    """The images and masks of a folder."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; name one with images and masks: {EXPECTED}")
    for name, list_layout in LAYOUTS.items():
        if layout in ("auto", name) and (listing := list_layout(root)) is not None:
            if not len(listing.train):
                raise UserError(f"{root} has no training images; check that it is complete")
            return listing
    other = made_for(root, "segment")
    raise UserError(f"{root} has no images with masks in a known layout ({layout}); {EXPECTED}{other}")


# Labels


class MaskReader(Protocol):
    """Reads masks from files; raises BadImage where one cannot be used."""

    @property
    def classes(self) -> list[str]: ...

    def read(self, path: str) -> Tensor:
        """Integers, [rows, columns]; pixels that count for nothing are IGNORED."""


@dataclass(frozen=True)
class Labels:
    """Which class the ids of masks stand for.

    >>> labels = Labels.of({0: "sky", 7: "road"}, ignore=[255])
    >>> labels.classes, labels.table[[0, 7, 255, 3]].tolist()
    (['sky', 'road'], [0, 1, 255, -1])
    """

    classes: list[str]
    table: np.ndarray
    """Class by id: 255 where it is ignored, -1 where it has none."""

    @classmethod
    def of(cls, names: Mapping[int, str], ignore: Iterable[int]) -> Labels:
        left_out = set(ignore)
        learned = {number: name for number, name in sorted(names.items()) if number not in left_out}
        if not 2 <= len(learned) <= MOST_CLASSES:
            raise UserError(f"there are {len(learned)} classes of pixels; 2 to {MOST_CLASSES} can be learned")
        if not all(0 <= number < IDS for number in learned):
            raise UserError(f"ids of masks must be 0 to {IDS - 1}, not {min(learned)} to {max(learned)}")
        table = np.full(IDS, UNKNOWN, np.int16)
        table[list(left_out)] = IGNORED
        table[list(learned)] = np.arange(len(learned))
        return cls(list(learned.values()), table)

    def read(self, path: str) -> Tensor:
        """The mask of a file as classes, uint8 [rows, columns]; raises BadImage."""
        ids = read_ids(path)
        classes = self.table[ids]
        if (unknown := np.unique(ids[classes == UNKNOWN])).size:
            shown = ", ".join(map(str, unknown[:5].tolist())) + (" ..." if unknown.size > 5 else "")
            raise BadImage(f"the mask has ids without a class: {shown}")
        return torch.from_numpy(classes.astype(np.uint8))


def read_ids(path: str) -> np.ndarray:
    """The ids of a mask's pixels: palette entries, or grey values of 8 or 16 bits; raises BadImage."""
    if not path:
        raise BadImage("it has no mask, a PNG of its name")
    try:
        with Image.open(path) as image:
            if image.mode not in ("P", "L", "1", "I", "I;16", "I;16B"):
                raise BadImage(f"the mask is {image.mode}; give one channel, whose values are ids")
            ids = np.array(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise BadImage(f"the mask cannot be read: {str(error).split(chr(10))[0][:120]}") from None
    if ids.min() < 0 or ids.max() >= IDS:
        raise BadImage(f"the mask has ids {ids.min()} to {ids.max()}; they must be 0 to {IDS - 1}")
    return ids.astype(np.int64)


def find_labels(root: Path, listing: MaskListing, options: SegmentOptions) -> Labels:
    """The names of the ids: of a file, of the layout, or the ids that occur."""
    file = Path(options.labels) if options.labels else None
    if file is None:
        file = next((path for name in ("classes.txt", "labels.json") if (path := root / name).is_file()), None)
    ignore = {*options.ignored_ids(), *listing.ignore}
    if file is not None:
        return Labels.of(read_names(file), ignore)
    return Labels.of(listing.names or {number: str(number) for number in occurring_ids(listing.train)}, ignore)


def read_names(path: Path) -> dict[int, str]:
    """Names by id: of a text file, one a line from id 0 on; or of a JSON object. An empty line names nothing."""
    text = read_text(path)
    if path.suffix == ".json":
        names = from_json(dict[int, str], parse_json(text, path), path, 'give JSON such as {"0": "sky"}')
    else:
        names = {number: line.strip() for number, line in enumerate(text.splitlines()) if line.strip()}
    check_unique(list(names.values()), f"{path} has two classes named")
    return names


def check_unique(values: Sequence[Any], what: str) -> None:
    """Refuses values that occur twice."""
    for value, count in Counter(values).most_common(1):
        if count > 1:
            raise UserError(f"{what} {value!r}; give each its own")


def read_text(path: Path) -> str:
    """The text of a file that names classes or images."""
    if not path.is_file():
        raise UserError(f'there is no file {path}; name one with a class a line, or JSON such as {{"0": "sky"}}')
    try:
        return read_limited(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({str(error).splitlines()[0]}); give a text file in UTF-8") from None


def occurring_ids(files: MaskFiles) -> list[int]:
    """The ids that occur in the masks; unreadable masks are reported later."""

    def ids(path: str) -> set[int]:
        try:
            return set(np.unique(read_ids(path)).tolist())
        except BadImage:
            return set()

    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        return sorted(set().union(*pool.map(ids, files.masks)))


# Checks


@dataclass(frozen=True)
class FileData:
    """Images in files with their targets, in three splits; all of them can be used."""

    splits: Splits[Any]
    pixels: int
    """Of all images together, to know what they take in memory."""
    labels: Any = None
    """Further data to read a target by: a `MaskReader`, or the vocabulary of questions."""


def open_masks(root: Path, options: SegmentOptions, bad: BadImages, **amounts: Unpack[SplitAmounts]) -> FileData:
    """Lists, splits and checks the images and masks of a folder."""
    listing = list_masks(root, options.layout)
    return split_masks(root, listing, find_labels(root, listing, options), bad, **amounts)


def split_masks(
    root: Path, listing: MaskListing, labels: MaskReader, bad: BadImages, **amounts: Unpack[SplitAmounts]
) -> FileData:
    """Splits and checks the content of a folder; a file that is left out does not move others."""
    splits = make_splits(listing.train, listing.val, listing.test, labels.classes, **amounts)
    parts, checks = splits.parts(), list[list[PairCheck | None]]()
    uses = Counter(path for part in parts for path in (*part.images, *part.masks))
    for part in parts:
        checks.append(list(check_pairs(part, labels, uses, bad)))
    bad.check(len(splits), str(root))
    bad.tell(len(splits), str(root))
    train, held_out, test = (
        part.keep(index for index, check in enumerate(of_part) if check)
        for part, of_part in zip(parts, checks, strict=True)
    )
    if not len(train) or not len(test):
        raise UserError(f"{root}: no image of the train or of the test part can be used; check images and masks")
    if not any(check.has_classes for check in checks[0] if check):
        raise UserError(f"{root}: no pixel of the training masks has a class; check masks and ignored ids")
    pixels = sum(check.pixels for of_part in checks for check in of_part if check)
    return FileData(Splits(train, held_out, test, labels.classes, splits.notes), pixels, labels)


def val_and_test(parts: Mapping[str, T]) -> tuple[T | None, T | None]:
    """The val and the test part of a set; as in VOC and ADE20K, its val part is the test part where it has no other."""
    return (parts.get("val"), parts["test"]) if "test" in parts else (None, parts.get("val"))


class PairCheck(NamedTuple):
    """The pixels of a usable image, and whether any of them has a class."""

    pixels: int
    has_classes: bool


def check_pairs(
    files: MaskFiles, labels: MaskReader, uses: Mapping[str, int], bad: BadImages
) -> Iterator[PairCheck | None]:
    """The check of each pair; None where it cannot be used, which is recorded.

    Args:
        uses: How often each file is listed, in all parts.
    """

    def check(index: int) -> PairCheck:
        image, path = files.images[index], files.masks[index]
        (width, height), mask = check_image(image), labels.read(path)
        if uses[image] > 1 or uses[path] > 1:
            raise BadImage("it is listed twice, or another image has its mask")
        rows, columns = mask.shape
        if (rows, columns) != (height, width):
            raise BadImage(f"the mask has {columns} x {rows} pixels, the image {width} x {height}")
        return PairCheck(rows * columns, bool((mask != IGNORED).any()))

    yield from check_all(files.images, check, bad)


def check_all(images: Sequence[str], check: Callable[[int], T], bad: BadImages) -> Iterator[T | None]:
    """The result of a check for each image, by its index; None where it raises BadImage, which is recorded."""
    quiet = bad.quiet or len(images) < FEW
    with progress("check", len(images), quiet) as report, ThreadPoolExecutor(SURVEY_THREADS) as pool:
        for index, result in enumerate(pool.map(attempt(check), range(len(images)))):
            report(index + 1)
            if isinstance(result, BadImage):
                bad.add(images[index], str(result))
            yield None if isinstance(result, BadImage) else result


def check_image(path: str) -> tuple[int, int]:
    """Width and height of an image that can be decoded to its end; raises BadImage."""
    if not Path(path).exists():
        raise BadImage("there is no such file")
    size, _ = read_header(path)
    try:
        with Image.open(path) as image:
            image.draft("RGB", (1, 1))  # an eighth of a JPEG is enough to see that it is whole
            image.load()
    except Exception as error:  # Pillow's decoders raise a dozen kinds of exception on broken files
        raise BadImage(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    return size


# Pictures

OPACITY = 0.6
GAP = 4  # pixels between panels
MOST_COLOURS = 254
LINE, LEGEND_WIDTH, LEGEND_LETTERS = 16, 120, 16  # pixels of a line and of an entry of a legend, and letters of a name


def palette() -> np.ndarray:
    """A colour for each class, as Pascal VOC has them: neighbours in number are far apart; ignored pixels are white.

    >>> palette()[:3].tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((np.arange(256) >> (3 * bit + channel)) & 1).astype(np.uint8) << (7 - bit)
    colours[IGNORED] = 255
    return colours


def overlay(image: Tensor, mask: Tensor) -> Image.Image:
    """A mask in colours, laid over its image (uint8, 1 or 3 channels)."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy().astype(np.float32)
    mixed = OPACITY * palette()[mask.cpu().numpy()] + (1 - OPACITY) * pixels
    return Image.fromarray(mixed.round().astype(np.uint8))


def compare_masks(image: Tensor, truth: Tensor, answer: Tensor) -> Image.Image:
    """The image, the true mask and the answered one, from left to right."""
    return side_by_side(as_picture(image), overlay(image, truth), overlay(image, answer))


def side_by_side(*panels: Image.Image) -> Image.Image:
    """Pictures of one size from left to right."""
    columns, rows = panels[0].size
    picture = Image.new("RGB", (len(panels) * (columns + GAP) - GAP, rows), "white")
    for number, panel in enumerate(panels):
        picture.paste(panel, (number * (columns + GAP), 0))
    return picture


def with_legend(picture: Image.Image, classes: Sequence[str], *masks: Tensor) -> Image.Image:
    """A picture, and below it the colour and name of each class in some masks."""
    shown = [number for number in torch.cat([mask.flatten() for mask in masks]).unique().tolist() if number != IGNORED]
    columns = max(1, picture.width // LEGEND_WIDTH)
    whole = Image.new("RGB", (picture.width, picture.height + LINE * -(-len(shown) // columns) + GAP), "white")
    whole.paste(picture, (0, 0))
    draw = ImageDraw.Draw(whole)
    for place, number in enumerate(shown):
        left, top = LEGEND_WIDTH * (place % columns), picture.height + GAP + LINE * (place // columns)
        draw.rectangle((left + 2, top + 2, left + 12, top + 12), tuple(palette()[number].tolist()), "grey")
        draw.text((left + 17, top + 2), classes[number][:LEGEND_LETTERS], fill="black")
    return whole


def as_picture(image: Tensor) -> Image.Image:
    """An image (uint8, 1 or 3 channels) as a picture."""
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())


def draw_objects(image: Tensor, boxes: Tensor, masks: Tensor | None, labels: Tensor, words: list[str]) -> Image.Image:
    """Boxes with words, and masks, over an image (uint8, 1 or 3 channels), in the colours of their classes (from 1)."""
    picture = image.expand(3, -1, -1).contiguous().cpu()
    colours = [tuple(palette()[1 + label % MOST_COLOURS].tolist()) for label in labels.tolist()]
    if masks is not None and len(masks):
        picture = draw_segmentation_masks(picture, masks.bool().cpu(), alpha=OPACITY, colors=colours)
    if len(boxes):
        named = {"label_colors": "white", "label_background_colors": colours, "fill_labels": True}
        picture = draw_bounding_boxes(picture, boxes.cpu(), words, colours, width=2, **named)
    return as_picture(picture)


def indexed(mask: Tensor) -> Image.Image:
    """A mask as a PNG with a palette, whose pixels are classes."""
    picture = Image.fromarray(mask.cpu().numpy().astype(np.uint8), mode="P")
    picture.putpalette(palette().flatten().tolist())
    return picture
