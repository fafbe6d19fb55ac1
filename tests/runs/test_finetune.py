"""One architecture further, from the weights it inherits, also for other images and classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.models.registry import get_space
from nasformer.models.storage import adapt_channels, build_from, fresh_model, load_model, save_model
from nasformer.results.folder import RunFolder
from nasformer.runs import single
from nasformer.runs.finish import provenance
from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Supernet, recalibrated
from nasformer.train.loop import Trainer
from nasformer.utils.files import read_json, save_tensors, write_json
from small_run import contents, parse, pictures, refused

ARCH = '{"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}'
STILL = {"lr": 0.0, "min_lr": 0.0, "warmup_lr": 0.0, "iterations": 1}
"""A training that changes no weight: what it ends with is what it started from."""


def words(folder: Path, source: Path, *more: str | Path, **changes: Any) -> list[str]:
    path = folder.parent / "finetune.yaml"
    plain = {"batch_size": 128, "lr": 1e-3, "warmup_epochs": 0, "augment": {"crop": "none", "hflip": 0.0}}
    path.write_text(json.dumps({"train": plain | changes, "export": False}))
    return ["finetune", str(source), "--config", str(path), "--out", str(folder), *map(str, more)]


@pytest.fixture(scope="session")
def tuned(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The winner of a search, trained further on all images; tests read it only."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    with pictures():
        assert main(words(folder, finished, "--holdout", "0", epochs=4)) == 0
    return folder


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Other images: of three classes, in colour, twice as large as digits."""
    images = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3), np.uint8)
    labels = np.arange(30) % 3
    path = tmp_path / "colours.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return path


def test_the_winner_of_a_search_is_trained_further(finished: Path, tuned: Path) -> None:
    searched, result = read_json(finished / "result.json")["winner"], read_json(tuned / "result.json")
    found = result["winner"]
    assert (found["name"], found["arch"], found["params"]) == ("finetuned", searched["arch"], searched["params"])
    assert found["test_accuracy"] > searched["test_accuracy"] + 0.05
    assert "holdout_accuracy" not in found
    names = ["config.json", "train/log.jsonl", "model/model.safetensors", "plots/training_curve.png", "report.html"]
    assert [name for name in names if not contents(tuned).get(name)] == []
    assert provenance(tuned / "model")["weights"] == "inherited, then trained further"
    assert read_json(tuned / "model" / "config.json")["trained_on"] == {"data": "digits", "holdout": 0, "seed": 0}


def test_it_starts_from_the_weights_of_the_supernet(finished: Path, tmp_path: Path) -> None:
    supernet = load_supernet(finished / "supernet")
    for name, more, arch in (
        ("a", [], RunFolder(finished).read_result().arch),
        ("b", ["--arch", ARCH], supernet.space.arch(ARCH)),
    ):
        assert main(words(tmp_path / name, finished, *more, "--holdout", "0.2", **STILL)) == 0
        tiny.assert_same(load_model(tmp_path / name / "model"), supernet.extract(arch))
        assert "holdout_accuracy" in read_json(tmp_path / name / "result.json")["winner"]


@pytest.mark.parametrize("source", [".", "model"])
def test_it_starts_from_the_weights_of_a_model(tuned: Path, tmp_path: Path, source: str) -> None:
    assert main(words(tmp_path / "run", tuned / source, "--holdout", "0", **STILL)) == 0
    tiny.assert_same(load_model(tmp_path / "run" / "model"), load_model(tuned / "model"))
    expected = read_json(tuned / "result.json")["winner"]["test_accuracy"]
    assert read_json(tmp_path / "run" / "result.json")["winner"]["test_accuracy"] == expected


def test_onto_other_images_and_classes(finished: Path, colours: Path, tmp_path: Path) -> None:
    more: list[str | Path] = ["--data", colours, "--img-size", "16", "--model.drop_path_rate", "0.1"]
    assert main(words(tmp_path / "run", finished, *more, **STILL)) == 0
    found, before = load_model(tmp_path / "run" / "model"), load_model(finished / "model", img_size=16)
    changed = {"img_size": 16, "in_chans": 3, "num_classes": 3, "drop_path_rate": 0.1}
    assert found.options == before.options | changed
    ours, theirs = found.state_dict(), before.state_dict()
    assert torch.equal(ours["patch_embed.pos_embed"], theirs["patch_embed.pos_embed"])  # resampled: more than before
    fresh = fresh_model(tiny.MICRO.with_options(**changed), before.arch, seed=0).state_dict()
    for name in ours:
        if name.startswith("head.fc"):
            assert torch.equal(ours[name], fresh[name])
        elif name == "patch_embed.proj.weight":
            assert torch.equal(ours[name], adapt_channels(theirs[name], 3))
        else:
            assert torch.equal(ours[name], theirs[name]), name
    old, new = (read_json(folder / "model" / "config.json") for folder in (finished, tmp_path / "run"))
    assert (new["mean"], new["std"]) == (old["mean"] * 3, old["std"] * 3)


