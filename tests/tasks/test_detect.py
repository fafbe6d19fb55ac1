"""Batches of objects, joint augmentation, and COCO's AP."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.tasks.boxes import Instance, Scene, encode, open_scenes
from nasformer.tasks.detect import CocoAP, DetectedObjects, SceneBatches, coco_results
from nasformer.tasks.masks import draw_objects
from nasformer.tasks.options import DetectOptions, TaskOptions
from nasformer.utils.rng import generator
from tasks.objects import write_objects

pytest.importorskip("pycocotools")
SIZE = (24, 32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_objects(tmp_path_factory.mktemp("objects"), 6, 3, 2)


def batches(root: Path, workers: int = 0, options: DetectOptions | None = None, **changes: Any) -> SceneBatches:
    options = options or DetectOptions()
    data = open_scenes(root, options, BadImages(quiet=True), holdout=0.1, seed=0)
    settings: dict[str, Any] = {"img_size": 32, "workers": workers, "options": options}
    return SceneBatches(data, AugmentOptions(hflip=0.5), 4, **settings, **changes)


def test_ranks_share_a_batch(root: Path) -> None:
    whole, targets = next(batches(root, workers=2).train_batches())
    parts = [next(batches(root, rank=rank, world=2).train_batches()) for rank in range(2)]
    assert torch.equal(torch.cat([x for x, _ in parts]), whole)
    again = [target for _, part in parts for target in part]
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(again, targets, strict=True))
    assert whole.shape == (4, 3, 32, 32)


def test_boxes_alone_have_no_masks(root: Path) -> None:
    _, targets = next(batches(root, options=DetectOptions(masks=False)).train_batches())
    assert {name for target in targets for name in target} == {"boxes", "labels"}


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_image_boxes_and_masks_are_jittered_together(root: Path, scale: float) -> None:
    """An object that is white on black is found where its box and mask say, unless it is cut off."""
    source = batches(root, options=DetectOptions(scale_min=scale, scale_max=scale))
    source.mean = (0.0, 0.0, 0.0)
    image, mask = torch.zeros(3, 40, 60, dtype=torch.uint8), torch.zeros(1, 40, 60, dtype=torch.uint8)
    image[:, 10:30, 20:50], mask[:, 10:30, 20:50] = 255, 1
    target = {"boxes": torch.tensor([[20.0, 10, 50, 30]]), "labels": torch.tensor([2]), "masks": mask}
    for seed in range(6):
        picture, found = source.jittered(image, target, generator(seed))
        assert picture.shape == (3, 32, 32)
        white = picture[0] > 127
        if not len(found["boxes"]):
            assert white.sum() < 32
            continue
        rows, columns = white.nonzero().T
        box = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
        assert (found["boxes"][0] - box).abs().max() <= 1
        assert (found["masks"][0].bool() != white).float().mean() < 0.06
        assert found["labels"].tolist() == [2]


def test_an_image_without_objects_is_jittered_too(root: Path) -> None:
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    empty["masks"] = torch.zeros(0, 40, 60, dtype=torch.uint8)
    _, found = batches(root).jittered(torch.zeros(3, 40, 60, dtype=torch.uint8), empty, generator(0))
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "boxes": (0, 4),
        "labels": (0,),
        "masks": (0, 32, 32),
    }


def test_evaluation_gives_squares_and_scenes(root: Path) -> None:
    seen = list(batches(root, workers=2).evaluation("holdout", 2))
    assert [len(x) for x, _ in seen] == [2, 1]
    assert all((scene.rows, scene.columns) == SIZE for _, scenes in seen for scene in scenes)
    assert [x.shape for x in batches(root).calibration(5, 3)] == [(3, 3, 32, 32), (2, 3, 32, 32)]


# COCO's AP


def block(box: tuple[int, int, int, int]) -> Any:
    mask = np.zeros((1, 48, 64), np.uint8)
    left, top, right, bottom = box
    mask[0, top:bottom, left:right] = 1
    return encode(mask)[0]


def instance(label: int, box: tuple[int, int, int, int], crowd: bool = False) -> Instance:
    area = (box[2] - box[0]) * (box[3] - box[1])
    return Instance(label, tuple(map(float, box)), area, crowd, block(box))  # type: ignore[arg-type]


SCENES = [
    Scene("a.png", 48, 64, (instance(0, (2, 3, 20, 30)), instance(1, (30, 10, 60, 40)))),
    Scene("b.png", 48, 64, (instance(1, (5, 5, 15, 40)), instance(0, (20, 0, 64, 48), crowd=True))),
    Scene("c.png", 48, 64),
]


def answer(*objects: tuple[int, float, tuple[int, int, int, int]]) -> DetectedObjects:
    boxes = torch.tensor([box for _, _, box in objects]).float().reshape(-1, 4)
    labels, scores = torch.tensor([one[0] for one in objects]), torch.tensor([one[1] for one in objects])
    return DetectedObjects(boxes, scores, labels.long(), [block(box) for _, _, box in objects])


def judged(*answers: DetectedObjects) -> CocoAP:
    metric = CocoAP(["cat", "dog"], 64, ("bbox", "segm"))
    metric.scenes, metric.answers, metric.images = SCENES, list(answers), len(SCENES)
    return metric


PERFECT = [answer((0, 0.9, (2, 3, 20, 30)), (1, 0.8, (30, 10, 60, 40))), answer((1, 0.7, (5, 5, 15, 40))), answer()]
IMPERFECT = [
    answer((0, 0.9, (4, 3, 20, 30)), (0, 0.8, (30, 10, 60, 40))),
    answer((1, 0.6, (5, 5, 15, 40)), (0, 0.9, (25, 5, 60, 40)), (1, 0.95, (40, 5, 60, 30))),
    answer((1, 0.5, (0, 0, 9, 9))),
]


def test_a_crowd_makes_no_mistakes_and_perfect_answers_score_1() -> None:
    inside = replace(PERFECT[1])
    crowded = answer((1, 0.7, (5, 5, 15, 40)), (0, 0.95, (25, 5, 60, 40)), (0, 0.9, (22, 1, 50, 30)))
    for second in (inside, crowded):
        found = judged(PERFECT[0], second, PERFECT[2]).judge()
        assert found.scores["box_ap"] == pytest.approx(1)
        assert found.scores["mask_ap"] == pytest.approx(1)
        assert found.by_image[:2] == [1.0, 1.0]
        assert np.isnan(found.by_image[2])  # nothing there, nothing found
        assert [(one.name, one.objects) for one in found.by_class] == [("cat", 1), ("dog", 2)]
        assert [one.box_ap for one in found.by_class] == pytest.approx([1, 1])


def test_no_answers_score_0_and_no_objects_score_nothing() -> None:
    nothing = judged(*[answer()] * 3).judge()
    assert nothing.scores["box_ap"] == 0
    assert nothing.by_image[:2] == [0.0, 0.0]
    metric = CocoAP(["cat"], 64)
    metric.scenes, metric.answers, metric.images = [SCENES[2]], [answer()], 1
    assert np.isnan(metric.compute()["box_ap"])


def test_ap_equals_that_of_pycocotools_from_files(tmp_path: Path) -> None:
    """As the official scripts do it: truth and results in files of COCO's formats."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    true, found = [], []
    for number, (scene, given) in enumerate(zip(SCENES, IMPERFECT, strict=True)):
        for one in scene.instances:
            left, top, right, bottom = one.box
            line = {
                "id": len(true) + 1,
                "image_id": number + 5,
                "category_id": one.label + 3,
                "iscrowd": int(one.crowd),
            }
            line |= {"bbox": [left, top, right - left, bottom - top], "area": one.area}
            true.append(line | {"segmentation": {**one.mask, "counts": one.mask["counts"].decode()}})  # type: ignore[dict-item,index]
        for result in coco_results(given, ["3", "4"]):
            left, top, right, bottom = result["box"]
            box = [left, top, right - left, bottom - top]
            line = {"image_id": number + 5, "category_id": int(result["name"]), "score": result["score"]}
            found.append(line | {"bbox": box, "segmentation": result["segmentation"]})
    content = {"images": [{"id": n + 5, "height": 48, "width": 64} for n in range(3)], "annotations": true}
    content["categories"] = [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}]
    (tmp_path / "true.json").write_text(json.dumps({"info": {}, **content}))
    (tmp_path / "found.json").write_text(json.dumps(found))
    scores = judged(*IMPERFECT).judge().scores
    assert 0 < scores["box_ap"] < 1
    for kind, name in {"bbox": "box", "segm": "mask"}.items():
        with redirect_stdout(io.StringIO()):
            side = COCO(str(tmp_path / "true.json"))
            lines = [{k: v for k, v in one.items() if k != "bbox" or kind == "bbox"} for one in found]
            lines = [{k: v for k, v in one.items() if k != "segmentation" or kind == "segm"} for one in lines]
            theirs = COCOeval(side, side.loadRes(lines), kind)
            theirs.evaluate()
            theirs.accumulate()
            theirs.summarize()
        ours = [scores[f"{name}_ap"], scores[f"{name}_ap50"], scores[f"{name}_ap75"]]
        assert ours == pytest.approx(theirs.stats[:3].tolist())


