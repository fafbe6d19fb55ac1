"""A run folder, from the data to the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.models.storage import load_model
from nasformer.results.folder import RunFolder
from nasformer.runs import base as runs
from nasformer.runs.base import normalize_as
from nasformer.runs.options import RunCommand
from nasformer.runs.search import ArchSearch
from nasformer.search.journal import read_journal
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, references
from nasformer.supernet.storage import load_supernet
from nasformer.train.loop import Trainer
from nasformer.utils.files import read_json
from small_run import SETTINGS, contents, output, pictures, words

ASKED = {"config.json", "report.html"}  # these say what was asked, which differs between one command and two


def test_the_folder_holds_everything(run: Path) -> None:
    with pictures():
        assert main(words("run", run)) == 0
    found = contents(run)
    names = ["config.json", "train/log.jsonl", "supernet/supernet.json", "supernet/supernet.safetensors"]
    names += ["search/journal.jsonl", "result.json", "model/config.json", "model/model.safetensors", "report.html"]
    assert [name for name in names if not found.get(name)] == []
    assert [name for name in found if name.startswith("plots/") and name.endswith(".png")]
    assert not [name for name in found if name.endswith(".tmp")]


def test_the_config_says_what_was_asked(finished: Path) -> None:
    config = read_json(finished / "config.json")
    assert {name: config[name] for name in ("space", "patch_size", "holdout", "seed", "data", "max_params")} == {
        "space": "autoformer-micro",
        "patch_size": 4,
        "holdout": 0.2,
        "seed": 0,
        "data": "digits",
        "max_params": "120K",
    }
    assert config["budget"] == {"max_params": "120K"}
    assert config["train"]["lr"] == 3e-3
    assert config["train"]["augment"]["crop"] == "none"
    assert {"strategy": "evolution", "baseline": "none", **SETTINGS["search"]}.items() <= config["search"].items()
    assert config["versions"]["torch"] == version("torch")


def test_the_model_gives_the_logits_of_the_supernet(finished: Path) -> None:
    winner = Arch.from_dict(read_json(finished / "result.json")["winner"]["arch"])
    supernet, x = load_supernet(finished / "supernet").eval(), torch.randn(5, 1, 8, 8)
    model = load_model(finished / "model")
    assert model.arch == winner
    assert torch.equal(model(x), supernet.extract(winner)(x))
    assert torch.equal(model(x), supernet(x, winner))


def test_the_winner_is_the_best_of_the_journal(finished: Path) -> None:
    result, (_, records) = read_json(finished / "result.json"), read_journal(finished / "search" / "journal.jsonl")
    assert len(records) == 8
    best = max(record["accuracy"] for record in records)
    assert result["winner"]["holdout_accuracy"] == best
    assert {"arch": result["winner"]["arch"], "accuracy": best} in [
        {"arch": record["arch"], "accuracy": record["accuracy"]} for record in records
    ]


def test_winner_and_references_are_within_the_budget(finished: Path) -> None:
    result, space = read_json(finished / "result.json"), load_supernet(finished / "supernet").space
    rows = {row["name"]: row for row in [result["winner"], *result["references"]]}
    assert set(rows) == {"winner", "random", "smallest", "largest", "best of 4 random"}
    for row in rows.values():
        assert row["params"] == space.cost(Arch.from_dict(row["arch"])).params <= 120_000
        assert 0 <= row["test_accuracy"] <= 1
        assert rows["smallest"]["params"] <= row["params"] <= rows["largest"]["params"]
    assert rows["smallest"]["arch"] == space.root.smallest().to_dict()


@pytest.mark.parametrize("budget", [Budget(), Budget(max_params=200_000), Budget(min_macs=400_000, max_params=150_000)])
def test_no_single_step_beats_the_extremes(budget: Budget) -> None:
    found, space = references(tiny.MICRO.root, tiny.MICRO.costs, budget, seed=0), tiny.MICRO
    assert all(budget.fits(space.costs(arch)) for arch in found.values())
    for name, sign in (("smallest", 1), ("largest", -1)):
        steps = [arch for arch in space.root.neighbours(found[name]) if budget.fits(space.costs(arch))]
        price = space.cost(found[name]).params
        assert all(sign * space.cost(arch).params >= sign * price for arch in steps)
    assert found == references(tiny.MICRO.root, tiny.MICRO.costs, budget, seed=0)
    assert found["random"] != references(tiny.MICRO.root, tiny.MICRO.costs, budget, seed=1)["random"]


def test_several_random_references_are_different_archs_in_the_budget() -> None:
    budget = Budget(max_params=150_000)
    found = references(tiny.SPACE.root, tiny.SPACE.costs, budget, seed=0, random=4)
    assert list(found) == ["random", "random 2", "random 3", "random 4", "smallest", "largest"]
    assert len({found[name] for name in found if name.startswith("random")}) == 4
    assert all(budget.fits(tiny.SPACE.costs(arch)) for arch in found.values())
    assert found.items() >= references(tiny.SPACE.root, tiny.SPACE.costs, budget, seed=0).items()


def test_several_random_references_are_shown_as_their_mean(finished: Path, tmp_path: Path, capsys: Any) -> None:
    argv = words("search", tmp_path / "search", search={**SETTINGS["search"], "random_references": 3})
    said = output(capsys, *argv, "--supernet", finished)
    rows = {row["name"]: row for row in read_json(tmp_path / "search" / "result.json")["references"]}
    accuracies = [rows[name]["test_accuracy"] for name in ("random", "random 2", "random 3")]
    mean, error = fmean(accuracies), stdev(accuracies) / 3**0.5
    assert "mean of 3 random" in said
    assert "random 2" not in said
    assert f"{mean:.2%} ± {error:.2%}" in said
    gain = 100 * (read_json(tmp_path / "search" / "result.json")["winner"]["test_accuracy"] - mean)
    side = "above" if gain >= 0 else "below"
    assert f"the winner is {abs(gain):.1f} points {side} the mean of 3 random architectures" in said


def test_the_same_command_again_changes_nothing_and_computes_nothing_anew(finished: Path, monkeypatch: Any) -> None:
    before = contents(finished)

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("done before")

    monkeypatch.setattr(Trainer, "step", forbidden)
    monkeypatch.setattr("nasformer.train.evaluate.SubnetEvaluator.__call__", forbidden)
    assert main(words("run", finished)) == 0
    assert contents(finished) == before


def test_train_and_search_apart_give_the_same(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(words("train", run)) == 0
    trained = read_json(run / "config.json")
    assert main(words("search", run)) == 0
    ours, theirs = contents(run), contents(finished)
    assert [name for name in theirs if ours.get(name) != theirs[name] and name not in ASKED] == []
    assert trained.items() <= read_json(run / "config.json").items()


def test_a_search_takes_the_space_from_the_supernet(run: Path, tmp_path: Path) -> None:
    """Nothing is asked for but where, and what must be as in training."""
    shutil.rmtree(run / "search")
    before, options = contents(run), ["--holdout", "0.2", "--search.population", "4", "--search.generations", "2"]
    assert main(["search", "--out", str(run), "--max-params", "120K", *options]) == 0
    after = contents(run)
    assert [name for name in before if after[name] != before[name] and name not in ASKED] == []
    assert read_json(run / "config.json")["patch_size"] == 4  # it still says how the supernet was trained
    other = tmp_path / "other"
    supernet = ["--supernet", str(run / "supernet")]
    assert main(["search", "--out", str(other), "--max-params", "120K", *options, *supernet]) == 0
    assert contents(other)["search/journal.jsonl"] == after["search/journal.jsonl"]


def test_training_again_keeps_what_the_search_noted(run: Path) -> None:
    before = contents(run)
    assert main(words("train", run)) == 0
    assert contents(run) == before


def test_held_out_images_are_never_trained_on(tmp_path: Path) -> None:
    command = RunCommand(space="autoformer-micro", patch_size=4, holdout=0.2, out=str(tmp_path / "run"))
    with runs.open_run(command, "supernet") as run:
        assert isinstance(run.batches, Batches)
        data = run.batches.data
    parts = [{image.tobytes() for image in part.images.numpy()} for part in (data.train, data.holdout, data.test)]
    assert len(data.holdout) == 288
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]


def test_the_test_images_wait_until_the_search_is_over(tmp_path: Path, monkeypatch: Any) -> None:
    """Each split is opened in its stage only: none while training, the held-out images while searching."""
    stage, seen = "", set()
    evaluation, train, search = Batches.evaluation, runs.train_supernet, ArchSearch.run

    def watched(self: Batches, split: Any, batch_size: int) -> Iterator[Any]:
        seen.add((stage, split))
        return evaluation(self, split, batch_size)

    def staged(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal stage
            stage = name
            result = function(*arguments, **options)
            stage = "over"
            return result

        return call

    monkeypatch.setattr(Batches, "evaluation", watched)
    monkeypatch.setattr(runs, "train_supernet", staged("train", train))
    monkeypatch.setattr(ArchSearch, "run", staged("search", search))
    assert main(words("run", tmp_path / "run", train={"epochs": 1})) == 0
    assert {split for name, split in seen if name == "train"} == set()
    assert {split for name, split in seen if name == "search"} == {"holdout"}
    assert ("over", "test") in seen


def test_images_that_are_streamed(tmp_path: Path, capsys: Any) -> None:
    from PIL import Image

    for number in range(24):
        path = tmp_path / "set" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 10 * number, np.uint8)).save(path)
    run, data = tmp_path / "run", {"data": str(tmp_path / "set"), "stream": True, "workers": 0, "img_size": 16}
    recipe = {"epochs": 1, "batch_size": 4, "augment": {"crop": "resized"}}
    assert main(words("train", run, **data, train=recipe)) == 0
    assert main(words("search", run, **data)) == 0
    capsys.readouterr()
    argv = ["evaluate", str(run / "model"), "--data", data["data"], "--stream", "true", "--workers", "0", "--json"]
    assert main(argv) == 0
    result, found = read_json(run / "result.json"), json.loads(capsys.readouterr().out)
    assert found["accuracy"] == result["winner"]["test_accuracy"]


def test_the_normalisation_travels_with_the_weights(finished: Path) -> None:
    trained = read_json(finished / "model" / "config.json")
    assert trained["mean"] == read_json(finished / "supernet" / "supernet.json")["mean"]
    batches = Batches(tiny.DATA, tiny.PLAIN, 8)
    batches.mean, batches.std = (0.9,), (0.1,)  # as other images might have it
    strange = next(batches.evaluation("test", 8))[0]
    for folder in (finished, finished / "supernet", finished / "model"):
        normalize_as(batches, RunFolder(folder))
        assert list(batches.mean) == trained["mean"]
        assert not torch.equal(next(batches.evaluation("test", 8))[0], strange)