def test_a_classifier_of_other_classes_is_fresh(finished: Path, tmp_path: Path) -> None:
    """Though there are as many."""
    data, path = tiny.DATA, tmp_path / "letters.npz"
    arrays = {f"{part}_images": getattr(data, part).images[:, 0].numpy() for part in ("train", "test")}
    arrays |= {f"{part}_labels": getattr(data, part).labels.numpy() for part in ("train", "test")}
    np.savez(path, **arrays, classes=np.array(list("abcdefghij")))
    before = load_model(finished / "model").state_dict()["head.fc.weight"]
    assert main(words(tmp_path / "run", finished, "--data", path, **STILL)) == 0
    assert not torch.equal(load_model(tmp_path / "run" / "model").state_dict()["head.fc.weight"], before)


def test_grey_images_see_a_convolution_as_before() -> None:
    weight, grey = torch.randn(4, 3, 2, 2), torch.randn(2, 1, 2, 2)
    expected = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), weight)
    torch.testing.assert_close(torch.nn.functional.conv2d(grey, adapt_channels(weight, 1)), expected)
    back = adapt_channels(adapt_channels(weight, 1), 3)
    torch.testing.assert_close(torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), back), expected)


def test_training_sees_images_as_the_weights_are_used_to() -> None:
    batches = Batches(tiny.DATA, AugmentOptions(crop="none", hflip=0.0), 8)
    before, _ = batches.train(0)
    mean, std = batches.mean[0], batches.std[0]
    batches.mean, batches.std = (0.5,), (2.0,)
    torch.testing.assert_close(batches.train(0)[0], (before * std + mean - 0.5) / 2)


@pytest.fixture
def normed(tmp_path: Path) -> Supernet:
    """A supernet with batch norm, in a folder, whose statistics are of no use."""
    options = {"img_size": 8, "stem_stride": 1, "in_chans": 1, "num_classes": 10}
    supernet = Supernet(get_space("trionet-micro", **options))
    save_supernet(supernet, tmp_path / "supernet", mean=[0.4], std=[0.3])
    return supernet


