"""What every task must do; a new task needs no line here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import tiny
from nasformer.errors import UserError
from nasformer.tasks.options import SegmentOptions
from nasformer.tasks.registry import Task, get_task, list_tasks, register_task

OPTIONS = SimpleNamespace(segment=SegmentOptions(decoder_dim=8))


@pytest.fixture(params=list(list_tasks()))
def task(request: pytest.FixtureRequest) -> Task:
    return get_task(request.param)


def test_the_head_of_a_task_gives_logits_that_its_loss_takes(task: Task) -> None:
    space = task.space(tiny.SPACE, OPTIONS)
    batches = SimpleNamespace(num_classes=10, img_size=8, classes=[str(number) for number in range(10)])
    x, targets = torch.randn(2, 1, 8, 8), task.objective.example_targets(2, batches)  # type: ignore[arg-type]
    loss = task.objective.loss(space.build(space.root.smallest())(x), x, targets)
    assert loss.ndim == 0
    assert loss.isfinite()


def test_costs_count_the_head(task: Task) -> None:
    space = task.space(tiny.SPACE, OPTIONS)
    model = space.build(space.root.smallest())
    assert space.costs(model.arch)["params"] == sum(weight.numel() for weight in model.parameters())


def test_the_score_of_a_task_is_among_those_of_its_metric(task: Task) -> None:
    classes = ["a", "b"]
    metric = task.objective.metric(SimpleNamespace(classes=classes))  # type: ignore[arg-type]
    if task.name == "classify":
        metric.update(torch.eye(2), torch.tensor([0, 1]))
    else:
        metric.update(torch.eye(2).view(1, 2, 1, 2), [torch.tensor([[0, 1]])])
    scores = metric.compute()
    assert scores[task.objective.score] == 1.0
    assert "loss" in scores
    assert metric.images


def test_names_are_unique_and_unknown_ones_are_refused(task: Task) -> None:
    with pytest.raises(UserError, match=f"another task named '{task.name}'"):
        register_task(type(task))
    with pytest.raises(UserError, match="unknown task 'sing'; there are: classify, segment"):
        get_task("sing")
