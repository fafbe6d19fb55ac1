"""Detection: boxes, classes and masks of objects, learned from COCO's JSON or PNG masks, judged by COCO's AP.

Images are fitted into a square of the model's size. Scores are those of pycocotools, at the size that each image has in
its file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import clip_boxes_to_image

from nasformer.data.files import BadImages
from nasformer.data.images import normalise
from nasformer.data.loaders import BatchSource, Split
from nasformer.layers.detection import Detection, Target
from nasformer.layers.segmentation import fitted_size
from nasformer.layers.stem import Grid
from nasformer.models.dense import dense_space
from nasformer.models.space import Space
from nasformer.tasks.batches import FileBatches, FileTask, fit, jitter_together, read_named, read_pixels, unique_stems
from nasformer.tasks.boxes import Instance, Scene, SceneFiles, decode, encode, open_scenes
from nasformer.tasks.masks import FileData, draw_objects, side_by_side
from nasformer.tasks.options import DETECT, DetectOptions, PredictOptions
from nasformer.tasks.registry import TrainedModel, register_task
from nasformer.train.evaluate import Objective, predictions
from nasformer.utils.device import World
from nasformer.utils.files import write_json

EVALUATION_BATCH = 8
LEAST_SIDE = 1.0  # pixels of a box that is learned
SHOWN = 0.5
"""Least score of an object that is drawn, named, and counted in the score of a single image."""
WORST = 3
Kind = Literal["bbox", "segm"]
NAMES: dict[Kind, str] = {"bbox": "box", "segm": "mask"}


# Answers at the size of their image


@dataclass(frozen=True)
class DetectedObjects:
    """Objects that a model detects in an image, at its own size, the likeliest first."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    """from 0 on"""
    masks: list[Any] | None = None
    """as pycocotools encodes them"""

    @classmethod
    def of(cls, detection: Detection, shape: Grid, size: int, masks: bool) -> DetectedObjects:
        """The answer of a model to a square into which an image was fitted."""
        scale = torch.tensor([there / here for there, here in zip(shape, fitted_size(*shape, size), strict=True)])
        boxes = detection["boxes"].float().cpu() * scale.flip(0).repeat(2)
        kept = ((boxes[:, 0] < shape[1]) & (boxes[:, 1] < shape[0])).nonzero()[:, 0]  # others lie in the padding
        boxes, encoded = clip_boxes_to_image(boxes[kept], shape), None
        if masks and "masks" in detection:
            pasted = paste_masks_in_image(detection["masks"].float().cpu()[kept], boxes, shape)[:, 0] > 0.5
            encoded = encode(pasted.numpy()) if len(pasted) else []
        return cls(boxes, detection["scores"].float().cpu()[kept], detection["labels"].cpu()[kept] - 1, encoded)

    def sure(self) -> DetectedObjects:
        """Only the objects that are more likely than not."""
        kept = (self.scores >= SHOWN).nonzero()[:, 0]
        masks = None if self.masks is None else [self.masks[index] for index in kept.tolist()]
        return DetectedObjects(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

    def draw(self, image: Tensor, classes: Sequence[str]) -> Image.Image:
        pairs = zip(self.labels.tolist(), self.scores.tolist(), strict=True)
        words = [f"{classes[label]} {score:.0%}" for label, score in pairs]
        masks = torch.stack([decode(mask) for mask in self.masks]) if self.masks else None
        return draw_objects(image, self.boxes, masks, self.labels, words)


@torch.inference_mode()
def detect_image(
    model: nn.Module, image: Tensor, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> DetectedObjects:
    """The objects that a model detects in an image (uint8, at its own size)."""
    square = fit(image, size, [round(255 * value) for value in mean])[None].to(next(model.parameters()).device)
    rows, columns = image.shape[1:]
    return DetectedObjects.of(model.eval()(normalise(square, mean, std))[0], (rows, columns), size, masks=True)


# Loss and metric


def sum_of_losses(losses: dict[str, Tensor], images: Tensor, targets: Any) -> Tensor:
    """The losses that the head has computed, with equal weights as in Mask R-CNN."""
    return torch.stack(list(losses.values())).sum()


def coco_eval(scenes: Sequence[Scene], answers: Sequence[DetectedObjects], classes: Sequence[str], kind: Kind) -> Any:
    """pycocotools' evaluation of all answers."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images = [{"id": number, "height": one.rows, "width": one.columns} for number, one in enumerate(scenes)]
    common = {"images": images, "categories": [{"id": number, "name": name} for number, name in enumerate(classes)]}
    true = [coco_truth(instance, number, kind) for number, scene in enumerate(scenes) for instance in scene.instances]
    answered = [line for number, answer in enumerate(answers) for line in coco_answer(answer, number, kind)]
    with redirect_stdout(io.StringIO()):  # it prints its progress
        sides = []
        for lines in (true, answered):
            side = COCO()
            side.dataset = {**common, "annotations": [{"id": 1 + number, **line} for number, line in enumerate(lines)]}
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def coco_truth(instance: Instance, image: int, kind: Kind) -> dict[str, Any]:
    left, top, right, bottom = instance.box
    line = {"image_id": image, "category_id": instance.label, "bbox": [left, top, right - left, bottom - top]}
    line |= {"area": instance.area, "iscrowd": int(instance.crowd)}
    return line | ({"segmentation": instance.mask} if kind == "segm" else {})


