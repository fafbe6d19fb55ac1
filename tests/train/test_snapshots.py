"""Snapshots of a supernet during its training: what they say, and that they change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nasformer.data.loaders import Batches
from nasformer.data.options import DataOptions
from nasformer.data.sources import load_data
from nasformer.errors import UserError
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.supernet import CALIBRATION_IMAGES, Supernet, recalibrated
from nasformer.train.evaluate import Snapshots, evaluate, operator_archs
from nasformer.train.log import TrainLog, read_snapshots
from nasformer.train.loop import train_supernet
from nasformer.train.recipe import Recipe
from supernet.toy import toy_esformer
from train.test_resume import ended

# Alternatives, batch norm and stochastic depth, and everything that a sandwich can do; 20 steps an epoch.
SPACE = toy_esformer(drop_path_rate=0.2).with_choices({f"stage{number}.blocks.depth": [1] for number in (1, 2, 3)})
EVERYTHING: dict[str, Any] = {
    "iterations": 5,
    "batch_size": 56,
    "optimizer": "sgd",
    "lr": 0.02,
    "sampler": "uniform",
    "sandwich": 2,
    "inplace_distillation": True,
    "decay": "largest",
    "weight_decay": 1e-3,
    "clip_grad": 5.0,
    "accumulate": 2,
    "ema": 0.5,
    "log_epochs": 0.2,
    "watch_epochs": 0.1,
}


def train(folder: Path, recipe: Recipe, fail_at: int | None = None) -> Supernet:
    supernet = Supernet(SPACE)
    batches = tiny.Watched(recipe, fail_at)
    train_supernet(supernet, batches, recipe, folder=folder, quiet=True, calibration_images=100)
    return supernet


@pytest.fixture(scope="module", autouse=True)
def few_subnets() -> Iterator[None]:
    """Two random subnets in place of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasformer.supernet.health.RANDOM_SUBNETS", 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Supernet]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder, tiny.recipe(**EVERYTHING))


def test_a_training_with_everything_has_snapshots(whole: tuple[Path, Supernet]) -> None:
    lines, snapshots = TrainLog.read(whole[0] / "log.jsonl"), read_snapshots(whole[0] / "log.jsonl")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    assert [line["step"] for line in snapshots] == [2, 4, 5]
    assert [line["epoch"] for line in snapshots] == [0.1, 0.2, 0.25]
    assert all(line.keys() == {"step", "epoch", "watch", "subnets"} for line in snapshots)
    assert all(list(line["watch"]) == list(operator_archs(SPACE.root)) for line in snapshots)
    assert all(list(line["subnets"]) == list(fixed_subnets(SPACE)) for line in snapshots)
    assert len({tuple(line["subnets"].values()) for line in snapshots}) == 3  # each time with other weights
    assert "loss" in lines[-1]  # whoever wants the last loss finds it in the last line


@pytest.mark.slow
def test_resumed_is_the_same_as_uninterrupted(whole: tuple[Path, Supernet], tmp_path: Path) -> None:
    recipe = tiny.recipe(**EVERYTHING)
    for moment in (2, 3):  # just after a snapshot, and within an interval
        with pytest.raises(tiny.Interrupted):
            train(tmp_path, recipe, fail_at=moment)
    tiny.assert_same(train(tmp_path, recipe), whole[1])
    assert ended(tmp_path) == ended(whole[0])


def test_snapshots_change_nothing(whole: tuple[Path, Supernet], tmp_path: Path) -> None:
    found = train(tmp_path, tiny.recipe(**EVERYTHING | {"watch_epochs": 0.0}))
    tiny.assert_same(found, whole[1])  # weights and statistics
    lines = TrainLog.read(whole[0] / "log.jsonl")
    assert TrainLog.read(tmp_path / "log.jsonl") == [line for line in lines if "watch" not in line]
    assert read_snapshots(tmp_path / "log.jsonl") == []


