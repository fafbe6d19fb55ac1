"""Detection head: boxes, classes and masks of objects, on the feature maps of a backbone.

Mask R-CNN (He et al. 2017) of torchvision's parts: a feature pyramid, proposals of regions, and heads that look at each
region; and Cascade Mask R-CNN (Cai & Vasconcelos 2018), whose three box heads each start from the boxes of the one
before. Losses need the true boxes inside the head, as these decide which regions are looked at: so in training the head
is given targets and gives losses, otherwise it gives detections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, clip_boxes_to_image
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from nasformer.layers.basic import Cost, MapNorm, linear_cost, norm_cost
from nasformer.layers.segmentation import SimpleFeaturePyramid, as_map, pyramid_cost, pyramid_scales, scaled_grid
from nasformer.layers.stem import Grid

ANCHOR = 8
"""Side of the anchors of a map, in its positions: 32 pixels where a position has 4."""
RATIOS = (0.5, 1.0, 2.0)
"""Height to width of anchors."""
PROPOSALS = 1000
"""Most regions that the box heads look at; costs count as many."""
DETECTIONS = 100
"""Most objects that are detected and get a mask; costs count as many."""
BOX_SIDE = 7
"""Rows and columns to which regions are pooled."""
MASK_SIDE = 14
"""The same for masks."""
MASK_LAYERS = 4
IOU = (0.5, 0.6, 0.7)
"""Of a cascade, how well a box must fit an object to be learned as one, stage by stage."""
BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
LOSS_WEIGHTS = (1.0, 0.5, 0.25)

Target = dict[str, Tensor]
"""The objects of an image: boxes [n, 4] as left, top, right, bottom in pixels, labels [n] from 1 on, and masks."""
Detection = dict[str, Tensor]
"""The detections in an image: boxes, labels and scores, and masks [n, 1, 28, 28], each within its box."""


class DetectionHead(nn.Module):
    """Detector of objects on the maps of a backbone.

    Args:
        channels: Of each map, the finest first; of a single one a simple feature pyramid is made.
        grids: Rows and columns of each map, which may come as tokens with others before them.
        img_size: Rows and columns of the images.
        num_classes: Without the background, which is class 0 inside the head.
        dim: Channels within the head.
        cascade: Three box heads in place of one.
        masks: Whether objects get masks.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        cascade: bool = False,
        masks: bool = True,
    ) -> None:
        super().__init__()
        self.grids, self.img_size, self.dim, self.embed_dim = grids, img_size, dim, channels[-1]
        self.pyramid: SimpleFeaturePyramid | None = None
        if len(channels) == 1:
            scales = pyramid_scales(img_size[0] // grids[0][0])
            self.pyramid = SimpleFeaturePyramid(channels[0], dim, scales)
            channels, grids = (dim,) * len(scales), tuple(scaled_grid(grids[0], scale) for scale in scales)
        self.norms = nn.ModuleList(MapNorm(width) for width in channels)
        self.fpn = FeaturePyramidNetwork(list(channels), dim, LastLevelMaxPool())
        self.rpn = region_proposals(dim, [img_size[0] / rows for rows, _ in grids])
        names = [str(number) for number in range(len(channels))]
        if cascade:
            parts = zip(IOU, BOX_WEIGHTS, strict=True)
            stages = [roi_heads(dim, names, iou, weights, masks and iou == IOU[0]) for iou, weights in parts]
            self.roi: RoIHeads | CascadeRoIHeads = CascadeRoIHeads(stages)
        else:
            self.roi = roi_heads(dim, names, IOU[0], BOX_WEIGHTS[0], masks)
        self.reset(num_classes)

    def reset(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes fresh classifiers of regions and masks, on the device of the old weights."""
        device, cascade = next(self.parameters()).device, isinstance(self.roi, CascadeRoIHeads)
        stages: Any = self.roi.stages if cascade else [self.roi]
        predictor = AgnosticPredictor if cascade else FastRCNNPredictor
        for stage in stages:
            stage.box_predictor = predictor(4 * self.dim, num_classes + 1).to(device)
        if stages[0].mask_head is not None:
            stages[0].mask_predictor = MaskRCNNPredictor(self.dim, self.dim, num_classes + 1).to(device)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, outputs: list[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[Detection]:
        """Losses by name for targets, which come in training; otherwise the detections in each image."""
        maps = [as_map(x, grid) for x, grid in zip(outputs, self.grids, strict=True)]
        if self.pyramid is not None:
            maps = self.pyramid(maps[0])
        named = {str(number): norm(x) for number, (norm, x) in enumerate(zip(self.norms, maps, strict=True))}
        features = self.fpn(named)
        # Coordinates of boxes need more than the eight bits of bf16.
        with torch.autocast(maps[0].device.type, enabled=False):
            features = {name: x.float() for name, x in features.items()}
            count = len(features["0"])
            shape = features["0"].new_empty(()).expand(count, 1, *self.img_size)  # torchvision asks for sizes alone
            proposals, losses = self.rpn(ImageList(shape, [self.img_size] * count), features, targets)
            detections, roi_losses = self.roi(features, proposals, [self.img_size] * count, targets)
        return {**losses, **roi_losses} if self.training else detections

    @staticmethod
    def cost(
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        cascade: bool = False,
        masks: bool = True,
    ) -> Cost:
        """The cost of an image with as many proposals and objects as the head looks at."""
        total = Cost()
        if len(channels) == 1:
            total, channels, grids = pyramid_cost(channels, grids, dim, pyramid_scales(img_size[0] // grids[0][0]))
        for width, (rows, columns) in zip(channels, grids, strict=True):
            total += norm_cost(width) + linear_cost(rows * columns, width, dim)
            total += linear_cost(rows * columns, 9 * dim, dim)
        levels = [rows * columns for rows, columns in (*grids, scaled_grid(grids[-1], 0.5))]
        positions, anchors = sum(levels), len(RATIOS)
        total += linear_cost(positions, 9 * dim, dim) + linear_cost(positions, dim, 5 * anchors)
        regions = min(PROPOSALS, anchors * positions)
        box_outputs = 4 if cascade else 4 * (num_classes + 1)
        for _ in IOU if cascade else IOU[:1]:
            total += linear_cost(regions, dim * BOX_SIDE**2, 4 * dim) + linear_cost(regions, 4 * dim, 4 * dim)
            total += linear_cost(regions, 4 * dim, num_classes + 1 + box_outputs)
        return total + mask_cost(min(DETECTIONS, regions), dim, num_classes) if masks else total


def mask_cost(objects: int, dim: int, num_classes: int) -> Cost:
    """The cost of the mask head for a number of objects."""
    positions, total = objects * MASK_SIDE**2, Cost()
    for _ in range(MASK_LAYERS):
        total += linear_cost(positions, 9 * dim, dim)
    total += Cost(dim * dim * 4 + dim, positions * dim * dim * 4)
    return total + linear_cost(4 * positions, dim, num_classes + 1)


def region_proposals(dim: int, strides: Sequence[float]) -> RegionProposalNetwork:
    """Proposals on all maps and a coarser one, with the settings that Mask R-CNN has on COCO."""
    sizes = tuple((round(ANCHOR * stride),) for stride in (*strides, 2 * strides[-1]))
    return RegionProposalNetwork(
        AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        RPNHead(dim, len(RATIOS)),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 2000, "testing": PROPOSALS},
        post_nms_top_n={"training": 2000, "testing": PROPOSALS},
        nms_thresh=0.7,
    )


def roi_heads(
    dim: int, names: list[str], iou: float, box_weights: tuple[float, float, float, float], masks: bool
) -> RoIHeads:
    """Heads that look at regions, without their classifiers."""
    heads: dict[str, Any] = {}
    if masks:
        pool = MultiScaleRoIAlign(names, MASK_SIDE, sampling_ratio=2)
        heads = {"mask_roi_pool": pool, "mask_head": MaskRCNNHeads(dim, (dim,) * MASK_LAYERS, 1)}
    return RoIHeads(
        MultiScaleRoIAlign(names, BOX_SIDE, sampling_ratio=2),
        TwoMLPHead(dim * BOX_SIDE**2, 4 * dim),
        None,
        fg_iou_thresh=iou,
        bg_iou_thresh=iou,
        batch_size_per_image=512,
        positive_fraction=0.25,
        bbox_reg_weights=box_weights,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=DETECTIONS,
        **heads,
    )


# The cascade


class AgnosticPredictor(nn.Module):
    """Classes of regions, and one correction of each box whatever its class."""

    def __init__(self, in_dim: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.cls_score, self.bbox_pred = nn.Linear(in_dim, num_classes), nn.Linear(in_dim, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the correction once for each class, as torchvision's losses expect it."""
        return self.cls_score(x), self.bbox_pred(x).repeat(1, self.num_classes)


class CascadeRoIHeads(nn.Module):
    """Box heads, each on the boxes of the one before, and the mask head of the first.

    Regions are sampled for the first stage and matched anew for the others, by a stricter IoU each. Scores are the mean
    of all stages, boxes those of the last. (MMDetection has a mask head in each stage.)
    """

    def __init__(self, stages: Sequence[RoIHeads]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        shapes: list[Grid],
        targets: Sequence[Target] | None = None,
    ) -> tuple[list[Detection], dict[str, Tensor]]:
        if self.training:
            assert targets is not None
            return [], self.losses(features, proposals, shapes, targets)
        return self.detect(features, proposals, shapes), {}

    def losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], shapes: list[Grid], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        first: Any = self.stages[0]
        losses: dict[str, Tensor] = {}
        regions, matched, labels, box_targets = first.select_training_samples(proposals, targets)
        if first.mask_head is not None:
            losses["loss_mask"] = mask_loss(first, features, regions, matched, labels, shapes, targets)
        for number, (stage, weight) in enumerate(zip(self.stages, LOSS_WEIGHTS, strict=True)):
            if number:
                labels, box_targets = match(stage, regions, targets)
            logits, corrections = predict_boxes(stage, features, regions, shapes)
            losses_of_stage = fastrcnn_loss(logits, corrections, labels, box_targets)
            for name, loss in zip(("classifier", "box_reg"), losses_of_stage, strict=True):
                losses[f"loss_{name}_{number + 1}"] = weight * loss
            regions = refine(stage, corrections.detach(), regions, shapes)
        return losses

    def detect(self, features: dict[str, Tensor], proposals: list[Tensor], shapes: list[Grid]) -> list[Detection]:
        first, last = self.stages[0], self.stages[-1]
        regions, probabilities = proposals, list[Tensor]()
        for stage in self.stages:
            proposals = regions
            logits, corrections = predict_boxes(stage, features, proposals, shapes)
            probabilities.append(F.softmax(logits, -1))
            regions = refine(stage, corrections, proposals, shapes)
        mean = torch.stack(probabilities).mean(0).log()  # of which torchvision takes the softmax
        boxes, scores, labels = last.postprocess_detections(mean, corrections, proposals, shapes)  # type: ignore[operator]
        detections = [
            {"boxes": box, "scores": score, "labels": label}
            for box, score, label in zip(boxes, scores, labels, strict=True)
        ]
        if first.mask_head is not None:
            logits = predict_masks(first, features, boxes, shapes)
            for detection, masks in zip(detections, maskrcnn_inference(logits, labels), strict=True):
                detection["masks"] = masks
        return detections


def predict_boxes(
    stage: Any, features: dict[str, Tensor], regions: list[Tensor], shapes: list[Grid]
) -> tuple[Tensor, Tensor]:
    """Logits of all regions, and corrections of their boxes."""
    return stage.box_predictor(stage.box_head(stage.box_roi_pool(features, regions, shapes)))


def predict_masks(stage: Any, features: dict[str, Tensor], regions: list[Tensor], shapes: list[Grid]) -> Tensor:
    """Logits of a mask of each class for all regions."""
    return stage.mask_predictor(stage.mask_head(stage.mask_roi_pool(features, regions, shapes)))


def match(stage: Any, regions: list[Tensor], targets: Sequence[Target]) -> tuple[list[Tensor], list[Tensor]]:
    """Labels of regions by the IoU that a stage asks for, and the corrections that would make them true boxes."""
    boxes, labels = [target["boxes"] for target in targets], [target["labels"] for target in targets]
    matched, labels = stage.assign_targets_to_proposals(regions, boxes, labels)
    boxes = [box if len(box) else box.new_zeros(1, 4) for box in boxes]
    true_boxes = [box[index] for box, index in zip(boxes, matched, strict=True)]
    return labels, list(stage.box_coder.encode(true_boxes, regions))


def refine(stage: Any, corrections: Tensor, regions: list[Tensor], shapes: list[Grid]) -> list[Tensor]:
    """Regions with their boxes corrected, clipped to their images."""
    boxes = stage.box_coder.decode(corrections[:, :4], regions)[:, 0]
    parts = boxes.split([len(region) for region in regions])
    return [clip_boxes_to_image(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def mask_loss(
    stage: Any,
    features: dict[str, Tensor],
    regions: list[Tensor],
    matched: list[Tensor],
    labels: list[Tensor],
    shapes: list[Grid],
    targets: Sequence[Target],
) -> Tensor:
    """The loss of the masks of regions that have an object."""
    objects = [torch.where(label > 0)[0] for label in labels]
    boxes = [region[index] for region, index in zip(regions, objects, strict=True)]
    logits = predict_masks(stage, features, boxes, shapes)
    true_masks, true_labels = [target["masks"] for target in targets], [target["labels"] for target in targets]
    indices = [index[chosen] for index, chosen in zip(matched, objects, strict=True)]
    return maskrcnn_loss(logits, boxes, true_masks, true_labels, indices)
