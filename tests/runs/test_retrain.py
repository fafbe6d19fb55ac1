"""One architecture from scratch, in a run folder of its own."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kill
import tiny
from nasformer.cli.main import main
from nasformer.models.storage import load_model
from nasformer.report.page import write_report
from nasformer.train.loop import Trainer
from nasformer.utils.files import read_json, write_json
from small_run import contents, parse, pictures, refused

ARCH = '{"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}'
TRAIN = {"epochs": 1, "batch_size": 128, "lr": 3e-3, "augment": {"crop": "none", "hflip": 0.0}}
SPACE = ["--space", "autoformer-micro", "--patch-size", "4"]


def words(folder: Path, *more: str | Path, **changes: Any) -> list[str]:
    """A retraining of a second or so."""
    path = folder.parent / "retrain.yaml"
    path.write_text(json.dumps({"train": TRAIN | changes, "export": False}))
    return ["retrain", "--config", str(path), "--out", str(folder), *map(str, more)]


@pytest.fixture(scope="session")
def retrained(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The winner of a search, retrained on all images; tests read it only."""
    folder = tmp_path_factory.mktemp("retrained") / "run"
    with pictures():
        assert main(words(folder, finished, "--holdout", "0", epochs=8, ema=0.9)) == 0
    return folder


def test_the_winner_of_a_search_is_retrained(finished: Path, retrained: Path) -> None:
    searched, result = read_json(finished / "result.json"), read_json(retrained / "result.json")
    winner, model = result["winner"], load_model(retrained / "model")
    assert winner["name"] == "retrained"
    assert winner["arch"] == searched["winner"]["arch"] == model.arch.to_dict()
    assert (result["space"], result["data"], result["references"]) == ("autoformer-micro", "digits", [])
    assert winner["params"] == searched["winner"]["params"] == sum(p.numel() for p in model.parameters())
    assert model.options == load_model(finished / "model").options  # patch size, image size and all others
    assert winner["test_accuracy"] > 0.6  # a tenth by chance
    assert "holdout_accuracy" not in winner


def test_the_folder_holds_everything(retrained: Path) -> None:
    found = contents(retrained)
    names = ["config.json", "train/log.jsonl", "result.json", "model/config.json", "model/model.safetensors"]
    names += ["plots/training_curve.png", "plots/architecture.png", "report.html"]
    assert [name for name in names if not found.get(name)] == []
    assert not [name for name in found if name.startswith(("supernet/", "search/")) or name.endswith(".tmp")]
    config = read_json(retrained / "config.json")
    assert (config["holdout"], config["patch_size"], config["train"]["epochs"]) == (0, 4, 8)
    assert "torch" in config["versions"]
    with pictures():
        assert write_report(retrained).read_bytes() == found["report.html"]


@pytest.mark.parametrize("folder", ["model", "."])
def test_the_model_is_evaluated_as_any_other(retrained: Path, folder: str, capsys: Any) -> None:
    """Under its own name, and as that which a run without a supernet has."""
    capsys.readouterr()
    assert main(["evaluate", str(retrained / folder), "--json"]) == 0
    winner = read_json(retrained / "result.json")["winner"]
    assert json.loads(capsys.readouterr().out)["accuracy"] == winner["test_accuracy"]
    assert read_json(retrained / "model" / "config.json")["test_accuracy"] == winner["test_accuracy"]


def test_a_run_without_a_model_cannot_be_evaluated(tmp_path: Path, capsys: Any) -> None:
    """Such as a search without training."""
    write_json(tmp_path / "config.json", {"space": "autoformer-micro"})
    write_json(tmp_path / "result.json", {"winner": {"arch": {}}})
    assert "has no trained model; make one: nasformer retrain" in refused(capsys, ["evaluate", str(tmp_path)])
    (tmp_path / "result.json").unlink()
    (tmp_path / "train").mkdir()
    assert "has no trained model yet; repeat the command" in refused(capsys, ["predict", str(tmp_path), "x"])


def test_a_finished_one_is_left_as_it_is(finished: Path, retrained: Path, monkeypatch: Any) -> None:
    before = contents(retrained)

    def forbidden(*_: Any) -> None:
        raise AssertionError("done before")

    monkeypatch.setattr(Trainer, "step", forbidden)
    with pictures():
        assert main(words(retrained, finished, "--holdout", "0", epochs=8, ema=0.9)) == 0
    assert contents(retrained) == before


