"""Other tasks from a pretrained net: what a teacher teaches, sorting by the task's loss, and the whole run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main
from nasformer.models.registry import get_space
from nasformer.models.storage import load_model
from nasformer.runs.base import fit_to_data, load_batches
from nasformer.runs.pretrained import sort_net, sorting_batches, sorting_loss
from nasformer.supernet.importance import find_units
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.segment import pixel_cross_entropy, taught_pixels
from nasformer.tasks.vqa import answer_loss, taught_answers
from nasformer.train.evaluate import objective_of
from nasformer.train.loop import FEATURE_DEPTHS, train_supernet
from nasformer.train.loss import Answers, Teacher, feature_difference
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from nasformer.utils.files import read_json
from small_run import contents, json_output, refused
from tasks.examples import EXAMPLES

DENSE = ["segment", "detect", "panoptic", "vqa"]
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]]).T.reshape(1, 3, 1, 2)  # of two pixels


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny net of timm with random weights in a file."""
    path = tmp_path_factory.mktemp("timm") / "vit.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit").state_dict(), path)
    return f"timm:test_vit:{path}"


# What is learned of a teacher


def test_answers_about_pixels_are_mixed_into_their_labels() -> None:
    labels = torch.tensor([[[1, 255]]])
    found = taught_pixels(LOGITS, labels, Answers(0.25))
    expected = 0.25 * LOGITS[0, :, 0, 0].softmax(0) + 0.75 * torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(found[0, :, 0, 0], expected)
    assert not found[0, :, 0, 1].any()  # a pixel without a class teaches nothing
    hard = taught_pixels(LOGITS, labels, Answers(1.0, hard=True, smoothing=0.3))
    torch.testing.assert_close(hard[0, :, 0, 0], torch.tensor([0.8, 0.1, 0.1]))


def test_the_loss_of_soft_labels_is_that_of_labels_where_they_are_sure() -> None:
    labels = torch.tensor([[[2, 255]]])
    sure = taught_pixels(torch.zeros_like(LOGITS), labels, Answers(0.0))
    losses = [pixel_cross_entropy(LOGITS, LOGITS, targets) for targets in (labels, sure)]
    torch.testing.assert_close(*losses)
    nothing = taught_pixels(LOGITS, torch.full((1, 1, 2), 255), Answers())
    assert pixel_cross_entropy(LOGITS, LOGITS, nothing) == 0


def test_a_loss_is_least_at_the_answers_of_the_teacher() -> None:
    masks, worths = torch.tensor([[[0, 1]]]), torch.tensor([[0.0, 1.0, 0.3]])
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    for loss, taught, theirs, targets in (
        (pixel_cross_entropy, taught_pixels, LOGITS, masks),
        (answer_loss, taught_answers, logits, worths),
    ):
        ours = theirs.clone().requires_grad_()
        loss(ours, ours, taught(theirs, targets, Answers())).backward()
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, torch.zeros_like(ours), atol=1e-6, rtol=0)


# The stages


def opened(task: str, root: Path) -> tuple[Any, Any]:
    """The batches of a task's tiny set, and the space of a tiny net of timm for them."""
    pytest.importorskip(EXAMPLES[task].needs)
    command, recipe = EXAMPLES[task].command(task, root), Recipe(batch_size=6)
    batches = load_batches(command, recipe, World(), torch.device("cpu"), 32)
    return batches, fit_to_data(get_space("timm:test_vit[blocks.depth=2]"), batches, command)


def answers(model: Any, x: Any) -> list[Tensor]:
    with torch.no_grad():
        found = model.eval()(x)
    return [found] if isinstance(found, Tensor) else [one["scores"] for one in found]