def coco_answer(objects: DetectedObjects, image: int, kind: Kind) -> Iterator[dict[str, Any]]:
    for number, (box, score, label) in enumerate(
        zip(objects.boxes.tolist(), objects.scores.tolist(), objects.labels.tolist(), strict=True)
    ):
        left, top, right, bottom = box
        line = {"image_id": image, "category_id": label, "score": score, "iscrowd": 0}
        line |= {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
        if kind == "segm":
            from pycocotools import mask

            assert objects.masks is not None
            line |= {"segmentation": objects.masks[number], "area": float(mask.area(objects.masks[number]))}
        yield line


@dataclass(frozen=True)
class ClassAP:
    """AP of one class; None where it does not occur, or where there are no masks."""

    name: str
    objects: int
    box_ap: float | None
    mask_ap: float | None = None


def class_aps(evaluation: Any) -> list[float | None]:
    """AP of each class over all IoUs, for objects of any size."""
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    precisions = [part[part > -1] for part in np.moveaxis(precision, 2, 0)]
    return [float(part.mean()) if part.size else None for part in precisions]


def image_scores(evaluation: Any, images: int) -> list[float]:
    """F1 at IoU 0.5 of the likely objects in each image; NaN where there are none, neither in truth nor answer."""
    sums, areas = np.zeros((images, 2)), len(evaluation.params.areaRng)
    for index, cell in enumerate(evaluation.evalImgs):
        if cell is None or index // images % areas:  # by class, then by area (any, small, ...), then by image
            continue
        sure = (cell["dtScores"] >= np.array(SHOWN)) if len(cell["dtScores"]) else np.zeros(0, bool)
        counted = sure & ~cell["dtIgnore"][0].astype(bool)
        hits = (cell["dtMatches"][0] > 0) & counted
        true = (~np.asarray(cell["gtIgnore"]).astype(bool)).sum()
        sums[index % images] += 2 * hits.sum(), counted.sum() + true
    return [float(hits / total) if total else math.nan for hits, total in sums]


class CocoAP:
    """COCO's AP of boxes and, on request, of masks.

    Its loss is 1 - AP, as the losses of the head need targets in training mode.

    Args:
        size: Side of the squares into which images were fitted.
        kinds: What to judge; the first is the score.
    """

    def __init__(self, classes: Sequence[str], size: int, kinds: Sequence[Kind] = ("bbox",)) -> None:
        self.classes, self.size, self.kinds = list(classes), size, kinds
        self.scenes, self.answers, self.images = list[Scene](), list[DetectedObjects](), 0

    def update(self, logits: Any, targets: Sequence[Scene]) -> None:
        """Adds images: the detections in their squares, and their true objects."""
        for detection, scene in zip(logits, targets, strict=True):
            self.scenes.append(scene)
            self.answers.append(
                DetectedObjects.of(detection, (scene.rows, scene.columns), self.size, "segm" in self.kinds)
            )
            self.images += 1

    def combine(self, world: World, device: torch.device) -> None:
        self.scenes, self.answers = world.gather(self.scenes), world.gather(self.answers)
        self.images = len(self.scenes)

    def compute(self) -> dict[str, float]:
        return self.judge().scores

    def judge(self) -> DetectionScores:
        evaluations = {kind: coco_eval(self.scenes, self.answers, self.classes, kind) for kind in self.kinds}
        scores: dict[str, float] = {}
        for kind, evaluation in evaluations.items():
            values = [value if value > -1 else math.nan for value in evaluation.stats[:3]]
            names = (f"{NAMES[kind]}_ap{suffix}" for suffix in ("", "50", "75"))
            scores |= dict(zip(names, map(float, values), strict=True))
        loss = 1 - scores[f"{NAMES[self.kinds[0]]}_ap"]
        by_image = image_scores(evaluations[self.kinds[0]], self.images)
        return DetectionScores({**scores, "loss": loss, "images": self.images}, self.by_class(evaluations), by_image)

    def by_class(self, evaluations: dict[Kind, Any]) -> list[ClassAP]:
        labels = [instance.label for scene in self.scenes for instance in scene.instances if not instance.crowd]
        nothing = [None] * len(self.classes)
        boxes, masks = (class_aps(evaluations[kind]) if kind in evaluations else nothing for kind in NAMES)
        return [
            ClassAP(name, labels.count(number), boxes[number], masks[number])
            for number, name in enumerate(self.classes)
        ]


@dataclass(frozen=True)
class DetectionScores:
    """How a model does on a split."""

    scores: dict[str, float]
    by_class: list[ClassAP]
    by_image: list[float]
    """F1 of each image at IoU 0.5, in the order of the split"""

    def sentences(self) -> list[str]:
        scored = sorted((score.box_ap, score.name) for score in self.by_class if score.box_ap is not None)
        kinds = [name for name in NAMES.values() if f"{name}_ap" in self.scores]
        lines = [
            f"{name} AP {self.scores[f'{name}_ap']:.2%}, at IoU 0.5 {self.scores[f'{name}_ap50']:.2%}, "
            f"at IoU 0.75 {self.scores[f'{name}_ap75']:.2%}"
            for name in kinds
        ]
        return [*lines, "worst: " + ", ".join(f"{name} {ap:.2%}" for ap, name in scored[:WORST])]

    def to_json(self) -> dict[str, Any]:
        return {**self.scores, "by_class": [asdict(score) for score in self.by_class], "by_image": self.by_image}


def metric_of(batches: Any) -> CocoAP:
    masks = batches.options.judged_by == "mask_ap"
    return CocoAP(batches.classes, batches.img_size, ("segm", "bbox") if masks else ("bbox",))


def example_target(images: int, batches: BatchSource) -> list[Target]:
    """Images with one object each."""
    size = batches.img_size
    masks = torch.ones(1, size, size, dtype=torch.uint8)
    box, label = torch.tensor([[0.0, 0.0, size / 2, size / 2]]), torch.ones(1, dtype=torch.int64)
    return [{"boxes": box, "labels": label, "masks": masks} for _ in range(images)]


DETECTION = Objective("box_ap", sum_of_losses, metric_of, EVALUATION_BATCH, example_target, within_model=True)


# Batches


class SceneBatches(FileBatches):
    """Batches of images with objects."""

    task = DETECT

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.objective = replace(DETECTION, score=self.options.judged_by)

    def read_pair(self, files: SceneFiles, index: int) -> tuple[Tensor, Scene]:
        return read_pixels(files.images[index], self.in_chans), files.scenes[index]

    def to_target(self, content: Scene) -> Target:
        return content.target()

    def jittered(self, image: Tensor, target: Target, source: torch.Generator) -> tuple[Tensor, Target]:
        """An augmented image and its objects, without those that are cut off or too small."""
        boxes = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=image.shape[1:])  # type: ignore[call-overload]
        parts: list[Tensor] = [tv_tensors.Image(image), boxes]
        parts += [tv_tensors.Mask(target["masks"])] if "masks" in target else []
        fills = [self.fill, 0, 0][: len(parts)]
        picture, *rest = jitter_together(parts, fills, self.img_size, self.options, self.augment, source)
        picture, moved, *masks = (part.as_subclass(Tensor) for part in (picture, *rest))
        kept = (moved[:, 2:] - moved[:, :2] >= LEAST_SIDE).all(1)
        jittered = {"boxes": moved[kept], "labels": target["labels"][kept]}
        return picture, jittered | ({"masks": masks[0][kept]} if masks else {})

    def collate(self, targets: Sequence[Target]) -> list[Target]:
        return [
            {name: value.to(self.device, non_blocking=True) for name, value in target.items()} for target in targets
        ]


