"""Panoptic segmentation: files, targets, loss, grouping of hand-made maps, and PQ by its definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from families.small import family_space, image_size, images, randomise, small_space
from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.models.dense import dense_space
from nasformer.models.registry import list_families
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.masks import with_legend
from nasformer.tasks.panoptic import (
    CROWD,
    KINDS,
    Answer,
    PanopticBatches,
    class_qualities,
    colours,
    draw_segments,
    find_centres,
    group,
    list_segments,
    make_targets,
    match_segments,
    open_panoptic,
    panoptic_loss,
    segments_png,
)
from tasks.shapes import save_ids, write_panoptic

VOID = 255
# A net with one map and one with four; the others take longer.
FAMILIES = [
    pytest.param(name, marks=() if name in ("autoformer", "s3") else pytest.mark.slow) for name in list_families()
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_panoptic(tmp_path / "set", train=4, val=3)


def opened(root: Path, max_bad: float = 0.0) -> tuple[Any, BadImages]:
    bad = BadImages(max_bad, quiet=True)
    return open_panoptic(root, bad, holdout=0.25, seed=0), bad


def thing(kind: int, instance: int) -> int:
    return kind + KINDS * instance


# Files


def test_segments_are_read_with_things_first(root: Path) -> None:
    data, _ = opened(root)
    assert data.labels.classes == ["square", "disc", "wall", "floor"]
    assert data.labels.num_things == 2
    assert [len(part) for part in data.splits.parts()] == [3, 1, 3]  # val is the test part, as there is no other
    segments = data.labels.read(data.splits.train.masks[0])
    kinds, instances = segments % KINDS, segments // KINDS
    assert set(kinds[0].tolist()) == {VOID}
    assert set(instances[kinds < 2].tolist()) == {1, 2}
    assert set(instances[kinds >= 2].tolist()) == {0}


def change(root: Path, edit: Any) -> None:
    path = root / "annotations" / "panoptic_train.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda content: content["annotations"].pop(0), "it has no PNG of segments"),
        (
            lambda content: content["annotations"][0]["segments_info"].pop(),
            "a segment 2000 that the JSON file does not",
        ),
        (
            lambda content: content["annotations"][0]["segments_info"][0].update(category_id=99),
            "category of segment 11",
        ),
    ],
)
def test_annotations_that_cannot_be_used_are_left_out_and_named(root: Path, edit: Any, reason: str) -> None:
    change(root, edit)
    with pytest.raises(UserError, match="1 of 7 images cannot be read"):
        opened(root)
    data, bad = opened(root, max_bad=0.5)
    assert [reason in text for text in bad.reasons.values()] == [True]
    assert sum(len(part) for part in data.splits.parts()) == 6


def test_pngs_that_cannot_be_used_are_left_out_and_named(root: Path) -> None:
    folder = root / "annotations" / "panoptic_train"
    save_ids(np.zeros((5, 5), int), folder / "000.png")
    (folder / "001.png").write_bytes(b"no image")
    (folder / "002.png").unlink()
    _, bad = opened(root, max_bad=0.9)
    reasons = sorted(bad.reasons.values())
    assert reasons[0] == "it has no PNG of segments"
    assert reasons[1].startswith("the PNG of segments cannot be read")
    assert reasons[2] == "the mask has 5 x 5 pixels, the image 32 x 24"


def test_a_folder_without_panoptic_files_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no annotations/panoptic_train\*.json; expected COCO's layout"):
        opened(tmp_path)
    change(root, lambda content: content["categories"][0].pop("isthing"))
    with pytest.raises(UserError, match="an entry of categories lacks one of id, name, isthing"):
        opened(root)


def test_crowds_teach_nothing_and_are_kept_apart(root: Path) -> None:
    for number in range(4):
        change(root, lambda content, n=number: content["annotations"][n]["segments_info"][2].update(iscrowd=1))
    data, _ = opened(root)
    segments = data.labels.read(data.splits.train.masks[0])
    crowd = segments // KINDS == CROWD
    assert crowd.any()
    targets = make_targets(segments, 2.0)
    assert (targets[0][crowd] == VOID).all()
    assert (targets[4][crowd] == 0).all()


# Targets and loss


def test_targets_lead_to_the_centres_of_things() -> None:
    segments = torch.full((20, 30), 2)
    segments[2:7, 3:8], segments[10:18, 20:28], segments[0] = thing(0, 1), thing(1, 2), VOID
    classes, heat, rows, columns, weights = make_targets(segments, 2.0)
    assert heat[4, 5] == 1
    assert find_centres(heat).tolist() == [[4, 5], [14, 24]]  # rounded to even
    assert (4 - rows[2:7, 3:8] == torch.arange(2, 7)[:, None]).all()
    assert (13.5 - rows[10:18, 20:28] == torch.arange(10, 18)[:, None]).all()
    assert (23.5 - columns[10:18, 20:28] == torch.arange(20, 28)).all()
    assert set(classes.unique().tolist()) == {0, 1, 2, VOID}
    assert (weights > 0).equal(segments // KINDS > 0)


def as_answer(targets: Tensor, num_classes: int) -> Tensor:
    """What a head without a mistake answers."""
    kinds = targets[0].long().clamp(max=num_classes - 1)
    logits = 50 * torch.nn.functional.one_hot(kinds, num_classes).permute(2, 0, 1)
    return torch.cat([logits, targets[1:4]])


def test_the_loss_is_0_for_what_is_learned_and_leaves_void_out() -> None:
    segments = torch.full((20, 30), 2)
    segments[2:7, 3:8], segments[12:] = thing(0, 1), VOID
    targets = make_targets(segments, 2.0)
    right = as_answer(targets, 3)[None]
    assert panoptic_loss(right, right, targets[None]) == pytest.approx(0, abs=1e-6)
    for channel, place in ((0, (8, 20)), (3, (8, 20)), (4, (4, 4))):
        wrong = right.clone()
        wrong[0, channel, *place] += 100
        assert panoptic_loss(wrong, wrong, targets[None]) > 1e-3
    ignored = right.clone()
    ignored[:, :, 12:] += torch.randn(6, 8, 30)
    assert panoptic_loss(ignored, ignored, targets[None]) == pytest.approx(0, abs=1e-6)


def test_heat_and_offsets_count_as_much_in_small_images_as_in_large_ones() -> None:
    def parts(scale: int) -> tuple[float, float]:
        segments = torch.full((40 * scale, 40 * scale), 1)
        segments[8 * scale : 24 * scale, 10 * scale : 28 * scale] = thing(0, 1)
        targets = make_targets(segments, 2.0 * scale)
        right = as_answer(targets, 2)[None]
        losses = []
        for channels in (slice(2, 3), slice(3, 5)):
            wrong = right.clone()
            wrong[:, channels] = 0
            losses.append(float(panoptic_loss(wrong, wrong, targets[None], sigma=2.0 * scale)))
        return losses[0], losses[1]

    assert parts(1) == pytest.approx(parts(4), rel=0.05)


# Grouping


def test_grouping_takes_back_what_targets_say() -> None:
    segments = torch.full((24, 40), 2)
    segments[2:9, 3:10], segments[2:9, 10:17], segments[14:22, 20:32] = thing(0, 1), thing(0, 2), thing(1, 3)
    found = group(Answer.of(as_answer(make_targets(segments, 2.0), 3)), num_things=2)
    assert found.unique().numel() == 4
    for value in segments.unique().tolist():
        inside = segments == value
        assert found[inside].unique().numel() == 1
        assert int(found[inside][0]) % KINDS == value % KINDS


def test_an_instance_has_the_class_of_most_of_its_pixels() -> None:
    segments = torch.full((20, 20), 2)
    segments[4:14, 4:14] = thing(0, 1)
    found = as_answer(make_targets(segments, 2.0), 3)
    found[:3, 4:7, 4:14] = torch.tensor([0.0, 9.0, 0.0]).view(3, 1, 1)  # three of ten rows are of another class
    assert set(group(Answer.of(found), 2)[4:14, 4:14].unique().tolist()) == {thing(0, 1)}


def test_without_centres_and_in_small_areas_pixels_have_no_class() -> None:
    segments = torch.full((20, 20), 2)
    segments[4:14, 4:14], segments[18:, 18:] = thing(0, 1), 3
    found = as_answer(make_targets(segments, 2.0), 4)
    found[4] = 0.05  # below the threshold everywhere
    grouped = group(Answer.of(found), 2, stuff_area=0.02)
    assert (grouped[4:14, 4:14] == VOID).all()
    assert (grouped[18:, 18:] == VOID).all()
    assert grouped[0, 0] == 2


def test_neighbours_as_hot_as_a_peak_are_no_centres() -> None:
    """Enlarged by an even factor, or rounded to bfloat16, a peak has equals beside it: each would cut its thing."""
    heat = make_targets(torch.full((8, 8), thing(0, 1)), 2.0)[1:2, None]
    enlarged = F.interpolate(heat, scale_factor=4, mode="bilinear", align_corners=False)[0, 0]
    assert (enlarged == enlarged.max()).sum() > 1
    assert len(find_centres(enlarged)) == 1
    assert len(find_centres(enlarged.bfloat16().float())) == 1
    assert len(find_centres(torch.ones(6, 6))) == 1


@pytest.mark.parametrize("stride", [1, 4])
def test_true_maps_at_the_heads_resolution_have_a_pq_of_nearly_1(stride: int) -> None:
    """What a head without a mistake answers, pooled to its positions and enlarged: targets and grouping agree."""
    segments = torch.full((96, 128), 2)
    segments[60:] = 3
    for number, (top, left) in enumerate(((4, 5), (8, 45), (8, 75), (50, 20), (62, 80)), 1):
        segments[top : top + 28, left : left + 26] = thing(number % 2, number)
    found = F.avg_pool2d(as_answer(make_targets(segments, 4.0), 4)[None], stride)
    answer = F.interpolate(found, segments.shape, mode="bilinear", align_corners=False)[0]
    sums = match_segments(group(Answer.of(answer), 2), segments, 4)
    assert sums[:, 2:].sum() == 0  # nothing wrong, nothing missed
    assert class_qualities(sums)[:, 0].min() > (0.999 if stride == 1 else 0.85)


# PQ


def test_pq_by_its_definition() -> None:
    """One match with IoU 0.6, one wrong and one missed: SQ 0.6, RQ 1 / 2."""
    truth, answer = torch.full((10, 20), 1), torch.full((10, 20), 1)
    truth[0, :8], answer[0, 2:10] = thing(0, 1), thing(0, 4)  # 6 of 10
    truth[5, :4], answer[7, :4] = thing(0, 2), thing(0, 5)
    (pq, sq, rq), (stuff, *_) = class_qualities(match_segments(answer, truth, 2)).tolist()
    assert (pq, sq, rq) == pytest.approx((0.3, 0.6, 0.5))
    both, either = int(((answer == 1) & (truth == 1)).sum()), int(((answer == 1) | (truth == 1)).sum())
    assert stuff == pytest.approx(both / either)


def test_void_and_crowds_make_no_answer_wrong() -> None:
    truth = torch.ones(10, 10, dtype=torch.int64)
    truth[:3], truth[3:6] = VOID, thing(0, CROWD)
    answer = torch.ones(10, 10, dtype=torch.int64)
    answer[:3], answer[3:5] = thing(0, 1), thing(0, 2)
    sums = match_segments(answer, truth, 2)
    assert sums[0].tolist() == [0, 0, 0, 0]
    assert sums[1].tolist()[1:] == [1, 0, 0]
    answer[3:5] = 1  # another class is no crowd of its own, but too little to be wrong
    assert match_segments(answer, truth, 2)[1, 1] == 1


def random_segments(source: torch.Generator) -> Tensor:
    """Overlapping rectangles: two classes of things, two of stuff, some void."""
    segments = torch.randint(2, 4, (1,), generator=source).expand(24, 24).clone()
    for number in range(6):
        top, left, height, width = torch.randint(1, 12, (4,), generator=source).tolist()
        kind = int(torch.randint(0, 4, (1,), generator=source))
        segments[top : top + height, left : left + width] = kind if kind > 1 else thing(kind, number + 1)
    segments[:1] = VOID
    return segments


def test_pq_equals_that_of_torchmetrics() -> None:
    detection = pytest.importorskip("torchmetrics.detection")
    settings = {"return_sq_and_rq": True, "return_per_class": True, "allow_unknown_preds_category": True}
    theirs = detection.PanopticQuality({0, 1}, {2, 3}, **settings)
    source, sums = torch.Generator().manual_seed(0), torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(8):
        truth = random_segments(source)
        answer = truth.roll(int(torch.randint(0, 3, (1,), generator=source)), 1)
        answer = torch.where(torch.rand(24, 24, generator=source) < 0.1, 2, answer)
        sums += match_segments(answer, truth, 4)
        theirs.update(*(torch.stack([segments % KINDS, segments // KINDS], -1)[None] for segments in (answer, truth)))
    ours = class_qualities(sums)
    torch.testing.assert_close(ours, theirs.compute().to(ours))


# Models and answers


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_head_alone_and_in_a_supernet(family: str) -> None:
    space = dense_space(small_space(family_space(family), num_classes=5), "panoptic", decoder_dim=16, num_things=2)
    supernet, x = randomise(Supernet(space)).eval(), images(space)
    arch = space.root.smallest()
    model = supernet.extract(arch)
    answer = model(x)
    assert answer.shape == (2, 5 + 3, *image_size(space))
    torch.testing.assert_close(supernet(x, arch), answer)
    assert space.cost(arch).params == sum(weight.numel() for weight in model.parameters())


def test_batches_carry_targets_and_what_the_head_must_know(root: Path) -> None:
    data, _ = opened(root)
    batches = PanopticBatches(data, AugmentOptions(hflip=0.5), 2, img_size=32, workers=0)
    x, targets = next(batches.train_batches())
    assert x.shape == (2, 3, 32, 32)
    assert targets.shape == (2, 5, 32, 32)
    assert batches.head_options == {"num_things": 2}
    _, maps = next(batches.evaluation("test", 2))
    assert [segments.shape for segments in maps] == [(24, 32)] * 2


def test_a_picture_has_one_colour_and_one_entry_of_the_legend_for_each_class() -> None:
    """Two instances that touch are told apart by the line between them."""
    segments = torch.full((20, 200), 2)
    segments[5:15, 20:60], segments[5:15, 60:90] = thing(1, 1), thing(1, 2)
    picture = draw_segments(torch.full((3, 20, 200), 100, dtype=torch.uint8), segments)
    assert picture.getpixel((30, 10)) == picture.getpixel((80, 10)) != picture.getpixel((150, 10))
    assert [picture.getpixel((column, 10)) for column in (20, 60, 90)] == [(255, 255, 255)] * 3
    named = with_legend(picture, ["", "cat", "dog", "sky"], colours(segments))
    assert named.size == (200, 20 + 4 + 2 * 16)
    assert {1 + 1, 1 + 2} == set(colours(segments).unique().tolist())


def test_an_answer_is_written_as_coco_writes_it() -> None:
    segments = torch.tensor([[2, 2, 2, thing(0, 1)], [VOID, 2, thing(0, 300), thing(0, 300)]])
    numbers, found = list_segments(segments, ["cat", "dog", "sky"], 2)
    assert [(one.id, one.category, one.isthing, one.area) for one in found] == [
        (1, "sky", False, 4),
        (2, "cat", True, 2),
        (3, "cat", True, 1),
    ]
    pixels = np.array(segments_png(numbers)).astype(int) @ [1, 256, 65536]
    assert pixels.tolist() == [[1, 1, 1, 3], [0, 1, 2, 2]]
    assert colours(segments)[1, 0] == VOID
    assert colours(segments)[0, 3] == colours(segments)[1, 3]
