"""Batch norm in a supernet: shared statistics, and recalibrated ones for an arch that is evaluated or exported."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from families.small import images, randomise
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.errors import UserError
from nasformer.families.esformer import register
from nasformer.models import registry
from nasformer.models.storage import load_model
from nasformer.runs.search import search_supernet
from nasformer.search.journal import read_journal
from nasformer.space.arch import Arch
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Skeleton, Supernet, recalibrate, recalibrated
from nasformer.train.evaluate import SubnetEvaluator, evaluate, operator_archs
from nasformer.train.log import read_snapshots
from nasformer.train.loop import train_supernet
from nasformer.train.optim import MovingAverage
from nasformer.utils.files import read_json
from small_run import SETTINGS, words
from supernet.toy import toy_esformer, toy_supernet

SPACE = toy_esformer(drop_path_rate=0.3)
KIND: dict[str, Any] = {"ibn": {"kernel": 3, "expansion": 2}}
ARCH = SPACE.arch(
    {
        "stage1": {"embed_dim": 8, "blocks": [KIND, {"convnext": {"kernel": 5, "expansion": 3}}]},
        "stage2": {"embed_dim": 16, "blocks": [KIND]},
        "stage3": {"embed_dim": 8, "blocks": [{"encoder": {"qkv_dim": 16, "ffn": KIND}}, KIND]},
        "stage4": {"embed_dim": 8, "blocks": [{"ibn": {"kernel": 5, "expansion": 3}}]},
    }
)


class Counted(Batches):
    """Batches that count how often statistics are estimated on them."""

    def __init__(self) -> None:
        super().__init__(tiny.DATA, tiny.PLAIN, batch_size=128)
        self.asked: list[int] = []

    def calibration(self, images: int, batch_size: int) -> Iterator[Tensor]:
        self.asked.append(images)
        return super().calibration(images, batch_size)


def supernet(seed: int = 0) -> Supernet:
    return randomise(Supernet(SPACE, seed), seed).eval()


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if "running_" in name}


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d)


# Shared statistics


def test_statistics_are_shared_like_weights() -> None:
    found = supernet()
    assert found.has_statistics
    assert not toy_supernet().has_statistics
    shared = found.shared()
    assert shared["stages.0.blocks.0.expand_norm.running_mean"].shape == (48,)  # as wide as the largest user's
    assert not [name for name in found.slices(ARCH) if "running_" in name]  # slices are what learns


def trained_once(found: Supernet) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Shared tensors before and after a step of the arch, and the extracted model's after the same step."""
    x, model = images(SPACE, batch=8), found.train().extract(ARCH)
    before = {name: tensor.clone() for name, tensor in found.shared().items()}
    for run in (lambda: found(x, ARCH), lambda: model(x)):
        torch.manual_seed(0)
        run()
    return before, found.shared(), model.state_dict()


def test_training_updates_the_slice_and_nothing_else() -> None:
    before, after, own = trained_once(supernet())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in own if "running_" in name or name.endswith("num_batches_tracked")}
    for name in changed:
        if own[name].ndim:
            torch.testing.assert_close(after[name][: len(own[name])], own[name], msg=name)
            assert torch.equal(after[name][len(own[name]) :], before[name][len(own[name]) :]), name
    assert any(own[name].ndim and len(own[name]) < len(after[name]) for name in changed)


def test_a_compiled_layer_updates_its_slice_too() -> None:
    found, x = supernet(), torch.randn(4, 8, 8, 8)
    (segment,) = (segment for segment in SPACE.plan(ARCH) if segment.name == "stages.0.blocks.0")
    updated = []
    for options in (None, {"backend": "aot_eager"}):
        skeleton = Skeleton(segment, found.rules, found.device, options)
        shared = {name: found.shared()[f"{segment.name}.{name}"].detach().clone() for name in skeleton.names}
        skeleton(x, list(shared.values()), drop_path=0.0, training=True)
        updated.append(shared)
    assert updated[0]["expand_norm.num_batches_tracked"] == 1
    torch.testing.assert_close(updated[1], updated[0])


def test_evaluation_uses_statistics_and_leaves_them_alone() -> None:
    found, x = supernet(), images(SPACE)
    before = {name: tensor.clone() for name, tensor in found.shared().items()}
    logits = found(x, ARCH)
    tiny.assert_same(found.shared(), before)
    assert torch.equal(found.extract(ARCH)(x), logits)
    found.shared()["stages.0.blocks.0.expand_norm.running_mean"].add_(1)
    assert not torch.equal(found(x, ARCH), logits)
    assert torch.equal(found.extract(ARCH)(x), found(x, ARCH))


