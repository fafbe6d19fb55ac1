"""A run from a pretrained net: stages, shares as budgets, resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.data.sources import load_data
from nasformer.families.storage import load_model
from nasformer.results.folder import RunFolder
from nasformer.results.result import RunResult
from nasformer.runs.pretrained import pretrained_recipe, stage_recipes
from nasformer.train.evaluate import evaluate
from nasformer.train.recipe import Recipe
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


def test_a_finished_run_is_left_as_it_is(finished: Path, source: Path) -> None:
    before = contents(finished)
    assert main(words(source, finished, front=1)) == 0
    assert contents(finished) == before


@pytest.mark.slow
def test_a_run_can_start_from_the_supernet_of_another(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    assert main(words(finished, out, max_macs="50%", finish="none", holdout=0.2)) == 0
    assert RunResult.load(out / "result.json").winner["test_accuracy"] > 0.6


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
        ({"importance": "weights"}, "unknown measure of importance 'weights'"),
        ({"from": "timm:resnet18"}, "timm's resnet18 is a ResNet, from which we can cut nothing"),
        ({"from": None, "space": "vit-micro"}, "--max-macs 60% is a share, but of what? Name a net with --from"),
    ],
)
def test_what_cannot_work_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    assert message in refused(capsys, words(source, tmp_path / "run", **changes))


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