# The task


@dataclass(frozen=True)
class DetectedObject:
    """A detected object: its class, how sure that is, and its box (left, top, right, bottom in pixels)."""

    name: str
    score: float
    box: list[float]


@dataclass(frozen=True)
class ObjectPrediction:
    """The likely objects of an image, and where all objects, with masks, and a picture were written."""

    file: str
    objects: list[DetectedObject]
    json: str
    overlay: str

    def __str__(self) -> str:
        words = ", ".join(f"{item.name} {item.score:.0%}" for item in self.objects) or "nothing"
        return f"{self.file}: {words}; {self.overlay}"


@register_task
class Detect(FileTask):
    """Boxes and masks of objects, with Mask R-CNN or a cascade of it."""

    facts, objective, batches, batch_norm = DETECT, DETECTION, SceneBatches, False

    def space(self, space: Space, options: DetectOptions) -> Space:
        head = {"head": options.head, "decoder_dim": options.decoder_dim, "masks": options.masks}
        return dense_space(space, self.name, **head)

    def open(self, root: Path, options: Any, bad: BadImages, **amounts: Any) -> FileData:
        return open_scenes(root, options, bad, **amounts)

    def judge(self, model: Any, batches: BatchSource, split: Split, classes: Sequence[str]) -> DetectionScores:
        assert isinstance(batches, SceneBatches)
        metric = CocoAP(classes, batches.img_size, ("bbox", "segm") if model.options["masks"] else ("bbox",))
        for answers, scenes in predictions(model, batches, split):
            metric.update(answers, scenes)  # type: ignore[arg-type]
        return metric.judge()

    def picture(self, model: nn.Module, batches: SceneBatches, split: Split, index: int) -> Image.Image:
        image, scene = batches.pair(batches.files[split], index)
        answer = detect_image(model, image, batches.img_size, batches.mean, batches.std).sure()
        true = scene.target()
        words = [batches.classes[instance.label] for instance in scene.instances if not instance.crowd]
        truth = draw_objects(image, true["boxes"], true.get("masks"), true["labels"] - 1, words)
        return side_by_side(truth, answer.draw(image, batches.classes))

    def predict(self, trained: TrainedModel, options: PredictOptions) -> Iterator[ObjectPrediction]:
        folder = options.folder("boxes and masks")
        for file, stem in zip(options.images, unique_stems(options.images), strict=True):
            image = read_named(file, trained.in_chans)
            objects = detect_image(trained.model, image, trained.img_size, trained.mean, trained.std)
            table, picture = folder / f"{stem}.json", folder / f"{stem}_overlay.png"
            write_json(table, {"file": file, "objects": coco_results(objects, trained.classes)})
            objects.sure().draw(image, trained.classes).save(picture)
            yield ObjectPrediction(file, list_objects(objects.sure(), trained.classes), str(table), str(picture))


def list_objects(objects: DetectedObjects, classes: Sequence[str]) -> list[DetectedObject]:
    lines = zip(objects.labels.tolist(), objects.scores.tolist(), objects.boxes.tolist(), strict=True)
    return [DetectedObject(classes[label], score, box) for label, score, box in lines]


def coco_results(objects: DetectedObjects, classes: Sequence[str]) -> list[dict[str, Any]]:
    """All objects, with masks in the compressed run lengths of COCO's results."""
    lines = [asdict(item) for item in list_objects(objects, classes)]
    for line, mask in zip(lines, objects.masks or [], strict=False):
        line["segmentation"] = {"size": list(mask["size"]), "counts": mask["counts"].decode()}
    return lines