def test_an_extracted_model_owns_its_statistics() -> None:
    found, x = supernet(), images(SPACE, batch=8)
    before = found(x, ARCH)
    found.extract(ARCH).train()(x)
    assert torch.equal(found(x, ARCH), before)


def test_statistics_are_copied_saved_and_moved_like_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = supernet()
    found.train()(images(SPACE, batch=8), ARCH)
    tiny.assert_same(copy.deepcopy(found), found)
    other = supernet(seed=1)
    other.load_state_dict(found.state_dict())
    tiny.assert_same(other, found)
    register_space(monkeypatch)
    save_supernet(found, tmp_path)
    tiny.assert_same(load_supernet(tmp_path), found)
    assert {tensor.device.type for tensor in found.to("meta").shared().values()} == {"meta"}


def register_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_spaces", dict(registry._spaces))
    register(SPACE.name, "for tests", SPACE.root)


def test_moving_average_includes_statistics() -> None:
    found = supernet()
    average, before = MovingAverage(found, decay=0.5), copy.deepcopy(statistics(found))
    found.train()(images(SPACE, batch=8), ARCH)
    after = copy.deepcopy(statistics(found))
    average.update(found, step=100)
    average.copy_to(found)
    for name, tensor in statistics(found).items():
        torch.testing.assert_close(tensor, (before[name] + after[name]) / 2)


def test_a_killed_training_ends_with_the_same_statistics(tmp_path: Path) -> None:
    recipe = tiny.recipe(iterations=4, batch_size=64, ema=0.9, freeze="slices")
    straight, resumed = Supernet(SPACE), Supernet(SPACE)
    train_supernet(straight, tiny.Watched(recipe), recipe, quiet=True)
    with pytest.raises(tiny.Interrupted):
        train_supernet(Supernet(SPACE), tiny.Watched(recipe, fail_at=3), recipe, folder=tmp_path, quiet=True)
    train_supernet(resumed, tiny.Watched(recipe), recipe, folder=tmp_path, quiet=True)
    tiny.assert_same(resumed, straight)


# Statistics of one arch