def test_statistics_are_estimated_anew(normed: Supernet, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[Any] = []

    def watched(run: Any, model: Any, *_: Any, **__: Any) -> None:
        seen.append(model)

    monkeypatch.setattr(single, "train_single", watched)
    arch = normed.space.sample(seed=1)
    more = ["--arch", arch.to_json(), "--calibration-images", "256", "--json"]
    assert main(words(tmp_path / "out", tmp_path / "supernet", *more)) == 0
    batches = Batches(load_data("digits"), AugmentOptions(), 128)
    batches.mean, batches.std = (0.4,), (0.3,)
    tiny.assert_same(seen[0], recalibrated(normed, arch, batches, 256))
    assert seen[0].options == normed.extract(arch).options


def failing(step: Any) -> Any:
    """A step that ends the training at the thirteenth, as if killed."""

    def fail(self: Trainer, at: int, *batch: Any) -> Any:
        if at == 12:
            raise tiny.Interrupted
        return step(self, at, *batch)

    return fail


@pytest.mark.slow
def test_interrupted_it_ends_as_if_undisturbed(finished: Path, tmp_path: Path, monkeypatch: Any) -> None:
    settings = {"epochs": 2, "ema": 0.9, "log_epochs": 0.5, "checkpoint_seconds": 0}
    places = [tmp_path / name / "run" for name in ("whole", "parts")]  # of one name, which the report shows
    for place in places:
        place.parent.mkdir()
    more = ["--model.drop_path_rate", "0.2", "--holdout", "0"]
    assert main(words(places[0], finished, *more, **settings)) == 0
    argv = words(places[1], finished, *more, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", failing(Trainer.step))
        with pytest.raises(tiny.Interrupted):
            main(argv)
    assert sorted(path.name for path in (places[1] / "train" / "checkpoints").iterdir()) == ["step-11", "step-12"]
    assert main(argv) == 0
    expected, found = (contents(place) for place in places)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_other_weights_in_its_folder_are_refused(tuned: Path, finished: Path, tmp_path: Path, capsys: Any) -> None:
    folder = shutil.copytree(tuned, tmp_path / "run")
    before = contents(folder)
    argv = words(folder, tuned / "model", "--holdout", "0", epochs=4)
    assert "was trained with weights = " in refused(capsys, argv)
    assert "was trained with weights = " in refused(capsys, ["retrain", str(finished), *argv[2:]])
    assert contents(folder) == before


def test_what_cannot_be_trained_further(finished: Path, tuned: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert "say whose weights to start from" in refused(capsys, ["finetune", "--out", str(out)])
    assert "--out runs/NAME" in refused(capsys, ["finetune", str(tuned)])
    for source, more, message in (
        (finished, (), "was trained with --holdout 0.2 --seed 0; give the same, or --holdout 0"),
        (finished, ("--holdout", "0.2", "--seed", "1"), "was trained with --holdout 0.2 --seed 0"),
        (finished / "model", (), "was trained with --holdout 0.2 --seed 0"),
        (tuned, (), "was trained with --holdout 0 --seed 0"),
        (tuned, ("--arch", ARCH), "is a model, which has its architecture; leave --arch out"),
        (tuned, ("--space", "autoformer-tiny"), "is of the space autoformer-micro, not autoformer-tiny"),
        (finished, ("--patch-size", "2", "--holdout", "0"), "the weights do not fit (size mismatch"),
        (finished / "supernet", (), "has no search result yet; search it first, or name an architecture"),
        (tmp_path / "none", (), "no model folder at"),
    ):
        assert message in refused(capsys, words(out, source, *more))
        assert not (out / "train").exists()
    for folder in (finished, tuned):
        before = contents(folder)
        assert "is the folder to start from" in refused(capsys, words(folder, folder, "--holdout", "0"))
        assert contents(folder) == before


def test_a_model_that_names_no_space(tmp_path: Path, capsys: Any) -> None:
    save_model(fresh_model(tiny.SPACE, tiny.SMALLEST, seed=1), tmp_path / "model")
    assert "names no space; name it with --space" in refused(capsys, words(tmp_path / "run", tmp_path / "model"))
    assert main(words(tmp_path / "run", tmp_path / "model", "--space", "autoformer-micro", **STILL)) == 0


def test_a_file_of_supernet_weights(tmp_path: Path, capsys: Any) -> None:
    """Such as the published ones, which are as the space has it without further options."""
    supernet = Supernet(get_space("autoformer-micro"))
    path = tmp_path / "weights.safetensors"
    save_tensors(path, supernet.weights.state_dict())
    named = ["--space", "autoformer-micro", "--arch", ARCH]
    assert main(words(tmp_path / "run", path, *named, **STILL)) == 0
    found = load_model(tmp_path / "run" / "model")
    expected = supernet.extract(tiny.MICRO.arch(ARCH)).state_dict()
    assert torch.equal(found.state_dict()["blocks.0.attn.qkv.weight"], expected["blocks.0.attn.qkv.weight"])
    assert "does not say which space it belongs to" in refused(capsys, words(tmp_path / "other", path))


def test_a_search_by_proxy_has_no_weights(tmp_path: Path, capsys: Any) -> None:
    write_json(tmp_path / "free" / "config.json", {"space": "autoformer-micro"})
    write_json(tmp_path / "free" / "result.json", {"winner": {"arch": {}}})
    assert "has no trained model; make one: nasformer retrain" in refused(
        capsys, words(tmp_path / "run", tmp_path / "free")
    )


@pytest.mark.parametrize("name", ["autoformer-micro", "pit-tiny", "esformer-s0", "trionet-small"])
def test_every_family_goes_on_at_another_size(name: str) -> None:
    small, large = ({"img_size": size, "num_classes": classes} for size, classes in ((64, 5), (96, 7)))
    space = get_space(name, **small)
    source = fresh_model(space, space.root.smallest(), seed=0).eval()
    target = space.with_options(**large, in_chans=1)
    model = build_from(source, target, seed=1, keep_classifier=False).eval()
    assert model(torch.zeros(1, 1, 96, 96)).shape == (1, 7)
    assert model.options == source.options | large | {"in_chans": 1}


def recipe_of(name: str, command: str = "finetune") -> Any:
    return parse(command, "--config", name)


def test_the_recipes_of_autoformer() -> None:
    """The settings of its supplement."""
    large, sgd, adamw = map(recipe_of, ("autoformer-finetune-384", "autoformer-transfer", "autoformer-transfer-adamw"))
    assert (large.img_size, sgd.img_size, adamw.img_size) == (384, 224, 384)
    assert (large.train.optimizer, sgd.train.optimizer, adamw.train.optimizer) == ("adamw", "sgd", "adamw")
    for found, epochs, first, last, decay in (
        (large, 30, 1e-6, 1e-7, 0.05),
        (sgd, 1000, 1e-2, 0.0, 1e-8),
        (adamw, 1000, 5e-4, 1e-6, 1e-8),
    ):
        recipe = found.train
        assert (recipe.epochs, recipe.batch_size, recipe.weight_decay, recipe.warmup_epochs) == (epochs, 64, decay, 0)
        assert (recipe.peak_lr(), recipe.min_lr, recipe.iterations, found.holdout) == (first, last, None, 0)


def test_the_recipes_of_trionet() -> None:
    """The settings of the paper's appendix; its FLOPs are twice our MACs."""
    big, small = recipe_of("trionet-imagenet", "run"), recipe_of("trionet-small-set", "run")
    retrain, tune = recipe_of("trionet-retrain", "retrain"), recipe_of("trionet-small-set-finetune")
    for found, decay in ((big, 8e-5), (small, 1e-3)):
        recipe = found.train
        assert (recipe.optimizer, recipe.lr, recipe.batch_size, recipe.warmup_epochs) == ("sgd", 0.1, 256, 10)
        assert (recipe.weight_decay, recipe.decay, recipe.sandwich) == (decay, "largest", 2)
        assert (recipe.sampler, recipe.augment.smoothing) == ("hierarchical", 0.1)
        assert {**found.search.options, "population": 100, "parents": 25} == found.search.options
    assert (big.train.epochs, big.holdout, big.budget().max_macs) == (540, 10, 4.7e9 / 2)
    assert (big.model, small.model) == ({}, {"drop_rate": 0.1, "attn_drop_rate": 0.1})
    assert (small.train.iterations, small.holdout) == (60_000, "500 images")
    assert (tune.train.iterations, tune.train.lr, tune.train.batch_size) == (1000, 1e-3, 128)
    assert (retrain.train.epochs, retrain.train.weight_decay, retrain.holdout) == (130, 8e-5, 0)
    same = {"epochs", "decay", "sandwich", "watch_epochs"}
    ours, theirs = (vars(found.train) for found in (retrain, big))
    assert {name for name in ours if ours[name] != theirs[name]} == same


def test_the_recipes_of_segmentation() -> None:
    """TrioNet's appendix, and Swin's settings, which S3 takes over."""
    voc, ade = recipe_of("trionet-voc"), recipe_of("s3-ade20k")
    assert (voc.task, voc.of_task.head, voc.img_size) == ("segment", "deeplabv3", 512)
    assert (ade.task, ade.of_task.head, ade.img_size) == ("segment", "upernet", 512)
    for found, optimizer, rate, decay, steps in (
        (voc, "sgd", 0.01, 5e-4, 20_000),
        (ade, "adamw", 6e-5, 0.01, 160_000),
    ):
        recipe = found.train
        assert (recipe.optimizer, recipe.peak_lr(), recipe.weight_decay) == (optimizer, rate, decay)
        assert (recipe.iterations, recipe.batch_size) == (steps, 16)
    assert round(ade.train.warmup_steps(20210 // 16)) == pytest.approx(1500, abs=5)
    coco = recipe_of("trionet-coco-panoptic")
    assert (coco.task, coco.img_size, coco.of_task.sigma) == ("panoptic", 640, 8)
    assert (coco.train.optimizer, coco.train.peak_lr(), coco.train.weight_decay) == ("adamw", 6.25e-5, 0)
    assert (coco.train.iterations, coco.train.batch_size) == (200_000, 8)
