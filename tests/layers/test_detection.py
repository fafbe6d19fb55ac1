"""The detection head against torchvision's Mask R-CNN, and the stages of the cascade on hand-made boxes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.layers.detection import (
    BOX_WEIGHTS,
    DETECTIONS,
    IOU,
    CascadeRoIHeads,
    DetectionHead,
    match,
    refine,
    roi_heads,
)

CHANNELS, GRIDS, SIZE, CLASSES, DIM = (6, 8, 10), ((16, 16), (8, 8), (4, 4)), (64, 64), 3, 8


def make_head(**options: Any) -> DetectionHead:
    torch.manual_seed(0)
    head = DetectionHead(CHANNELS, GRIDS, SIZE, CLASSES, DIM, **options)
    for weight in head.parameters():
        nn.init.normal_(weight, std=0.05)
    return head


def make_maps() -> list[Tensor]:
    source = torch.Generator().manual_seed(1)
    return [torch.randn(2, width, *grid, generator=source) for width, grid in zip(CHANNELS, GRIDS, strict=True)]


def make_targets() -> list[dict[str, Tensor]]:
    masks = torch.zeros(2, *SIZE, dtype=torch.uint8)
    masks[0, 10:40, 8:30] = masks[1, 30:60, 30:62] = 1
    boxes = torch.tensor([[8.0, 10, 30, 40], [30, 30, 62, 60]])
    objects = {"boxes": boxes, "labels": torch.tensor([1, 3]), "masks": masks}
    return [objects, {name: value[:0] for name, value in objects.items()}]  # the second image is empty


class Features(nn.Module):
    """What the head makes of the maps before it looks for regions, in place of a backbone."""

    out_channels = DIM

    def __init__(self, head: DetectionHead, maps: list[Tensor]) -> None:
        super().__init__()
        self.head, self.maps = head, maps

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        named = {str(i): norm(x) for i, (norm, x) in enumerate(zip(self.head.norms, self.maps, strict=True))}
        return self.head.fpn(named)


def test_mask_rcnn_equals_torchvisions() -> None:
    head, maps = make_head(), make_maps()
    theirs = MaskRCNN(
        Features(head, maps),
        min_size=64,
        max_size=64,
        _skip_resize=True,  # which draws a size at random
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        rpn_anchor_generator=head.rpn.anchor_generator,
        box_roi_pool=head.roi.box_roi_pool,
        box_head=type(head.roi.box_head)(DIM * 49, 4 * DIM),
        box_predictor=type(head.roi.box_predictor)(4 * DIM, CLASSES + 1),
        mask_roi_pool=head.roi.mask_roi_pool,
        mask_head=MaskRCNNHeads(DIM, (DIM,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(DIM, DIM, CLASSES + 1),
    )
    theirs.rpn.load_state_dict(head.rpn.state_dict())
    theirs.roi_heads.load_state_dict(head.roi.state_dict())
    images, targets = [torch.zeros(3, *SIZE)] * 2, make_targets()
    torch.manual_seed(3)
    ours = head.train()(maps, targets)
    torch.manual_seed(3)
    assert_same(ours, theirs.train()(images, targets))
    with torch.no_grad():
        for own, other in zip(head.eval()(maps), theirs.eval()(images), strict=True):
            assert len(own["boxes"])
            assert_same(own | {"masks": paste_masks_in_image(own["masks"], own["boxes"], SIZE)}, other)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6)


def make_cascade() -> CascadeRoIHeads:
    return make_head(cascade=True).roi  # type: ignore[return-value]


@pytest.mark.parametrize("number", range(3))
def test_a_stage_learns_what_makes_its_regions_true_boxes(number: int) -> None:
    stage = make_cascade().stages[number]
    regions, (target, empty) = [torch.tensor([[9.0, 11, 31, 38]]), torch.tensor([[1.0, 2, 9, 9]])], make_targets()
    labels, wanted = match(stage, regions, [target, empty])
    assert [label.tolist() for label in labels] == [[1], [0]]
    torch.testing.assert_close(refine(stage, wanted[0], regions[:1], [SIZE])[0], target["boxes"][:1])


def test_stages_ask_for_better_boxes_each() -> None:
    """Regions that have the IoUs 0.45, 0.55, 0.65 and 0.75 with an object of 40 x 40 pixels."""
    target = {"boxes": torch.tensor([[0.0, 0, 40, 40]]), "labels": torch.tensor([2])}
    regions = torch.tensor([[0.0, 0, 40, 40 * iou] for iou in (0.45, 0.55, 0.65, 0.75)])
    labels = [match(stage, [regions], [target])[0][0].tolist() for stage in make_cascade().stages]
    assert labels == [[0, 2, 2, 2], [0, 0, 2, 2], [0, 0, 0, 2]]


def test_a_cascade_answers_the_mean_score_and_the_boxes_of_the_last_stage() -> None:
    cascade = make_cascade().eval()
    logits = torch.tensor([[0.0, 3, 0, 0], [0, 2, 1, 0], [1, 2, 0, 0]])
    for stage, bias in zip(cascade.stages, logits, strict=True):
        nn.init.zeros_(stage.box_predictor.cls_score.weight)
        nn.init.zeros_(stage.box_predictor.bbox_pred.weight)
        stage.box_predictor.cls_score.bias.data = bias
        stage.box_predictor.bbox_pred.bias.data = torch.tensor([1.0, 0, 0, 0])  # to the right by a share of the width
    features = {str(number): torch.randn(1, DIM, *grid) for number, grid in enumerate(GRIDS)}
    with torch.no_grad():
        ((found,), losses) = cascade(features, [torch.tensor([[0.0, 0, 12, 24]])], [SIZE])
    assert losses == {}
    best = found["scores"].argmax()
    assert found["labels"][best] == 1
    torch.testing.assert_close(found["scores"][best], logits.softmax(1).mean(0)[1])
    shift = 12 * sum(1 / weights[0] for weights in BOX_WEIGHTS)
    torch.testing.assert_close(found["boxes"][best], torch.tensor([shift, 0, 12 + shift, 24]))


def test_a_cascade_trains_every_stage_and_one_mask_head() -> None:
    head = make_head(cascade=True).train()
    losses = head(make_maps(), make_targets())
    assert {f"loss_classifier_{number}" for number in (1, 2, 3)} < losses.keys()
    sum(losses.values()).backward()
    assert [name for name, weight in head.named_parameters() if weight.grad is None] == []
    assert len(IOU) == len(head.roi.stages)
    assert [stage.mask_head is not None for stage in head.roi.stages] == [True, False, False]


def test_an_empty_batch_has_losses() -> None:
    for cascade in (False, True):
        losses = make_head(cascade=cascade).train()(make_maps(), [make_targets()[1]] * 2)
        assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("options", [{}, {"cascade": True}, {"masks": False}], ids=str)
def test_costs_are_those_of_the_layers(options: dict[str, bool]) -> None:
    head, counted = make_head(**options).eval(), [0]

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        if isinstance(layer, nn.ConvTranspose2d):
            counted[0] += inputs[0].numel() * layer.weight[0].numel()
        else:
            counted[0] += output.numel() * layer.weight[0].numel()

    for layer in head.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            layer.register_forward_hook(count)
    regions = min(1000, 3 * sum(rows * columns for rows, columns in (*GRIDS, (2, 2))))
    proposals = torch.tensor([[0.0, 0, 20, 20]]).repeat(regions, 1)
    head.rpn.filter_proposals = lambda *given: ([proposals], None)  # as many as there can be
    last = head.roi.stages[-1] if options.get("cascade") else head.roi
    labels = torch.ones(DETECTIONS, dtype=torch.int64)
    last.postprocess_detections = lambda *given: ([proposals[:DETECTIONS]], [labels.float()], [labels])
    with torch.no_grad():
        head([x[:1] for x in make_maps()])
    cost = DetectionHead.cost(CHANNELS, GRIDS, SIZE, CLASSES, DIM, **options)
    assert cost.params == sum(weight.numel() for weight in head.parameters())
    assert cost.macs == counted[0] + norm_macs()


def norm_macs() -> int:
    from nasformer.layers.basic import norm_cost

    return sum(norm_cost(width).macs for width in CHANNELS)


def test_other_classes_get_fresh_classifiers() -> None:
    for cascade in (False, True):
        head = make_head(cascade=cascade)
        head.reset(5)
        with torch.no_grad():
            head.eval()(make_maps())
        assert roi_heads(DIM, ["0"], 0.5, BOX_WEIGHTS[0], masks=False).mask_head is None
        first = head.roi.stages[0] if cascade else head.roi
        assert first.box_predictor.cls_score.out_features == 6