def test_a_snapshot_is_the_accuracy_on_held_out_images_with_statistics_of_its_own() -> None:
    supernet, batches = Supernet(SPACE).train(), Batches(tiny.DATA, tiny.PLAIN, 128)
    snapshots = Snapshots(supernet, batches, tiny.recipe(watch_epochs=1), images=100)
    found = snapshots.take()
    assert supernet.training
    for group, archs in {"watch": operator_archs(SPACE.root), "subnets": fixed_subnets(SPACE)}.items():
        for name, arch in archs.items():
            model = recalibrated(supernet, arch, batches, images=100)
            assert found[group][name] == evaluate(model, batches, "holdout")["accuracy"]
    with torch.no_grad():
        for weight in supernet.eval().parameters():
            weight.zero_()
    snapshots.subnets = {}
    assert len(set(snapshots.take()["watch"].values())) == 1  # with the weights of the moment
    assert not supernet.training


def test_without_operators_the_smallest_and_the_largest_are_evaluated(tmp_path: Path) -> None:
    model, batches = tiny.train(tmp_path, tiny.recipe(iterations=2, watch_epochs=1))
    (snapshot,) = read_snapshots(tmp_path / "log.jsonl")
    expected = {
        name: evaluate(model, batches, "holdout", arch=arch)["accuracy"]
        for name, arch in {"smallest": tiny.SMALLEST, "largest": tiny.LARGEST}.items()
    }
    judged = snapshot.pop("subnets")
    assert snapshot == {"step": 2, "epoch": 0.25, "watch": expected}
    assert list(judged) == ["smallest", "middle", "largest", "random 0", "random 1"]
    assert expected.items() <= judged.items()


def test_the_subnets_are_those_of_the_seed() -> None:
    batches, recipe = tiny.Watched(tiny.recipe()), tiny.recipe(watch_epochs=1)
    one, two = (Snapshots(tiny.supernet(), batches, recipe, seed=seed) for seed in (1, 2))
    assert one.subnets == fixed_subnets(tiny.SPACE, 1) != two.subnets
    assert one.operators == two.operators


def test_there_is_one_at_the_end_whatever_the_interval() -> None:
    snapshots = Snapshots(tiny.supernet(), tiny.Watched(tiny.recipe()), tiny.recipe(watch_epochs=0.5))
    assert [step for step in range(1, 11) if snapshots.due(step, 10)] == [4, 8, 10]
    never = Snapshots(tiny.supernet(), tiny.Watched(tiny.recipe()), tiny.recipe())
    assert not any(never.due(step, 10) for step in range(1, 11))


def test_pure_operators_have_their_names() -> None:
    block = OneOf(conv=Struct(kernel=Choice(3, 5)), axial=Struct(heads=Choice(4, 8)))
    found = operator_archs(Struct(dim=Choice(8, 16), one=Repeat(block, Choice(1, 2)), two=Repeat(block, Choice(1, 3))))
    assert list(found) == ["conv", "axial"]
    assert found["conv"].to_dict() == {
        "dim": 16,
        "one": [{"conv": {"kernel": 5}}] * 2,
        "two": [{"conv": {"kernel": 5}}] * 3,
    }


def test_where_an_operator_is_never_alone_the_extremes_stand_beside_the_pure_ones() -> None:
    few, many = OneOf(conv=Choice(3)), OneOf(conv=Choice(3, 5), axial=Choice(4, 8))
    root = Struct(one=few, two=many)
    found = operator_archs(root)
    assert list(found) == ["conv", "smallest", "largest"]
    assert found["largest"] == root.largest()


def test_without_held_out_images_they_are_refused() -> None:
    data = load_data("digits", holdout=0)
    with pytest.raises(UserError, match="watch_epochs needs images held out of training; set --holdout"):
        train_supernet(tiny.supernet(), data, tiny.recipe(watch_epochs=1), quiet=True)


def test_the_number_of_calibration_images_has_one_default() -> None:
    assert DataOptions().calibration_images == CALIBRATION_IMAGES