def direct(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """The mean over batches of the mean and the variance of what every batch norm sees."""
    model, seen = copy.deepcopy(model).eval(), defaultdict[str, list[Tensor]](list)
    for name, norm in model.named_modules():
        if is_norm(norm):
            norm.train()

            def watch(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                seen[f"{name}.running_mean"].append(inputs[0].mean((0, 2, 3)))
                seen[f"{name}.running_var"].append(inputs[0].transpose(0, 1).flatten(1).var(1))

            norm.register_forward_pre_hook(watch)
    with torch.no_grad():
        for x in batches:
            model(x)
    return {name: torch.stack(values).mean(0) for name, values in seen.items()}


def test_recalibration_is_the_average_over_training_images() -> None:
    found, batches = supernet(), Counted()
    model = recalibrated(found, ARCH, batches, images=600)
    assert not model.training
    parts = list(batches.calibration(600, 256))
    assert [len(part) for part in parts] == [200, 200, 200]
    expected = direct(found.extract(ARCH), parts)
    assert expected.keys() == statistics(model).keys()
    for name, tensor in statistics(model).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
    tiny.assert_same(dict(model.named_parameters()), found.slices(ARCH))
    momenta = {norm.momentum for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)}
    assert momenta == {0.1}


def test_calibration_shows_training_images_of_all_classes_unchanged() -> None:
    batches = Counted()
    (shown,) = batches.calibration(200, 256)
    everything, labels = next(batches.evaluation("train", 10_000))
    index = [int((everything == image).flatten(1).all(1).nonzero()[0]) for image in shown]
    assert len(set(index)) >= 199  # two digits may be alike
    assert len(labels[index].unique()) == 10
    assert len(next(batches.calibration(10_000, 10_000))) == len(everything)  # no more than there are


def test_recalibration_is_deterministic_whatever_the_shared_statistics_are() -> None:
    found, batches = supernet(), Counted()
    torch.manual_seed(1)
    first = recalibrated(found, ARCH, batches, images=300)
    for name, tensor in statistics(found).items():
        tensor.fill_(7.0 if "mean" in name else 3.0)
    torch.manual_seed(2)
    tiny.assert_same(statistics(recalibrated(found.train(), ARCH, batches, images=300)), statistics(first))


def test_recalibration_leaves_the_mode_alone() -> None:
    found, batches = supernet(), Counted()
    model = found.train().extract(ARCH)
    recalibrate(model, batches, images=50)
    assert all(module.training for module in model.modules())
    plain = tiny.supernet().extract(tiny.SMALLEST)
    recalibrate(plain, batches)
    assert batches.asked == [50]  # without batch norm no image is looked at


def test_a_search_judges_with_recalibrated_statistics_and_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasformer.train.evaluate.KEPT", 2)
    found, batches = supernet(), Counted()
    judge = SubnetEvaluator(found, batches, images=300)
    model = recalibrated(found, ARCH, batches, images=300)
    assert batches.asked == [300]
    scores = evaluate(model, batches, "holdout")
    assert judge(ARCH) == {"accuracy": scores["accuracy"], "loss": scores["loss"]}
    assert judge(ARCH) == judge(Arch.from_dict(ARCH.to_dict()))
    assert batches.asked == [300, 300]
    for seed in range(3):
        judge(SPACE.sample(seed))
    known = len(batches.asked)
    judge(ARCH)
    assert len(batches.asked) == known + 1  # it was forgotten meanwhile


def test_a_search_says_on_how_many_images_it_estimates(tmp_path: Path) -> None:
    found, batches, path = supernet(), Counted(), tmp_path / "journal.jsonl"
    options: dict[str, Any] = {"strategy": "random", "options": {"evaluations": 2}, "journal": path, "quiet": True}
    search_supernet(found, batches, **options, calibration_images=70)
    assert batches.asked == [70, 70]
    with pytest.raises(UserError, match="calibration_images was 70, now 80"):
        search_supernet(found, batches, **options, calibration_images=80)
    other = tmp_path / "other.jsonl"
    search_supernet(tiny.supernet(), batches, **options | {"journal": other}, calibration_images=70)
    assert "calibration_images" not in read_journal(other)[0]  # without batch norm it means nothing


def test_one_calibration_serves_all_splits_and_the_export() -> None:
    found, batches = supernet(), Counted()
    evaluator = SubnetEvaluator(found, batches)
    model = evaluator.model(ARCH)
    for split in ("holdout", "test"):
        assert evaluator.accuracy(ARCH, split) == evaluate(model, batches, split)["accuracy"]  # type: ignore[arg-type]
    assert evaluator.model(ARCH) is model
    assert batches.asked == [2048]


def test_without_batch_norm_nothing_is_recalibrated() -> None:
    found, batches = tiny.supernet(), Counted()
    evaluator = SubnetEvaluator(found, batches)
    assert evaluator.accuracy(tiny.SMALLEST) == evaluate(found, batches, "test", arch=tiny.SMALLEST)["accuracy"]
    tiny.assert_same(evaluator.model(tiny.SMALLEST), found.extract(tiny.SMALLEST))
    assert not evaluator.model(tiny.SMALLEST).training
    assert batches.asked == []


# The commands


@pytest.mark.slow
def test_every_command_takes_the_number_of_images_and_the_shipped_model_is_recalibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_space(monkeypatch)
    monkeypatch.setattr("nasformer.supernet.health.RANDOM_SUBNETS", 2)
    asked: list[int] = []
    real = Batches.calibration

    def calibration(self: Batches, images: int, batch_size: int) -> Iterator[Tensor]:
        asked.append(images)
        return real(self, images, batch_size)

    monkeypatch.setattr(Batches, "calibration", calibration)
    training = {**SETTINGS["train"], "epochs": 1, "warmup_epochs": 0, "watch_epochs": 1, "batch_size": 256}
    few = {"population": 2, "generations": 1}
    changes = {"space": SPACE.name, "patch_size": 1, "model": {"layer_scale": 0.5}, "train": training, "search": few}
    folder, options = tmp_path / "run", ["--calibration-images", "60", "--data", "digits", "--device", "cpu"]
    assert main([*words("train", folder, **changes), *options]) == 0
    (snapshot,) = read_snapshots(folder / "train" / "log.jsonl")
    archs = {*operator_archs(SPACE.root).values(), *fixed_subnets(SPACE).values()}
    with_norm = [arch for arch in archs if any(map(is_norm, SPACE.build(arch).modules()))]
    assert len(snapshot["watch"] | snapshot["subnets"]) > len(asked) == len(with_norm) > 0
    assert main([*words("search", folder, **changes, max_params="1M"), *options]) == 0
    assert main(["evaluate", str(folder), "--holdout", "0.2", *options]) == 0
    assert set(asked) == {60}
    model, batches = load_model(folder / "model"), Batches(tiny.DATA, tiny.PLAIN, 128)
    tiny.assert_same(model, recalibrated(load_supernet(folder / "supernet"), model.arch, batches, images=60))
    accuracy = read_json(folder / "result.json")["winner"]["test_accuracy"]
    assert accuracy == evaluate(model, batches, "test")["accuracy"]
