"""Panoptic segmentation: one class a pixel and things apart, learned from COCO's panoptic files, judged by PQ.

Panoptic-DeepLab (Cheng et al. 2020): a head answers the class of each pixel, a heat map of the centres of things, and
for each pixel the way to the centre of its thing; `group` makes segments of these. There is no multi-scale test.

A map of segments is one integer a pixel, class + 256 * instance: instances are counted from 1, stuff has 0, crowds have
CROWD, and pixels without a class are 255. Classes of things come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from nasformer.data.decode import BadImage
from nasformer.data.files import BadImages
from nasformer.data.images import SplitAmounts
from nasformer.data.loaders import BatchSource, Split
from nasformer.data.sources import made_for
from nasformer.errors import UserError
from nasformer.layers.segmentation import INSTANCE_MAPS, fitted_size
from nasformer.models.dense import dense_space
from nasformer.models.space import Space
from nasformer.models.storage import facts_in
from nasformer.tasks.batches import FileTask, read_named, unfit, unique_stems
from nasformer.tasks.boxes import check_categories
from nasformer.tasks.masks import (
    IGNORED,
    MOST_CLASSES,
    MOST_COLOURS,
    FileData,
    MaskFiles,
    MaskListing,
    as_picture,
    overlay,
    side_by_side,
    split_masks,
    val_and_test,
    with_legend,
)
from nasformer.tasks.options import PANOPTIC, PanopticOptions, PredictOptions
from nasformer.tasks.registry import Prediction, TrainedModel, register_task
from nasformer.tasks.segment import (
    EVALUATION_BATCH,
    WORST,
    MaskBatches,
    pixel_cross_entropy,
    segment_image,
)
from nasformer.train.evaluate import Objective, predictions
from nasformer.utils.device import World
from nasformer.utils.files import lacking, read_annotations, write_json
from nasformer.utils.schema import from_json

KINDS = 256
"""A segment is class + KINDS * instance."""
CROWD = 65535
HEAT_WEIGHT, OFFSET_WEIGHT = 200.0, 0.01
PAPER_SIZE, PAPER_SIGMA = 640, 8.0
"""The pixels of a side, and those by which centres are blurred, that these weights are meant for."""
HARD_PIXELS = 0.2
"""Share of the pixels, those with the largest loss, that classes are learned from."""
SMALL, SMALL_WEIGHT = 0.01, 3.0
"""Things below this share of the image (64 x 64 of 640 x 640 pixels) count so much more."""
THRESHOLD, PEAK, MOST_THINGS = 0.1, 7, 200
"""Heat that a centre has at least, the side of the square in which it is the hottest, and how many there may be."""
PIXELS_AT_ONCE = 1 << 16


# Files


@dataclass(frozen=True)
class PanopticLabels:
    """The classes, those of things first, and the segments that the JSON files name."""

    classes: list[str]
    num_things: int
    segments: Mapping[str, Mapping[int, int | str]]
    """By file and id: class + KINDS * CROWD of a crowd, or the class; or in words why it cannot be used."""

    def read(self, path: str) -> Tensor:
        """The map of segments of a PNG, int32 [rows, columns]; raises BadImage."""
        ids = read_segment_ids(path)
        numbers, inverse = np.unique(ids, return_inverse=True)
        named, values, things = self.segments[path], np.full(len(numbers), IGNORED, np.int32), 0
        for index, number in enumerate(numbers.tolist()):
            if number == 0:
                continue
            if number not in named:
                raise BadImage(f"the PNG has a segment {number} that the JSON file does not name")
            value = named[number]
            if isinstance(value, str):
                raise BadImage(value)
            is_thing = value < self.num_things  # crowds have larger values
            things += is_thing
            values[index] = value + KINDS * things * is_thing
        return torch.from_numpy(values[inverse.reshape(ids.shape)])


def read_segment_ids(path: str) -> np.ndarray:
    """Ids of segments, red + 256 green + 65536 blue; raises BadImage."""
    if not path:
        raise BadImage("it has no PNG of segments")
    try:
        with Image.open(path) as image:
            if image.mode != "RGB":
                raise BadImage(f"the PNG of segments is {image.mode}; it must be RGB")
            pixels = np.array(image, dtype=np.int64)
    except (OSError, ValueError, SyntaxError) as error:
        raise BadImage(f"the PNG of segments cannot be read: {str(error).splitlines()[0][:120]}") from None
    return pixels @ np.array([1, 256, 65536])


@dataclass(frozen=True)
class SegmentEntry:
    """An entry of `segments_info`."""

    id: int
    category_id: int = -1
    iscrowd: int | bool = 0


@dataclass(frozen=True)
class AnnotationEntry:
    """An entry of `annotations`."""

    image_id: int | str
    file_name: str
    segments_info: list[SegmentEntry]


@dataclass(frozen=True)
class ImageEntry:
    """An entry of `images`."""

    id: int | str
    file_name: str


@dataclass(frozen=True)
class CategoryEntry:
    """An entry of `categories`."""

    id: int
    name: str
    isthing: int | bool


@dataclass(frozen=True)
class PanopticFile:
    """A panoptic JSON file of COCO's."""

    images: list[ImageEntry]
    annotations: list[AnnotationEntry]
    categories: list[CategoryEntry]

    @classmethod
    def load(cls, path: Path) -> PanopticFile:
        content = read_annotations(path)
        for name, keys in {"images": ("id", "file_name"), "categories": ("id", "name", "isthing")}.items():
            if lacking(content.get(name), keys):
                raise UserError(f"{path}: an entry of {name} lacks one of {', '.join(keys)}; add it to all")
        return from_json(cls, content, path, "give segments in the panoptic format of COCO")