@pytest.mark.parametrize("task", DENSE)
def test_sorting_by_the_loss_of_a_task_changes_no_answer(task: str, tmp_path: Path) -> None:
    batches, space = opened(task, tmp_path)
    torch.manual_seed(0)
    model, ((x, _),) = space.build(space.root.largest()), islice(batches.train_batches(), 1)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1) / 2, std=0.05)
    first, expected = next(iter(find_units(model))).reader.weight.clone(), answers(model, x)
    wider = space.with_choices({"embed_dim": [32, 64]})
    sort_net(model, wider, lambda: sorting_batches(batches, 12), "gate", sorting_loss(objective_of(batches)))
    assert not torch.equal(next(iter(find_units(model))).reader.weight, first)
    for found, before in zip(answers(model, x), expected, strict=True):
        torch.testing.assert_close(found, before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("task", DENSE)
def test_a_supernet_comes_nearer_to_the_features_of_its_teacher(task: str, tmp_path: Path) -> None:
    batches, space = opened(task, tmp_path)
    torch.manual_seed(0)
    teacher, ((x, targets),) = space.build(space.root.largest()).eval(), islice(batches.train_batches(), 1)
    wanted = Teacher(teacher, Answers(), FEATURE_DEPTHS, objective_of(batches).taught)(x, targets).features

    def distance(weight: float) -> float:
        student, found = Supernet(space, seed=1), dict[str, Tensor]()
        recipe = Recipe(iterations=6, batch_size=6, lr=4e-3, teacher_features=weight, teacher_weight=1.0, sandwich=1)
        train_supernet(student, batches, recipe, teacher=teacher, quiet=True)
        with torch.no_grad():
            student.eval()(x, space.root.largest(), outputs=found)
        return feature_difference(found, wanted).item()

    assert distance(20.0) < 0.9 * distance(1e-9)


def settings(task: str, data: Path, **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "data": str(data),
        "img_size": 32,
        "workers": 0,
        "holdout": 0.25,
        "calibration_images": 12,
        "max_params": "80%",
        task: EXAMPLES[task].options,
        "train": {"iterations": 4, "batch_size": 6},
        "search": {"population": 3, "parents": 2, "generations": 1},
        "export": False,
        **changes,
    }


def words(task: str, source: str | Path, out: Path, **changes: Any) -> list[str]:
    data = out.parent / "set"
    if not data.exists():
        EXAMPLES[task].command(task, data)
    path = out.parent / f"{out.name}.yaml"
    path.write_text(json.dumps(settings(task, data, **changes)))
    return ["run", "--from", str(source), "--config", str(path), "--out", str(out)]


@pytest.mark.parametrize(
    "task", ["segment", *(pytest.param(task, marks=pytest.mark.slow) for task in ("vqa", "detect", "panoptic"))]
)
def test_a_pretrained_net_is_cut_for_a_task(task: str, weights: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip(EXAMPLES[task].needs)
    run = tmp_path / "run"
    result = json_output(capsys, *words(task, weights, run))
    score = next(name.removeprefix("test_") for name in result["winner"] if name.startswith("test_"))
    full = next(model for model in result["references"] if model["name"] == "full net, finetuned")
    assert result["winner"]["params"] <= 0.8 * full["params"]
    assert f"test_{score}" in full
    assert set(result["finish"]["holdout_accuracy"]) == {"inherited", "from the supernet", "from the full net"}
    model, whole = load_model(run / "model"), load_model(run / "full/model")
    assert (model.family, whole.family) == (f"{task}:vit", f"{task}:vit")
    assert sum(weight.numel() for weight in whole.parameters()) == full["params"]
    assert sum(weight.numel() for weight in model.parameters()) == result["winner"]["params"]
    assert read_json(run / "config.json")["max_params"] == int(0.8 * full["params"])
    evaluated = json_output(capsys, "evaluate", run, "--data", tmp_path / "set", "--holdout", "0.25")
    shipped = result["finished"] or result["winner"]
    assert evaluated[score] == pytest.approx(shipped[f"test_{score}"])
    before = contents(run)
    assert main(words(task, weights, run)) == 0
    assert contents(run) == before


@pytest.mark.slow
def test_sizes_and_another_run_from_a_supernet_of_masks(weights: str, tmp_path: Path, capsys: Any) -> None:
    run, short = tmp_path / "run", {"finish": "none"}
    result = json_output(capsys, *words("segment", weights, run, front=1, max_params=None, max_macs="90%", **short))
    assert result["sizes"]
    assert load_model(run / result["sizes"][0]["name"] / "model").task == "segment"
    again = json_output(capsys, *words("segment", run, tmp_path / "again", **short))
    assert "test_miou" in again["winner"]
    alone = json_output(capsys, *words("segment", run / "full/model", tmp_path / "alone", **short))
    assert "test_miou" in alone["winner"]


@pytest.mark.parametrize("task", ["segment", pytest.param("vqa", marks=pytest.mark.slow)])
def test_a_net_that_has_learned_a_task_is_cut_without_training(
    task: str, weights: str, tmp_path: Path, capsys: Any
) -> None:
    data, model = tmp_path / "set", tmp_path / "model"
    EXAMPLES[task].command(task, data)
    of_search = ("max_params", "search", "calibration_images")
    learned = {name: value for name, value in settings(task, data).items() if name not in of_search}
    (tmp_path / "model.yaml").write_text(json.dumps(learned))
    assert main(["finetune", weights, "--config", str(tmp_path / "model.yaml"), "--out", str(model)]) == 0
    capsys.readouterr()
    run = tmp_path / "run"
    result = json_output(capsys, *words(task, model / "model", run, no_training=True, finish="none", max_params="90%"))
    (full,) = (model for model in result["references"] if model["name"] == "full net")
    score = next(name for name in full if name.startswith("test_") and name != "test_agreement")
    assert full["test_agreement"] == pytest.approx(1.0)
    assert 0 <= result["winner"]["test_agreement"] <= 1
    assert result["winner"]["params"] <= 0.9 * full["params"]
    evaluated = json_output(capsys, "evaluate", model, "--data", data, "--holdout", "0.25")
    assert full[score] == pytest.approx(evaluated[score.removeprefix("test_")])


def test_masks_from_a_supernet_of_classes(finished: Path, tmp_path: Path, capsys: Any) -> None:
    """`finished` is a run on digits: grey images of 8 pixels."""
    changes = {"img_size": 16, "finish": "none", "segment": {"decoder_dim": 8}}
    result = json_output(capsys, *words("segment", finished, tmp_path / "run", **changes))
    assert "test_miou" in result["winner"]
    assert load_model(tmp_path / "run/model").family == "segment:autoformer"


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("segment", {"no_training": True}, "--no-training cuts a net that has learned --task segment"),
        ("detect", {"no_training": True}, "which --task detect has no measure for; leave it out"),
        ("panoptic", {"no_training": True}, "which --task panoptic has no measure for; leave it out"),
        ("segment", {"train": {"teacher": "timm:resnet18"}}, "gives classes of whole images; name a model folder"),
        ("panoptic", {"train": {"inplace_distillation": True, "sandwich": 1}}, "has no answers to compare"),
    ],
)
def test_what_a_task_cannot_learn_is_refused(
    task: str, changes: dict[str, Any], message: str, weights: str, tmp_path: Path, capsys: Any
) -> None:
    assert message in refused(capsys, words(task, weights, tmp_path / "run", **changes))


@pytest.mark.slow
def test_a_model_for_masks_is_a_teacher_of_masks(weights: str, tmp_path: Path, capsys: Any) -> None:
    assert main(words("segment", weights, tmp_path / "run", finish="none")) == 0
    train = {"iterations": 2, "batch_size": 6, "teacher": str(tmp_path / "run/full/model")}
    result = json_output(capsys, *words("segment", weights, tmp_path / "taught", train=train, finish="none"))
    assert "test_miou" in result["winner"]
    teacher = str(tmp_path / "run/full/model")
    message = refused(capsys, words("panoptic", weights, tmp_path / "p/run", train=train | {"teacher": teacher}))
    assert "is a model for --task segment; give one for --task panoptic" in message
