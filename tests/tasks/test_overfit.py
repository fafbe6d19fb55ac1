"""Targets and losses are right where a net learns a few real photos by heart; COCO's, where they are there."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.data.files import BadImages
from nasformer.data.options import AugmentOptions
from nasformer.models.registry import get_space
from nasformer.models.storage import fresh_model
from nasformer.runs.base import fit_to_data, load_batches
from nasformer.tasks.masks import IGNORED
from nasformer.tasks.panoptic import Answer, class_qualities, group, make_targets, match_segments, open_panoptic
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from tasks.examples import Command

COCO = Path("/work/shared/data/coco_mini_320.tar")
SIZE = 160
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not COCO.is_file():
        pytest.skip("COCO's photos are not here")
    pytest.importorskip("pycocotools")
    folder = tmp_path_factory.mktemp("coco")
    with tarfile.open(COCO) as archive:
        archive.extractall(folder, filter="data")
    return folder / "coco_mini_320"


def learn_by_heart(task: str, data: Path, iterations: int, lr: float, **options: Any) -> dict[str, float]:
    """The scores of a small net on the four images that it was trained on, as they are."""
    command = Command(data=str(data), train_images=4, max_bad=1.0, workers=0, task=task)
    command = command.with_task_options(scale_min=1.0, scale_max=1.0, decoder_dim=64, **options)
    recipe = Recipe(
        iterations=iterations, batch_size=4, lr=lr, weight_decay=0.01, clip_grad=1.0, augment=AugmentOptions(hflip=0.0)
    )
    batches = load_batches(command, recipe, World(), torch.device("cpu"), SIZE)
    space = fit_to_data(get_space("esformer-s0"), batches, command)
    model = fresh_model(space, space.root.smallest(), 0)
    train_model(model, batches, recipe, seed=0, quiet=True)
    return evaluate(model, batches, "train")


def test_true_maps_of_coco_are_grouped_without_a_mistake(coco: Path) -> None:
    data = open_panoptic(coco, BadImages(1.0, quiet=True), holdout=0, seed=0)
    classes, num_things = data.labels.classes, data.labels.num_things  # type: ignore[attr-defined]
    sums = torch.zeros(len(classes), 4, dtype=torch.float64)
    for mask in data.splits.train.masks[:30]:
        truth = data.labels.read(mask).long()
        targets = make_targets(truth, sigma=8.0)
        stuff = targets[0].long().where(targets[0] != IGNORED, len(classes) - 1)  # things elsewhere would join others
        logits = torch.nn.functional.one_hot(stuff, len(classes)).permute(2, 0, 1).float()
        sums += match_segments(group(Answer(logits, targets[1:2], targets[2:4]), num_things), truth, len(classes))
    assert class_qualities(sums)[:, 0].nanmean() > 0.99


def test_segments_of_coco(coco: Path) -> None:
    """Seen: 91 % for stuff, 56 % for things, of which the true maps of this resolution have 89 %."""
    scores = learn_by_heart("panoptic", coco, 200, 2e-3, stuff_area=0.0)
    assert scores["pq_stuff"] > 0.8
    assert scores["pq_things"] > 0.45


def test_objects_of_coco(coco: Path) -> None:
    """Seen: 97 % after 382 s of one CPU core."""
    assert learn_by_heart("detect", coco, 300, 2e-3)["box_ap"] > 0.5