def open_panoptic(root: Path, bad: BadImages, **amounts: Unpack[SplitAmounts]) -> FileData:
    """COCO's layout: annotations/panoptic_NAME.json with a folder of PNGs of that name, images in NAME.

    NAME begins with train, val or test. Without test, val is the test part, as COCO's own test part is not public.
    """
    files = {part: sorted(root.glob(f"annotations/panoptic_{part}*.json")) for part in ("train", "val", "test")}
    if not files["train"]:
        raise UserError(
            f"{root} has no annotations/panoptic_train*.json; expected COCO's layout: that file, a folder of PNGs of "
            f"that name beside it, and the images in train*{made_for(root, 'panoptic')}"
        )
    read = {part: PanopticFile.load(paths[0]) for part, paths in files.items() if paths}
    categories = sorted(read["train"].categories, key=lambda entry: (not entry.isthing, entry.id))
    numbers = {entry.id: number for number, entry in enumerate(categories)}
    segments, parts = dict[str, dict[int, int | str]](), dict[str, MaskFiles]()
    for part, content in read.items():
        check_categories(files[part][0], content.categories, {entry.id: entry for entry in categories})
        parts[part] = list_images(root, files[part][0], content, numbers, segments, bad)
    num_things = sum(bool(entry.isthing) for entry in categories)
    if not num_things or not 2 <= len(categories) <= MOST_CLASSES:
        raise UserError(f"{root}: {len(categories)} categories, {num_things} of things; 2 to {MOST_CLASSES} with one")
    labels = PanopticLabels([entry.name for entry in categories], num_things, segments)
    return split_masks(root, MaskListing(parts["train"], *val_and_test(parts)), labels, bad, **amounts)


def list_images(
    root: Path,
    file: Path,
    content: PanopticFile,
    numbers: Mapping[int, int],
    segments: dict[str, dict[int, int | str]],
    bad: BadImages,
) -> MaskFiles:
    """The images and PNGs of a JSON file; its segments are added to `segments`."""
    folder = root / file.stem.removeprefix("panoptic_")
    listed = {entry.id: entry for entry in reversed(content.images)}
    annotations = {entry.image_id: entry for entry in reversed(content.annotations)}
    for annotation in content.annotations:
        if annotation.image_id not in listed:
            bad.add(f"{file}: annotation {annotation.file_name}", f"its image {annotation.image_id} is not listed")
        elif annotations[annotation.image_id] is not annotation:
            bad.add(f"{file}: annotation {annotation.file_name}", f"image {annotation.image_id} has one before")
    images, masks = list[str](), list[str]()
    for entry in content.images:
        if listed[entry.id] is not entry:
            bad.add(f"{file}: image {entry.file_name}", f"another image has its id {entry.id}")
            continue
        images.append(str(folder / entry.file_name))
        path = ""
        if entry.id in annotations:
            path = str(file.with_suffix("") / annotations[entry.id].file_name)
            segments[path] = segment_values(annotations[entry.id].segments_info, numbers)
        masks.append(path if Path(path).is_file() else "")
    return MaskFiles(images, masks)


