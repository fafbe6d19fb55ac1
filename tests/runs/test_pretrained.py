"""A run from a pretrained net: stages, shares as budgets, resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.families.registry import get_space
from nasformer.families.storage import load_model, save_model
from nasformer.results.result import RunResult
from nasformer.runs.pretrained import pretrained_recipe, stage_recipes
from nasformer.train.evaluate import evaluate
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from small_run import contents, refused

PLAIN = AugmentOptions(crop="none", hflip=0.0)
NAME = "vit-cuts[embed_dim=32;blocks.depth=2;blocks.num_heads=0,1,2;blocks.hidden_dim=0,64,128]"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT that knows digits, as a model folder."""
    space, data = get_space(NAME, img_size=8, patch_size=2, in_chans=1, num_classes=10), load_data("digits")
    torch.manual_seed(0)
    model = space.build(space.root.largest())
    for weight in (weight for weight in model.parameters() if weight.ndim > 1):
        nn.init.trunc_normal_(weight, std=0.15)
    train_model(model, data, Recipe(epochs=6, lr=3e-3, batch_size=64, augment=PLAIN), quiet=True)
    assert evaluate(model, data, "holdout")["accuracy"] > 0.8
    return save_model(model, tmp_path_factory.mktemp("source") / "vit", classes=data.classes)


def words(source: Path, out: Path, **changes: Any) -> list[str]:
    settings = {
        "from": str(source),
        "data": "digits",
        "max_macs": "60%",
        "train": {"iterations": 80, "batch_size": 64, "augment": {"crop": "none", "hflip": 0.0}},
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
    assert main(words(source, out)) == 0
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


def test_the_model_shipped_is_the_one_in_the_result(finished: Path) -> None:
    result, model = RunResult.load(finished / "result.json"), load_model(finished / "model")
    assert model.arch == result.arch
    data = load_data("digits", in_chans=1)
    accuracy = evaluate(model, data, "test")["accuracy"]
    assert accuracy == pytest.approx(result.shipped["test_accuracy"])


def test_a_finished_run_is_left_as_it_is(finished: Path, source: Path) -> None:
    before = contents(finished)
    assert main(words(source, finished)) == 0
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
