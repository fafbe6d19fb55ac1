"""Batches of masks, joint augmentation, the loss and the metric of segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.tasks.batches import fit, jitter, unfit
from nasformer.tasks.masks import compare_masks, indexed, open_masks, overlay, with_legend
from nasformer.tasks.options import SegmentOptions
from nasformer.tasks.registry import example_images
from nasformer.tasks.segment import MaskBatches, MeanIoU, Segmentation, pixel_cross_entropy, segment_image
from nasformer.utils.rng import generator
from tasks.shapes import CLASSES, write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("shapes"), 6, 3, 2)


def batches(root: Path, workers: int = 0, **changes: Any) -> MaskBatches:
    data = open_masks(root, SegmentOptions(), BadImages(quiet=True), holdout=0.1, seed=0)
    return MaskBatches(data, AugmentOptions(color_jitter=0.4), 4, img_size=32, workers=workers, **changes)


def test_a_batch_depends_on_seed_and_step_alone(root: Path) -> None:
    ahead = batches(root).train_batches()
    first, second = next(ahead), next(ahead)
    for given, again in zip(second, next(batches(root, workers=2).train_batches(1)), strict=True):
        assert torch.equal(given, again)
    assert not torch.equal(first[0], second[0])
    x, masks = first
    assert x.shape == (4, 3, 32, 32)
    assert masks.shape == (4, 32, 32)
    assert masks.dtype == torch.int64


def test_ranks_share_a_batch(root: Path) -> None:
    whole, _ = next(batches(root).train_batches())
    parts = [next(batches(root, rank=rank, world=2).train_batches())[0] for rank in range(2)]
    assert torch.equal(torch.cat(parts), whole)


def test_evaluation_keeps_masks_at_their_own_size_and_order(root: Path) -> None:
    seen = list(batches(root, workers=2).evaluation("holdout", 2))
    assert [len(x) for x, _ in seen] == [2, 1]
    assert all(mask.shape == (24, 32) for _, masks in seen for mask in masks)
    assert [x.shape for x in batches(root).calibration(5, 3)] == [(3, 3, 32, 32), (2, 3, 32, 32)]


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_image_and_mask_are_jittered_together(scale: float) -> None:
    """The mask of an image that shows its own mask is found again in the jittered image."""
    mask = torch.zeros(40, 60, dtype=torch.uint8)
    mask[10:30, 20:50] = 1
    image = (200 * mask).expand(3, -1, -1).contiguous()
    options = SegmentOptions(scale_min=scale, scale_max=scale)
    for seed in range(4):
        augment = AugmentOptions(hflip=0.5)
        picture, classes = jitter(image, mask, 48, options, augment, [77] * 3, generator(seed))
        assert picture.shape == (3, 48, 48)
        assert classes.shape == (48, 48)
        known = classes != 255
        assert torch.equal(known, (picture[0] != 77) | (classes == 1)) or scale > 1
        wrong = ((picture[0] > 100) != (classes == 1)) & known
        assert wrong.float().mean() < 0.05  # along edges, which are interpolated
        assert (scale >= 1) or not known.all()


def test_unfit_takes_back_what_fit_does() -> None:
    image = torch.zeros(3, 20, 50, dtype=torch.uint8)
    image[:, 5:15, 10:40] = 255
    square = fit(image, 100, [0, 0, 0])
    assert square.shape == (3, 100, 100)
    assert int(square[:, 40:].max()) == 0
    assert torch.equal(unfit(square, 20, 50) > 127, image > 127)


def test_the_loss_leaves_ignored_pixels_out() -> None:
    logits, targets = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randint(0, 3, (2, 4, 4))
    ignored = targets.clone()
    ignored[:, 2:] = 255
    expected = torch.nn.functional.cross_entropy(logits[:, :, :2], targets[:, :2])
    torch.testing.assert_close(pixel_cross_entropy(logits, logits, ignored), expected)
    nothing = pixel_cross_entropy(logits, logits, torch.full_like(targets, 255))
    assert nothing == 0
    assert nothing.requires_grad


def test_perfect_answers_score_1_and_wrong_ones_0() -> None:
    mask = torch.tensor([[0, 1, 2, 255]])
    right, wrong = (torch.nn.functional.one_hot(answer, 3).permute(2, 0, 1) for answer in (mask % 3, (mask + 1) % 3))
    for answer, score in ((right, 1.0), (wrong, 0.0)):
        metric = MeanIoU(CLASSES)
        metric.add(answer.argmax(0), mask)
        assert metric.counts.sum() == 3
        assert metric.by_image == [score]


def test_miou_equals_that_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    source = torch.Generator().manual_seed(0)
    metric = MeanIoU(["a", "b", "c", "d", "e"])
    theirs = torchmetrics.JaccardIndex(task="multiclass", num_classes=5, ignore_index=255)
    single = torchmetrics.JaccardIndex(task="multiclass", num_classes=5, ignore_index=255, average="none")
    for _ in range(3):  # class 4 occurs in no mask and no answer
        mask, answer = (torch.randint(0, 4, (9, 11), generator=source) for _ in range(2))
        mask[:2] = 255
        metric.add(answer, mask)
        theirs.update(answer[None], mask[None])
        single.update(answer[None], mask[None])
    found = Segmentation(metric.counts, metric.classes, 0.0, metric.by_image)
    torch.testing.assert_close(found.scores["miou"], float(theirs.compute()))
    assert found.by_class[4].iou is None
    torch.testing.assert_close([score.iou for score in found.by_class[:4]], single.compute()[:4].tolist())


def test_examples_are_the_best_the_median_and_the_worst() -> None:
    assert example_images([0.5, float("nan"), 0.9, 0.1]) == {"best": 2, "median": 0, "worst": 3}


def test_what_is_for_classification_is_refused(root: Path) -> None:
    data = open_masks(root, SegmentOptions(), BadImages(quiet=True), holdout=0.1, seed=0)
    with pytest.raises(UserError, match=r"train.augment.mixup is for classification"):
        MaskBatches(data, AugmentOptions(mixup=0.8), 4, img_size=32)
    with pytest.raises(UserError, match="balance is for classification"):
        _ = batches(root).class_counts
    with pytest.raises(UserError, match="give ids from 0 to 65535 such as 11,255"):
        SegmentOptions(ignore="sky")
    with pytest.raises(UserError, match="exchange them"):
        SegmentOptions(scale_min=2, scale_max=1)


def test_pictures() -> None:
    image, mask = torch.full((1, 4, 6), 100, dtype=torch.uint8), torch.zeros(4, 6, dtype=torch.uint8)
    mask[0] = 1
    assert overlay(image, mask).getpixel((0, 0)) == (117, 40, 40)
    assert overlay(image, mask).getpixel((0, 3)) == (40,) * 3
    assert compare_masks(image, mask, mask).size == (3 * 6 + 8, 4)
    assert indexed(mask).getpixel((0, 0)) == 1
    named = with_legend(compare_masks(image, mask, mask).resize((260, 40)), ["sky", "road", "car"], mask, mask)
    lines = -(-mask.unique().numel() // 2)
    assert named.size == (260, 40 + 4 + 16 * lines)
    assert (128, 0, 0) in named.crop((0, 44, 130, 60)).get_flattened_data()  # the colour of roads


class Brightness(torch.nn.Module):
    """A model of two classes that knows bright pixels from dark ones, wherever they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.weight = size, torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[2:] == (self.size, self.size)
        return 4 * self.weight * torch.stack([-x[:, 0], x[:, 0]], 1)


def test_several_scales_and_the_mirrored_image_find_the_same_of_what_does_not_depend_on_them() -> None:
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 8:30, 12:24] = 255
    options = SegmentOptions(test_scales="0.5,1,1.5,2", test_flip=True)
    logits = segment_image(Brightness(32), image, 32, (0.5,) * 3, (0.5,) * 3, options)
    assert logits.shape == (2, 40, 60)
    torch.testing.assert_close(logits.exp().sum(0), torch.ones(40, 60))
    wrong = logits.argmax(0) != (image[0] > 127)
    assert wrong.float().mean() < 0.06  # along edges, which are blurred


def test_a_single_view_is_what_the_metric_sees(root: Path) -> None:
    source, model = batches(root), Brightness(32)
    image, mask = next(source.pairs("test"))
    x, _ = next(source.evaluation("test", 1))
    logits = segment_image(model, image, 32, source.mean, source.std)
    torch.testing.assert_close(logits, unfit(model(x)[0], *mask.shape))
    with pytest.raises(UserError, match="give numbers above 0 such as"):
        SegmentOptions(test_scales="0,1")