def segment_values(segments: Sequence[SegmentEntry], numbers: Mapping[int, int]) -> dict[int, int | str]:
    """The value of each segment by its id, or why it cannot be used."""
    values = dict[int, int | str]()
    for segment in segments:
        number = numbers.get(segment.category_id)
        if segment.id in values:
            values[segment.id] = f"the JSON file names segment {segment.id} twice"
        elif number is None:
            values[segment.id] = f"the category of segment {segment.id} is unknown"
        else:
            values[segment.id] = number + KINDS * CROWD * bool(segment.iscrowd)
    return values


# Targets and loss


def split_segments(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Class and instance of each pixel."""
    return segments % KINDS, segments // KINDS


def make_targets(segments: Tensor, sigma: float) -> Tensor:
    """The targets of a map of segments: float [5, rows, columns].

    The class, the heat of centres, rows and columns to the centre, and what a pixel of a thing counts (else 0).
    """
    classes, instances = split_segments(segments.long())
    crowd = instances == CROWD
    classes, instances = classes.masked_fill(crowd, IGNORED), instances.masked_fill(crowd, 0)
    rows, columns = (axis.float() for axis in torch.meshgrid(*map(torch.arange, segments.shape), indexing="ij"))
    targets = torch.zeros(5, *segments.shape)
    targets[0] = classes
    for instance in instances.unique().tolist():
        if instance:
            inside = instances == instance
            centre = rows[inside].mean(), columns[inside].mean()
            distance = (rows - centre[0].round()) ** 2 + (columns - centre[1].round()) ** 2
            targets[1] = torch.maximum(targets[1], torch.exp(-distance / (2 * sigma**2)))
            targets[2][inside], targets[3][inside] = centre[0] - rows[inside], centre[1] - columns[inside]
            targets[4][inside] = SMALL_WEIGHT if inside.sum() < SMALL * inside.numel() else 1.0
    return targets


class Answer(NamedTuple):
    """The parts of the output of the head."""

    logits: Tensor
    heat: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, output: Tensor) -> Answer:
        """From [..., classes + 3, rows, columns]."""
        return cls(*output.float().split((output.shape[-3] - INSTANCE_MAPS, 1, 2), dim=-3))


def loss_weights(size: int, sigma: float) -> tuple[float, float]:
    """The weights of heat and offsets, scaled so that both count as much as in images of the paper's size.

    A centre fills more of a small image, and ways to it are shorter: with weights as they are, heat would count a
    hundred times as much as offsets at 96 pixels, and offsets would not be learned.

    >>> loss_weights(640, 8.0), loss_weights(320, 8.0)
    ((200.0, 0.01), (50.0, 0.02))
    """
    scale = size / PAPER_SIZE
    return HEAT_WEIGHT * (scale * PAPER_SIGMA / sigma) ** 2, OFFSET_WEIGHT / scale


def panoptic_loss(output: Tensor, images: Tensor, targets: Tensor, sigma: float = PAPER_SIGMA) -> Tensor:
    """Cross-entropy of the hardest pixels, squared error of the heat, distance of the offsets, with `loss_weights`.

    Pixels without a class count for nothing.

    Args:
        sigma: By which the centres of the targets are blurred.
    """
    answer, classes, weights = Answer.of(output), targets[:, 0].long(), targets[:, 4]
    labelled = (classes != IGNORED).float()
    losses = F.cross_entropy(answer.logits, classes, ignore_index=IGNORED, reduction="none") * weights.clamp(min=1)
    hardest = losses.flatten().topk(max(1, int(HARD_PIXELS * losses.numel()))).values.mean()
    heat = ((answer.heat[:, 0] - targets[:, 1]) ** 2 * labelled).sum() / labelled.sum().clamp(min=1)
    things = (weights > 0).float()
    distance = (answer.offsets - targets[:, 2:4]).abs().sum(1)
    offsets = (distance * things).sum() / things.sum().clamp(min=1)
    heat_weight, offset_weight = loss_weights(output.shape[-1], sigma)
    return hardest + heat_weight * heat + offset_weight * offsets


# Grouping


def group(answer: Answer, num_things: int, stuff_area: float = 0.0) -> Tensor:
    """The map of segments, int64 [rows, columns], from the output of the head for an image.

    Pixels of things go to the centre that is nearest to where they point; each instance gets the class that most of
    its pixels have. Without a centre, and in areas of stuff below `stuff_area` (a share of the image), pixels have no
    class.
    """
    classes = answer.logits.argmax(0)
    segments, is_thing = classes.clone(), classes < num_things
    areas = torch.bincount(classes.flatten(), minlength=len(answer.logits))
    segments[(areas < stuff_area * classes.numel())[classes] & ~is_thing] = IGNORED
    segments[is_thing] = IGNORED
    centres = find_centres(answer.heat[0])
    if len(centres) and is_thing.any():
        instances = nearest_centres(is_thing.nonzero(), answer.offsets[:, is_thing].T, centres)
        votes = torch.zeros(len(centres), num_things, device=classes.device)
        ones = torch.ones(len(instances), device=classes.device)
        votes.index_put_((instances, classes[is_thing]), ones, accumulate=True)
        segments[is_thing] = votes.argmax(1)[instances] + KINDS * (instances + 1)
    return segments


def find_centres(heat: Tensor) -> Tensor:
    """Rows and columns [centres, 2] of the peaks of a heat map, the hottest first; of equal ones the first."""
    _, hottest = F.max_pool2d(heat[None, None], PEAK, 1, PEAK // 2, return_indices=True)
    # Enlarged and rounded maps have equal neighbours: as two centres they would cut their thing into two.
    is_peak = hottest.flatten() == torch.arange(heat.numel(), device=heat.device)
    peaks = heat.flatten().masked_fill(~is_peak | (heat.flatten() <= THRESHOLD), -math.inf)
    values, positions = peaks.topk(min(MOST_THINGS, len(peaks)))
    positions = positions[values > -math.inf]
    return torch.stack([positions // heat.shape[1], positions % heat.shape[1]], 1)


def nearest_centres(positions: Tensor, offsets: Tensor, centres: Tensor) -> Tensor:
    """The number of the centre that is nearest to where each pixel points."""
    aims = positions + offsets
    parts = [torch.cdist(part, centres.float()).argmin(1) for part in aims.split(PIXELS_AT_ONCE)]
    return torch.cat(parts)


def at_own_size(square: Tensor, rows: int, columns: int) -> Answer:
    """The answer for an image that was fitted into a square, at the size of the image; offsets grow with it."""
    return enlarged(unfit(square, rows, columns), square.shape[-1])


def enlarged(output: Tensor, size: int) -> Answer:
    """The parts of an answer at the size of its image, with offsets in pixels of it instead of those of the square."""
    answer, (rows, columns) = Answer.of(output), output.shape[-2:]
    height, width = fitted_size(rows, columns, size)
    return answer._replace(offsets=answer.offsets * output.new_tensor([rows / height, columns / width]).view(2, 1, 1))


# Metric


@dataclass(frozen=True)
class ClassPQ:
    """The results of a model on the segments of one class; None where there are none, neither in truth nor answer."""

    name: str
    kind: str
    """thing or stuff"""
    matched: int
    wrong: int
    missed: int
    pq: float | None
    sq: float | None
    rq: float | None


def match_segments(answer: Tensor, truth: Tensor, num_classes: int) -> Tensor:
    """Sum of IoUs, matched, wrong and missed segments of an image by class: float64 [classes, 4].

    As Kirillov et al. (2019) and COCO count: segments of a class match with an IoU above 0.5, where pixels without a
    class do not count; an answer that lies by more than half there, or in a crowd of its class, is not wrong.
    """
    answered, places_a, areas_a = answer.flatten().unique(return_inverse=True, return_counts=True)
    true, places_t, areas_t = truth.flatten().unique(return_inverse=True, return_counts=True)
    pairs = torch.bincount(places_t * len(answered) + places_a, minlength=len(true) * len(answered))
    overlap = pairs.view(len(true), len(answered)).double()
    classes_a, (classes_t, instances_t) = answered % KINDS, split_segments(true)
    crowd, same = instances_t == CROWD, classes_t[:, None] == classes_a
    void = overlap[classes_t == IGNORED].sum(0)
    ious = overlap / (areas_t[:, None] + areas_a - overlap - void)
    counts_t, counts_a = (classes_t != IGNORED) & ~crowd, classes_a != IGNORED
    matches = (ious > 0.5) & same & counts_t[:, None] & counts_a
    left_out = (void + (overlap * (same & crowd[:, None])).sum(0)) / areas_a > 0.5
    wrong = counts_a & ~matches.any(0) & ~left_out
    missed = counts_t & ~matches.any(1)
    sums = torch.zeros(num_classes, 4, dtype=torch.float64, device=answer.device)
    columns = (
        (classes_a, ious.where(matches, 0.0).sum(0)),
        (classes_a, matches.any(0)),
        (classes_a, wrong),
        (classes_t, missed),
    )
    for column, (classes, values) in enumerate(columns):
        kept = classes != IGNORED
        sums[:, column].index_add_(0, classes[kept], values[kept].double())
    return sums


def class_qualities(sums: Tensor) -> Tensor:
    """PQ, SQ and RQ of each class [classes, 3]; NaN without any segment.

    >>> class_qualities(torch.tensor([[1.6, 2, 1, 1], [0, 0, 0, 0]])).round(decimals=3)
    tensor([[0.5330, 0.8000, 0.6670],
            [   nan,    nan,    nan]])
    """
    ious, matched, wrong, missed = sums.unbind(1)
    segments = matched + wrong / 2 + missed / 2
    sq = torch.where(segments > 0, ious / matched.clamp(min=1), math.nan)
    return torch.stack([ious / segments, sq, matched / segments], 1)


class PanopticQuality:
    """PQ, SQ and RQ: the mean over the classes that occur, of all, of things and of stuff; and the mean cross-entropy.

    Args:
        batches: With `classes`, `num_things`, and `options.stuff_area`.
    """

    def __init__(self, batches: Any) -> None:
        self.classes, self.num_things = list(batches.classes), batches.num_things
        self.stuff_area = batches.options.stuff_area
        self.images, self.loss, self.by_image = 0, 0.0, list[float]()
        self.sums = torch.zeros(len(self.classes), 4, dtype=torch.float64)

    def update(self, output: Tensor, targets: Sequence[Tensor]) -> None:
        """Adds images: outputs of the head for their squares, and their maps of segments at their own size."""
        for square, segments in zip(output, targets, strict=True):
            answer, (classes, _) = at_own_size(square, *segments.shape), split_segments(segments)
            self.loss += float(pixel_cross_entropy(answer.logits[None], square, classes[None]))
            self.add(group(answer, self.num_things, self.stuff_area), segments)

    def add(self, answer: Tensor, truth: Tensor) -> None:
        sums = match_segments(answer, truth, len(self.classes))
        self.sums = self.sums.to(sums.device) + sums
        self.by_image.append(float(class_qualities(sums)[:, 0].nanmean()))
        self.images += 1

    def combine(self, world: World, device: torch.device) -> None:
        """Adds what other processes have seen; the PQ of single images stays where it is."""
        sums = world.sum(torch.tensor([self.loss, float(self.images)], device=device)).tolist()
        self.loss, self.images = sums[0], round(sums[1])
        self.sums = world.sum(self.sums.to(device))

    def compute(self) -> dict[str, float]:
        qualities = class_qualities(self.sums)
        pq, sq, rq = (0.0 if math.isnan(value) else value for value in qualities.nanmean(0).tolist())
        parts = {"pq_things": qualities[: self.num_things, 0], "pq_stuff": qualities[self.num_things :, 0]}
        means = {name: float(values.nanmean()) for name, values in parts.items() if not values.isnan().all()}
        return {"pq": pq, "sq": sq, "rq": rq, **means, "loss": self.loss / self.images}


@dataclass(frozen=True)
class PanopticEvaluation:
    """The results of a model on a split."""

    metric: PanopticQuality

    @property
    def by_image(self) -> list[float]:
        return self.metric.by_image

    @property
    def scores(self) -> dict[str, float]:
        return {**self.metric.compute(), "images": self.metric.images}

    @property
    def by_class(self) -> list[ClassPQ]:
        rows, things = self.metric.sums.tolist(), self.metric.num_things
        qualities = class_qualities(self.metric.sums).tolist()
        return [
            ClassPQ(
                name,
                "thing" if number < things else "stuff",
                *(round(count) for count in rows[number][1:]),
                *(None if math.isnan(value) else value for value in qualities[number]),
            )
            for number, name in enumerate(self.metric.classes)
        ]

    def sentences(self) -> list[str]:
        words = {"pq": "PQ", "pq_things": "of things", "pq_stuff": "of stuff", "sq": "SQ", "rq": "RQ"}
        scored = sorted((score.pq, score.name) for score in self.by_class if score.pq is not None)
        worst = ", ".join(f"{name} {pq:.2%}" for pq, name in scored[:WORST])
        scores = self.scores
        return [
            ", ".join(f"{name} {scores[score]:.2%}" for score, name in words.items() if score in scores),
            f"worst: {worst}",
        ]

    def to_json(self) -> dict[str, Any]:
        return {**self.scores, "by_class": [asdict(score) for score in self.by_class], "by_image": self.by_image}


# The task


def example_targets(images: int, batches: BatchSource) -> Tensor:
    return torch.zeros(images, 5, batches.img_size, batches.img_size)


OBJECTIVE = Objective("pq", panoptic_loss, PanopticQuality, EVALUATION_BATCH, example_targets)


class PanopticBatches(MaskBatches):
    """Batches of images with maps of segments."""

    task, objective, target_bytes = PANOPTIC, OBJECTIVE, 4

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.options = self.options.resolved()
        self.objective = replace(OBJECTIVE, loss=partial(panoptic_loss, sigma=self.options.sigma))

    @property
    def num_things(self) -> int:
        assert isinstance(self.data.labels, PanopticLabels)
        return self.data.labels.num_things

    @property
    def head_options(self) -> dict[str, int]:
        """Options of the head that follow from the classes."""
        return {"num_things": self.num_things}

    @property
    def facts(self) -> dict[str, Any]:
        """What the model must know besides the classes."""
        return {"sigma": self.options.sigma, "stuff_area": self.options.stuff_area}

    def target(self, mask: Tensor) -> Tensor:
        return make_targets(mask, self.options.sigma)


@register_task
class Panoptic(FileTask):
    """Panoptic segmentation by Panoptic-DeepLab."""

    facts, objective, batches = PANOPTIC, OBJECTIVE, PanopticBatches

    def space(self, space: Space, options: PanopticOptions) -> Space:  # type: ignore[override]
        return dense_space(space, self.name, decoder_dim=options.decoder_dim)

    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> FileData:
        return open_panoptic(root, bad, **amounts)

    def judge(self, model: nn.Module, batches: BatchSource, split: Split, classes: Sequence[str]) -> PanopticEvaluation:
        metric = PanopticQuality(batches)
        for output, segments in predictions(model, batches, split):
            metric.update(output, segments)  # type: ignore[arg-type]
        return PanopticEvaluation(metric)

    def picture(self, model: nn.Module, batches: PanopticBatches, split: Split, index: int) -> Image.Image:
        image, truth = batches.pair(batches.files[split], index)
        of_images = (batches.img_size, batches.mean, batches.std)
        answer = find_segments(model, image, *of_images, batches.num_things, batches.options.stuff_area)
        panels = side_by_side(as_picture(image), draw_segments(image, truth), draw_segments(image, answer))
        return with_legend(panels, ["", *batches.classes], colours(truth), colours(answer))

    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[Prediction]:
        folder, things = options.folder("segments"), trained.model.options["num_things"]
        of_images = (trained.img_size, trained.mean, trained.std)
        stuff_area: Any = facts_in(trained.folder).get("stuff_area", PanopticOptions().resolved().stuff_area)
        for file, stem in zip(options.images, unique_stems(options.images), strict=True):
            image = read_named(file, trained.in_chans)
            segments = find_segments(trained.model, image, *of_images, things, stuff_area)
            png, picture = folder / f"{stem}_panoptic.png", folder / f"{stem}_overlay.png"
            numbered, listed = list_segments(segments, trained.classes, things)
            segments_png(numbered).save(png)
            draw_segments(image, segments).save(picture)
            write_json(folder / f"{stem}_panoptic.json", {"segments_info": [asdict(segment) for segment in listed]})
            yield PanopticPrediction(file, listed, str(png), str(picture))


# Single images


@dataclass(frozen=True)
class PredictedSegment:
    """A segment of an answer; `id` as in the PNG."""

    id: int
    category: str
    isthing: bool
    area: int


@dataclass(frozen=True)
class PanopticPrediction:
    """The segments of an image, the largest first, and where their PNG (as COCO's) and overlay were written."""

    file: str
    segments: list[PredictedSegment]
    png: str
    overlay: str

    def __str__(self) -> str:
        names = [segment.category for segment in self.segments]
        counts = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
        return f"{self.file}: {', '.join(counts) or 'nothing'}; {self.overlay}"


def find_segments(
    model: nn.Module,
    image: Tensor,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    num_things: int,
    stuff_area: float,
) -> Tensor:
    """The map of segments of an image (uint8, at its own size)."""
    output = segment_image(model, image, size, mean, std)
    return group(enlarged(output, size), num_things, stuff_area).cpu()


def list_segments(segments: Tensor, classes: Sequence[str], num_things: int) -> tuple[Tensor, list[PredictedSegment]]:
    """A map with the number of each pixel's segment, 0 where it has none, and the segments, the largest first."""
    values, inverse, areas = segments.unique(return_inverse=True, return_counts=True)
    order = [index for index in areas.argsort(descending=True).tolist() if int(values[index]) != IGNORED]
    numbers, listed = torch.zeros(len(values), dtype=torch.int64), list[PredictedSegment]()
    for number, index in enumerate(order, 1):
        kind = int(values[index]) % KINDS
        numbers[index] = number
        listed.append(PredictedSegment(number, classes[kind], kind < num_things, int(areas[index])))
    return numbers[inverse], listed


def segments_png(numbers: Tensor) -> Image.Image:
    """Ids of segments as red + 256 green + 65536 blue."""
    return Image.fromarray(torch.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 2).byte().numpy())


def colours(segments: Tensor) -> Tensor:
    """The colour of each pixel's class in the palette; from 1 on, as the first one is black.

    >>> colours(torch.tensor([0, 2, 2 + KINDS, IGNORED])).tolist()
    [1, 3, 3, 255]
    """
    classes, _ = split_segments(segments.long())
    return (1 + classes % MOST_COLOURS).masked_fill(classes == IGNORED, IGNORED)


def draw_segments(image: Tensor, segments: Tensor) -> Image.Image:
    """Segments in the colours of their classes, laid over their image, with white lines between them."""
    edges = torch.zeros(segments.shape, dtype=torch.bool)
    edges[:, 1:] = segments[:, 1:] != segments[:, :-1]
    edges[1:] |= segments[1:] != segments[:-1]
    pixels = np.array(overlay(image, colours(segments)))
    pixels[edges.numpy()] = 255
    return Image.fromarray(pixels)
