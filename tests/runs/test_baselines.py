"""Baselines of a run: random search, models of timm that fit the budget, and models of timm trained alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm

from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.report.page import write_report
from nasformer.results.contents import read_run
from nasformer.runs.baselines import best_of_start, build_timm, count, fitting_timm_models, timm_table
from nasformer.runs.options import timm_names
from nasformer.search.journal import read_journal
from nasformer.search.problem import Candidate, ModelResult, Problem
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.space.nodes import Choice, Struct
from nasformer.train.loop import Trainer
from nasformer.utils.files import read_json
from small_run import SETTINGS, contents, refused, words

SMALL = "test_resnet"  # 0.4 M parameters
needs_small = pytest.mark.skipif(not timm.is_model(SMALL), reason=f"this timm has no {SMALL}")
ARCH = '{"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}'


def candidates(*scores: tuple[str, int, float]) -> list[Candidate]:
    made = enumerate(scores)
    return [
        Candidate(k, generation, origin, (), Arch(size=k), {"params": k, "accuracy": score})
        for k, (origin, generation, score) in made
    ]


PROBLEM = Problem(Struct(size=Choice(*range(10))), lambda arch: {"params": arch.size})


def test_the_best_of_the_random_start() -> None:
    found = candidates(("random", 0, 0.5), ("random", 0, 0.7), ("mutation", 1, 0.9), ("random", 1, 0.8))
    assert best_of_start(PROBLEM, found) == {"best of 2 random": Arch(size=1)}


@pytest.mark.parametrize(
    "found",
    [
        [("random", 0, 0.5), ("random", 0, 0.7)],  # the search was random itself
        [("seed", 0, 0.5), ("mutation", 1, 0.7)],
        [("random", 0, float("nan")), ("mutation", 1, 0.7)],
        [],
    ],
)
def test_where_there_is_nothing_to_say(found: list[Any]) -> None:
    assert best_of_start(PROBLEM, candidates(*found)) == {}


def test_the_start_stands_beside_the_winner(finished: Path) -> None:
    result, (_, records) = read_json(finished / "result.json"), read_journal(finished / "search" / "journal.jsonl")
    (row,) = [row for row in result["references"] if row["name"] == "best of 4 random"]
    start = [record for record in records if record["generation"] == 0]
    assert row["holdout_accuracy"] == max(record["accuracy"] for record in start)
    page = (finished / "report.html").read_text()
    assert "No random search at equal budget was made" in page
    assert "None of the well-known timm models" in page  # all are larger


def test_a_random_search_with_as_many_candidates(run: Path, monkeypatch: Any) -> None:
    asked = words("run", run, search={**SETTINGS["search"], "baseline": "random"})
    assert main(asked) == 0
    settings, records = read_journal(run / "search" / "random.jsonl")
    searched = read_journal(run / "search" / "journal.jsonl")[1]
    assert settings["strategy"] == "random"
    assert len(records) == len(searched) == 8
    row = read_json(run / "result.json")["references"][-1]
    assert row["name"] == "best of 8 random"
    assert row["holdout_accuracy"] == max(record["accuracy"] for record in records)
    assert "Random search at equal budget: 8 random architectures" in (run / "report.html").read_text()
    before = contents(run)
    monkeypatch.setattr("nasformer.train.evaluate.SubnetEvaluator.__call__", None)  # nothing is judged again
    assert main(asked) == 0
    assert contents(run) == before


def test_progress_shows_the_random_search_as_well(run: Path) -> None:
    from nasformer.report.plots import search_progress

    (run / "search" / "random.jsonl").write_bytes((run / "search" / "journal.jsonl").read_bytes())
    figure = search_progress(read_run(run))
    assert figure is not None
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert list(lines["best so far of 8 random"]) == list(lines["best so far"])  # it is the same search here


def test_a_search_without_training_has_them_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    argv = ["search", "--space", "autoformer-micro", "--proxy", "params", "--max-params", "8M", "--out", str(out)]
    argv += ["--search.population", "4", "--search.generations", "2", "--search.baseline", "random"]
    assert main(argv) == 0
    result = read_json(out / "result.json")
    assert result["references"][-1]["name"] == "best of 8 random"
    assert len(read_journal(out / "search" / "random.jsonl")[1]) == 8
    assert [row["name"] for row in result["timm"]][:2] == ["mobilevit_xxs", "mobilevitv2_050"]  # for 10 classes
    assert "--baseline timm:NAME" in (out / "report.html").read_text()


# The models of timm that fit a budget, against timm itself


def fitting(budget: Budget, params: float, img_size: int = 224, classes: int = 1000, **most: int) -> list[ModelResult]:
    return fitting_timm_models(budget, params, get_space("s3", img_size=img_size, num_classes=classes), **most)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
def test_the_table_is_what_timm_has(name: str) -> None:
    row = timm_table()["models"][name]
    counts = count(build_timm(name, 224, 3, 1000, device="meta"), 224, 3)
    assert counts == {"params": row["params"], "macs": row["macs"]}
    (model,) = [model for model in fitting(Budget(), 0, classes=10, most=1000) if model.name == name]
    assert model["params"] == count(build_timm(name, 224, 3, 10, device="meta"), 224, 3)["params"]


def test_costs_that_papers_report() -> None:
    models = timm_table()["models"]
    assert models["resnet50"]["params"] == 25_557_032
    assert models["resnet50"]["macs"] == pytest.approx(4.1e9, rel=0.01)
    assert models["deit_tiny_patch16_224"]["macs"] == pytest.approx(1.26e9, rel=0.01)
    assert len(models) >= 60


def test_only_what_fits_and_the_nearest_first() -> None:
    budget = Budget(min_params=4_000_000, max_params=8_000_000, max_macs=1_300_000_000)
    models = fitting(budget, 5_700_000)
    assert len(models) > 5
    assert all(budget.fits(model.scores) for model in models)
    distances = [abs(model["params"] - 5_700_000) for model in models]
    assert distances == sorted(distances)
    assert {model.name for model in fitting(Budget(), 0, most=1000)} == set(timm_table()["models"])
    assert fitting(Budget(max_params=1000), 1000) == []


def test_smaller_images_cost_less_by_their_area() -> None:
    large, small = (fitting(Budget(), 11_000_000, size, most=1)[0] for size in (224, 112))
    assert small["macs"] == round(large["macs"] / 4)


def test_limits_that_are_not_known_of_timm_models_are_ignored() -> None:
    assert fitting(Budget(max_params=6_000_000, max_latency_ms=5.0), 5_000_000)


# Models of timm trained by the recipe of a run


def test_names_of_baselines() -> None:
    assert timm_names("") == []
    assert timm_names("timm:resnet18,timm:resnet18") == ["resnet18"]
    with pytest.raises(UserError, match=r"write timm:NAME"):
        timm_names("resnet18")
    with pytest.raises(UserError, match=r"timm has no model 'resnet18x'; the nearest names are .*resnet18"):
        timm_names("timm:resnet18x")


def retraining(folder: Path, *more: str, epochs: int = 1) -> list[str]:
    path = folder.parent / "retrain.yaml"
    recipe = {"epochs": epochs, "batch_size": 128, "checkpoint_seconds": 0, "augment": {"crop": "none"}}
    path.write_text(json.dumps({"train": recipe}))
    space = ["--space", "autoformer-micro", "--patch-size", "4", "--arch", ARCH, "--export", "false"]
    return ["retrain", "--config", str(path), "--out", str(folder), *space, *more]


@needs_small
def test_a_timm_model_is_trained_beside_a_retraining(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    folder = tmp_path / "run"
    asked = retraining(folder, "--baseline", f"timm:{SMALL}", "--train-images", "500")
    assert main(asked) == 0
    assert f"timm:{SMALL}: 373K parameters" in capsys.readouterr().out
    (row,) = read_json(folder / "result.json")["references"]
    assert row["name"] == f"timm:{SMALL}"
    assert row["params"] == sum(p.numel() for p in timm.create_model(SMALL, num_classes=10, in_chans=1).parameters())
    assert 0 < row["test_accuracy"] < 1
    ours, theirs = ((folder / name / "log.jsonl").read_text() for name in ("train", f"baselines/{SMALL}"))
    assert json.loads(ours.splitlines()[-1])["step"] == json.loads(theirs.splitlines()[-1])["step"]
    trained_on = [read_json(path) for path in folder.glob("*/**/settings.json")]
    assert [settings["train_images"] for settings in trained_on] == [500, 500]  # the model and the baseline
    assert f"timm:{SMALL}" in (folder / "report.html").read_text()

    before = contents(folder)
    monkeypatch.setattr(Trainer, "step", None)  # nothing is trained again
    assert main(asked) == 0
    assert contents(folder) == before
    assert write_report(folder).read_bytes() == before["report.html"]


@needs_small
@pytest.mark.slow
def test_a_baseline_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(retraining(whole, "--baseline", f"timm:{SMALL}", epochs=2)) == 0
    taken, step = [], Trainer.step

    def stopped(*args: Any) -> Any:
        taken.append(args[1])
        if len(taken) == 38:  # of twice 20: in the second epoch of the baseline
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(Trainer, "step", stopped)
    asked = retraining(parts, "--baseline", f"timm:{SMALL}", epochs=2)
    assert main(asked) == 130
    assert not (parts / "result.json").exists()
    taken.clear()
    monkeypatch.setattr(Trainer, "step", lambda *args: taken.append(args[1]) or step(*args))
    assert main(asked) == 0
    assert taken == [17, 18, 19]  # from its checkpoint on
    assert read_json(parts / "result.json") == read_json(whole / "result.json")


@needs_small
def test_a_timm_model_is_trained_beside_a_search(run: Path) -> None:
    assert main(words("run", run, baseline=f"timm:{SMALL}")) == 0
    row = read_json(run / "result.json")["references"][-1]
    assert row["name"] == f"timm:{SMALL}"
    assert {"params", "macs", "holdout_accuracy", "test_accuracy"} <= set(row)
    page = (run / "report.html").read_text()
    assert "trained from scratch by the same recipe" in page


def test_a_model_that_does_not_take_the_images_is_refused_at_once(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    message = refused(capsys, retraining(folder, "--baseline", "timm:vit_tiny_patch16_224"))
    assert "timm:vit_tiny_patch16_224 does not take images of 8 px" in message
    assert not (folder / "train").exists()