def test_an_arch_of_ones_own(tmp_path: Path, capsys: Any) -> None:
    """With no search before it, and with a hold-out: both accuracies are told."""
    out = tmp_path / "run"
    capsys.readouterr()
    assert main([*words(out, *SPACE, "--arch", ARCH), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    summary = json.loads(line)
    assert summary == read_json(out / "result.json")
    assert summary["winner"]["arch"] == tiny.MICRO.arch(ARCH).to_dict()
    assert 0 < summary["winner"]["holdout_accuracy"] < 1
    assert main(words(out, *SPACE, "--arch", ARCH)) == 0
    text = capsys.readouterr().out
    assert text.startswith("retrained: 76K parameters, ")
    assert "held-out" in text


def test_another_arch_and_other_options_than_those_of_the_search(finished: Path, tmp_path: Path) -> None:
    more = ["--arch", ARCH, "--model.drop_path_rate", "0.3", "--patch-size", "2"]
    assert main(words(tmp_path / "run", finished, *more)) == 0
    model = load_model(tmp_path / "run" / "model")
    assert model.arch == tiny.MICRO.arch(ARCH)
    assert (model.options["drop_path_rate"], model.options["patch_size"]) == (0.3, 2)


def test_a_search_that_saw_no_data(finished: Path, tmp_path: Path) -> None:
    """A search by a proxy leaves its config and its result; what kind of images there are is known only now."""
    searched = tmp_path / "proxy"
    asked = {"space": "autoformer-micro", "patch_size": 4, "img_size": None, "num_classes": 1000, "in_chans": 3}
    write_json(searched / "config.json", asked | {"model": {"qkv_bias": False}})
    winner = {"arch": tiny.MICRO.arch(ARCH).to_dict(), "dss": 1.0}
    write_json(searched / "result.json", {"space": "autoformer-micro", "data": None, "winner": winner})
    assert main(words(tmp_path / "run", searched)) == 0
    options = load_model(tmp_path / "run" / "model").options
    found = {name: options[name] for name in ("patch_size", "img_size", "num_classes", "in_chans", "qkv_bias")}
    assert found == {"patch_size": 4, "img_size": 8, "num_classes": 10, "in_chans": 1, "qkv_bias": False}


@pytest.mark.parametrize("kind", ["npz", "folder", "stream"])
def test_nothing_is_held_out_of_any_data(tmp_path: Path, kind: str) -> None:
    images = np.stack([np.full((8, 8, 3), 9 * number, np.uint8) for number in range(24)])
    labels, source = np.arange(24) % 2, tmp_path / "set.npz"
    if kind == "npz":
        np.savez(source, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    else:
        source = folder_of(images, labels, tmp_path / "set")
    more = ["--data", str(source), "--holdout", "0", "--arch", ARCH, *SPACE, "--img-size", "8"]
    more += ["--stream", "true", "--workers", "0", "--train.augment.crop", "resized"] if kind == "stream" else []
    assert main(words(tmp_path / "run", *more, batch_size=24)) == 0
    (line,) = (tmp_path / "run" / "train" / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 1  # 24 images in one batch of 24
    assert "holdout_accuracy" not in read_json(tmp_path / "run" / "result.json")["winner"]


def folder_of(images: np.ndarray, labels: np.ndarray, root: Path) -> Path:
    from PIL import Image

    for part in ("train", "test"):
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = root / part / "ab"[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    return root


def test_what_cannot_be_retrained(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    for more, message in {
        (): "say what to retrain: nasformer retrain RUN, or --space SPACE --arch ARCH",
        (*SPACE,): "say what to retrain",
        ("--arch", ARCH): "name a space with --space; there are: autoformer-tiny,",
        (*SPACE, "--arch", "resnet"): "is neither a JSON file nor inline JSON nor a preset",
        (*SPACE, "--arch", '{"embed_dim": 1}'): "arch",
        ("no/run",): "no/run/config.json is missing; is no/run a folder that nasformer wrote?",
        (str(finished), "--space", "autoformer-tiny"): "searched autoformer-micro, not autoformer-tiny",
        (str(finished), "--num-classes", "3"): "digits has num_classes 10, not 3",
    }.items():
        assert message in refused(capsys, words(out, *more))
        assert not (out / "train").exists()
    assert "--out runs/NAME" in refused(capsys, ["retrain", str(finished)])


def test_a_search_is_never_overwritten(finished: Path, capsys: Any) -> None:
    before = contents(finished)
    for more, message in (
        ([str(finished)], "is the folder to start from; train in another --out folder"),
        ([*SPACE, "--arch", ARCH], "holds the run of a supernet; give another --out folder"),
    ):
        assert message in refused(capsys, words(finished, *more))
    assert contents(finished) == before


def test_a_run_that_is_not_finished(run: Path, tmp_path: Path, capsys: Any) -> None:
    write_json(run / "result.json", {"space": "autoformer-micro", "data": None})
    assert "result.json: winner is missing, expected an object; restore the file" in refused(
        capsys, words(tmp_path / "out", run)
    )
    (run / "result.json").unlink()
    message = refused(capsys, words(tmp_path / "out", run))
    assert "has no search result yet; search it first, or name an architecture with --arch" in message
    write_json(run / "config.json", {})
    assert "names no space; name it with --space" in refused(capsys, words(tmp_path / "out", run))


def test_another_arch_in_its_folder_is_refused(retrained: Path, finished: Path, tmp_path: Path, capsys: Any) -> None:
    folder = shutil.copytree(retrained, tmp_path / "run")
    before = contents(folder)
    argv = words(folder, finished, "--holdout", "0", "--arch", ARCH, epochs=8, ema=0.9)
    assert "was trained with arch = {" in refused(capsys, argv)
    assert contents(folder) == before


def disturb(folder: Path, kills: int, epochs: int) -> None:
    """Kills a retraining, lets it finish, and compares it with an undisturbed one."""
    more = [*SPACE, "--arch", ARCH, "--model.drop_path_rate", "0.2"]
    settings = {"epochs": epochs, "batch_size": 64, "ema": 0.9, "log_epochs": 0.2, "checkpoint_seconds": 0}
    whole, run = folder / "whole" / "run", folder / "parts" / "run"  # of one name, which the report shows
    for place in (whole, run):
        place.parent.mkdir()
    kill.finish(kill.nasformer(*words(whole, *more, **settings)))
    command, rng = kill.nasformer(*words(run, *more, **settings)), random.Random(0)
    for _ in range(kills):
        assert kill.kill(command, ahead(run), rng.uniform(0, 0.1))
    kill.finish(command)
    expected, found = (
        {name: content for name, content in contents(place).items() if not Path(name).name.startswith(".")}
        for place in (whole, run)
    )
    assert {"train/log.jsonl", "result.json", "model/model.safetensors", "report.html"} <= set(expected)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def ahead(run: Path) -> Callable[[], bool]:
    """When a process that starts now has got ahead, so that a kill takes something from it."""
    done = steps(run)
    return lambda: steps(run) > done


def steps(run: Path) -> int:
    """The step of the newest checkpoint."""
    found = (run / "train" / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


@pytest.mark.slow
def test_killed_twice_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    disturb(tmp_path, kills=2, epochs=6)


@pytest.mark.slow
def test_killed_ten_times_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    disturb(tmp_path, kills=10, epochs=40)


def test_the_recipes_of_tf_tas() -> None:
    """The published settings, as the paper's code has them."""
    big, small = (parse("retrain", "--config", name) for name in ("tf-tas-imagenet", "tf-tas-digits"))
    recipe, augment = big.train, big.train.augment
    assert (big.holdout, big.model) == (0, {"drop_path_rate": 0.1})
    assert recipe.peak_lr() == pytest.approx(2e-3)
    assert (recipe.optimizer, recipe.epochs, recipe.warmup_epochs, recipe.min_lr) == ("adamw", 300, 10, 1e-5)
    assert (recipe.weight_decay, recipe.repeats, recipe.ema, recipe.clip_grad) == (0.05, 3, 0, None)
    assert (augment.mixup, augment.cutmix, augment.erasing, augment.smoothing) == (0.8, 1.0, 0.25, 0.1)
    assert augment.randaugment == "rand-m9-mstd0.5-inc1"
    assert (small.holdout, small.data, small.model) == (0, "digits", big.model)
