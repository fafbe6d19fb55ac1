"""A run from a pretrained net: stages, shares as budgets, resume, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tiny
from nasformer.cli.main import main
from nasformer.data.sources import load_data
from nasformer.models.pretrained import source_arch, source_space
from nasformer.models.storage import load_model
from nasformer.report.page import result_captions
from nasformer.report.plots import trade_off
from nasformer.results.contents import read_run
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.runs.options import RunCommand
from nasformer.runs.pretrained import mention_slack, pretrained_recipe, stage_recipes
from nasformer.supernet.storage import load_supernet
from nasformer.train.evaluate import evaluate
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from small_run import contents, refused


def words(source: Path, out: Path, **changes: Any) -> list[str]:
    settings = {
        "from": str(source),
        "data": "digits",
        "max_macs": "60%",
        "train": {"iterations": 40, "batch_size": 64, "augment": {"crop": "none", "hflip": 0.0}},
        "search": {"population": 6, "parents": 3, "generations": 2},
        "export": False,
        **changes,
    }
    path = out.parent / "pretrained.yaml"
    path.write_text(json.dumps(settings))
    return ["run", "--config", str(path), "--out", str(out)]


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "run"
    assert main(words(source, out, front=1)) == 0
    return out


def test_a_run_keeps_most_of_the_accuracy_at_a_share_of_the_cost(finished: Path, source: Path) -> None:
    result = RunResult.load(finished / "result.json")
    full = next(model for model in result.references if model.name == "full net, finetuned")
    assert result.winner["macs"] <= 0.6 * full["macs"]
    assert full["test_accuracy"] > 0.8
    assert result.shipped["test_accuracy"] > 0.7
    assert result.finish is not None
    tried = result.finish.holdout_accuracy
    assert set(tried) == {"inherited", "from the supernet", "from the full net"}
    assert tried[result.finish.chosen] == max(tried.values())


def test_the_search_starts_from_the_uniform_cut(finished: Path) -> None:
    result, first = RunResult.load(finished / "result.json"), read_run(finished).candidates[0]
    uniform = next(model for model in result.references if model.name == "uniform")
    assert (first.origin, first.arch.to_dict()) == ("seed", uniform.arch)
    assert result.winner["holdout_accuracy"] >= first.scores["accuracy"] - 1e-6


def test_each_size_of_the_front_is_finished_on_its_own(finished: Path) -> None:
    result = RunResult.load(finished / "result.json")
    assert result.sizes
    for size in result.sizes:
        own = RunResult.load(finished / size.name / "result.json")
        assert own.finish is not None
        assert own.shipped["test_accuracy"] == size["test_accuracy"]
        assert load_model(finished / size.name / "model").arch == own.arch


def test_the_model_shipped_is_the_one_in_the_result(finished: Path) -> None:
    result, model = RunResult.load(finished / "result.json"), load_model(finished / "model")
    assert model.arch == result.arch
    data = load_data("digits", in_chans=1)
    accuracy = evaluate(model, data, "test")["accuracy"]
    assert accuracy == pytest.approx(result.shipped["test_accuracy"])


def test_the_report_compares_the_uniform_cut_with_the_winner_as_it_was_searched(finished: Path) -> None:
    result, page = RunResult.load(finished / "result.json"), (finished / "report.html").read_text()
    uniform = next(model for model in result.references if model.name == "uniform")
    assert result.finished
    words = f"The winner has {100 * result.winner['test_accuracy']:.1f} % test accuracy before its own training"
    assert f"{words}, a uniform cut within the budget {100 * uniform['test_accuracy']:.1f} %" in page
    run = read_run(finished)
    assert "Hollow marks have the weights they inherit" in result_captions(run)["trade_off"][1]
    labels = trade_off(run).axes[0].get_legend_handles_labels()[1]  # type: ignore[union-attr]
    assert {"winner", "winner, inherited weights", "uniform cut, inherited weights"} <= set(labels)


def test_a_report_before_latencies_are_measured_promises_none(finished: Path) -> None:
    run = read_run(finished)
    assert result_captions(run)["trade_off"][0].endswith("against latency")
    early = [replace(model, scores={"macs": model["macs"]}) for model in run.result.references]  # type: ignore[union-attr]
    title, caption = result_captions(replace(run, result=replace(run.result, references=early)))["trade_off"]
    assert title.endswith("against MACs")
    assert "latency" not in caption


def test_a_finished_run_is_left_as_it_is(finished: Path, source: Path) -> None:
    before = contents(finished)
    assert main(words(source, finished, front=1)) == 0
    assert contents(finished) == before


def test_a_budget_that_the_whole_net_fits_is_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    run: Any = SimpleNamespace(world=World(), space=tiny.MICRO)
    largest = tiny.MICRO.root.largest()
    params = tiny.MICRO.cost(largest).params
    mention_slack(run, RunCommand(max_params=params - 1), largest)
    assert not capsys.readouterr().err
    mention_slack(run, RunCommand(max_params=params), largest)
    assert "nothing has to be cut" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_can_start_from_the_supernet_of_another(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    assert main(words(finished, out, max_macs="50%", finish="none", holdout=0.2)) == 0
    assert RunResult.load(out / "result.json").winner["test_accuracy"] > 0.6


def test_a_run_can_start_from_the_supernet_of_another_for_other_photos(finished: Path, tmp_path: Path) -> None:
    """Of other classes and another size: both were refused after the full net had been fine-tuned."""
    images = load_data("digits").train
    for number, label in enumerate(images.labels[:60].tolist()):
        folder = tmp_path / "photos" / ("even" if label % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(images.images[number][0])).save(folder / f"{number}.png")
    out, short = tmp_path / "next", {"iterations": 2, "batch_size": 16, "augment": {"crop": "none", "hflip": 0.0}}
    changes = {"data": str(tmp_path / "photos"), "img_size": 16, "finish": "none", "train": short}
    assert main(words(finished, out, **changes)) == 0
    trained, before = (load_supernet(folder / "supernet").weights.state_dict() for folder in (out, finished))
    weight = "blocks.0.mlp.fc1.weight"
    assert torch.allclose(trained[weight], before[weight], atol=0.02)
    assert load_model(out / "model").num_classes == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": "vit-micro"}, "has a space of its own; leave --space vit-micro out"),
        ({"max_macs": "0%"}, "--max-macs is 0%; expected more than 0% and at most 100%"),
        ({"from": None, "space": "vit-micro", "front": 3}, "--front is for a pretrained net that is cut"),
        (
            {"from": None, "space": "vit-micro", "importance": "gate"},
            "--importance is for a pretrained net that is cut",
        ),
        ({"no_training": True, "baseline": "timm:resnet18"}, "--baseline trains, --no-training does not"),
        ({"finish": "retrain"}, "--finish retrain would drop the weights of the pretrained net"),
        ({"importance": "weights"}, "unknown measure of importance 'weights'"),
        ({"baseline": "timm:test_vit:nothing.pth"}, "there is no file of weights nothing.pth"),
        (
            {"from": None, "space": "vit-micro", "max_macs": None, "baseline": "timm:test_vit:nothing.pth"},
            "without --from, baselines have fresh weights",
        ),
        ({"from": "timm:vit_tiny_r_s16_p8_224"}, "this ViT of timm has a stem of the type HybridEmbed"),
        ({"from": "timm:resnet18"}, "timm's resnet18 is a ResNet, from which we can cut nothing"),
        ({"from": None, "space": "vit-micro"}, "--max-macs 60% is a share, but of what? Name a net with --from"),
    ],
)
def test_what_cannot_work_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    assert message in refused(capsys, words(source, tmp_path / "run", **changes))


def test_a_model_of_timm_is_fine_tuned_beside_it_from_its_own_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasformer.latency.measure.VISIT_SECONDS", 0.001)  # exact times do not matter here
    weights, out = tmp_path / "weights.safetensors", tmp_path / "run"
    theirs = timm.create_model("test_vit", img_size=160, num_classes=1000)
    save_file(theirs.state_dict(), weights)
    recipe = {"iterations": 2, "batch_size": 16, "augment": {"crop": "none", "hflip": 0.0}}
    changes = {"baseline": f"timm:test_vit:{weights}", "train": recipe, "finish": "none", "img_size": 16, "front": 1}
    assert main(words(source, out, **changes)) == 0
    result = RunResult.load(out / "result.json")
    model = next(model for model in result.references if model.name == "timm:test_vit")
    assert model["params"] == sum(weight.numel() for weight in beside(out).values())
    assert torch.allclose(beside(out)["blocks.0.mlp.fc1.weight"], theirs.blocks[0].mlp.fc1.weight, atol=0.01)
    assert model["measured_latency_ms"] > 0
    page = (out / "report.html").read_text()
    assert "timm models were fine-tuned from their weights, as the full net was, by the same recipe" in page


def beside(run: Path) -> dict[str, Any]:
    """The weights of a baseline after its training."""
    (checkpoint,) = (run / "baselines" / "test_vit" / "checkpoints").glob("step-*")
    return load_file(checkpoint / "weights.safetensors")


def test_weights_of_another_model_are_refused(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), weights)
    asked = words(source, tmp_path / "run", baseline=f"timm:test_resnet:{weights}")
    assert "is missing; are these weights of test_resnet?" in refused(capsys, asked)


@pytest.mark.parametrize("command", [["train"], ["evolve"], ["retrain", "--arch", "largest"]])
def test_what_starts_from_fresh_weights_does_not_take_a_net(
    command: list[str], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*command, "--from", str(source), "--data", "digits", "--out", str(tmp_path / "run")]
    assert (
        f"this command starts from fresh weights, not from a net's; to cut the net: nasformer run --from {source}"
        in (refused(capsys, asked))
    )


def test_shares_are_known_wherever_a_net_is_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = ["--from", str(source), "--max-macs", "60%"]
    assert main(["sample", *net, "-n", "3"]) == 0
    space, whole = source_space(str(source)), source_space(str(source)).costs(source_arch(str(source)))["macs"]
    archs = [space.arch(line) for line in capsys.readouterr().out.splitlines()]
    assert all(space.costs(arch)["macs"] <= 0.6 * whole for arch in archs)
    assert main(["search", *net, "--proxy", "params", "--search.population", "4", "--search.generations", "1"]) == 0
    assert main(["spaces", "--from", str(source)]) == 0
    assert "img_size can be a dimension, too" in capsys.readouterr().out


def test_recipes_follow_the_number_of_images_unless_the_user_says_more() -> None:
    recipes = stage_recipes(pretrained_recipe(Recipe()), images=1020, steps_per_epoch=8)
    assert [recipe.iterations for recipe in (recipes.full, recipes.supernet, recipes.finish)] == [479, 958, 958]
    assert (recipes.supernet.sandwich, recipes.finish.sandwich, recipes.full.teacher_weight) == (2, 0, 0.0)
    asked = stage_recipes(pretrained_recipe(Recipe(epochs=100, lr=2e-3)), images=1020, steps_per_epoch=8)
    assert [recipe.iterations for recipe in (asked.full, asked.supernet, asked.finish)] == [400, 800, 800]
    assert asked.finish.lr == 2e-3
    assert (recipes.finish.teacher_features, pretrained_recipe(Recipe(teacher="timm:x")).teacher_features) == (5.0, 0.0)


@pytest.mark.slow
def test_a_larger_teacher_is_fine_tuned_and_teaches(source: Path, tmp_path: Path) -> None:
    teacher = timm.create_model("test_vit", num_classes=5, img_size=160, in_chans=3)
    save_file(teacher.state_dict(), tmp_path / "teacher.safetensors")
    out, name = tmp_path / "run", f"timm:test_vit:{tmp_path / 'teacher.safetensors'}"
    recipe = {"iterations": 8, "batch_size": 32, "teacher": name, "augment": {"crop": "none", "hflip": 0.0}}
    assert main(words(source, out, train=recipe, finish="none", img_size=16)) == 0
    assert (out / "teacher" / "train" / "log.jsonl").exists()
    result = RunResult.load(out / "result.json")
    assert any(model.name == "full net, finetuned" for model in result.references)
    assert RunFolder(out).read_config().settings["train"]["teacher"] == name