def test_answers_go_back_to_the_size_of_the_image() -> None:
    """An image of 48 x 64 in a square of 32: half as large, and the lower quarter of the square is padding."""
    masks = torch.ones(2, 1, 28, 28)
    boxes = torch.tensor([[2.0, 4, 10, 12], [0, 26, 8, 32]])
    detection = {"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": torch.tensor([0.9, 0.3]), "masks": masks}
    found = DetectedObjects.of(detection, (48, 64), 32, masks=True)
    assert found.boxes.tolist() == [[4, 8, 20, 24]]
    assert found.labels.tolist() == [0]
    assert found.masks is not None
    assert found.masks[0]["size"] == [48, 64]
    assert len(found.sure().boxes) == 1


def test_pictures_have_boxes_and_masks() -> None:
    image = torch.full((3, 48, 64), 100, dtype=torch.uint8)
    assert draw_objects(image, torch.zeros(0, 4), None, torch.zeros(0), []).getpixel((5, 5)) == (100,) * 3
    picture = PERFECT[0].draw(image, ["cat", "dog"])
    assert picture.size == (64, 48)
    assert picture.getpixel((10, 20)) != (100,) * 3
    assert picture.getpixel((62, 46)) == (100,) * 3


def test_what_is_for_other_tasks_is_refused(root: Path) -> None:
    with pytest.raises(UserError, match="judged_by mask_ap needs masks"):
        DetectOptions(masks=False, judged_by="mask_ap")
    with pytest.raises(UserError, match="exchange them"):
        DetectOptions(scale_min=2, scale_max=1)
    assert batches(root, options=DetectOptions(judged_by="mask_ap")).objective.score == "mask_ap"
    assert TaskOptions("detect").with_task_options(head="cascade").of_task.head == "cascade"
