"""What every task must do; a new task needs a line in `tests/tasks/examples.py` and none here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from nasformer.cli.main import main
from nasformer.cli.parser import CommandParser, list_options
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.models.registry import get_space
from nasformer.runs.base import load_batches
from nasformer.runs.options import RetrainCommand
from nasformer.supernet.supernet import Supernet
from nasformer.tasks.options import TASKS, TaskFacts, TaskOptions
from nasformer.tasks.registry import Task, get_task, list_tasks, register_task
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World
from small_run import json_output, output, refused
from tasks.examples import EXAMPLES, Example

SIZE = 32


@pytest.fixture(params=list(list_tasks()))
def task(request: pytest.FixtureRequest) -> Task:
    pytest.importorskip(EXAMPLES[request.param].needs)
    return get_task(request.param)


@pytest.fixture
def example(task: Task) -> Example:
    return EXAMPLES[task.name]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Opens the tiny set of a task."""
    roots = {name: tmp_path_factory.mktemp(name) for name in EXAMPLES}

    def open_set(task: Task, seed: int = 0) -> Any:
        command = EXAMPLES[task.name].command(task.name, roots[task.name])
        recipe = Recipe(batch_size=4, augment=AugmentOptions(hflip=EXAMPLES[task.name].hflip))
        command.seed = seed
        return load_batches(command, recipe, World(), torch.device("cpu"), SIZE)

    return open_set


def space_of(task: Task, example: Example) -> Any:
    return task.space(tiny.SPACE, example.command(task.name).of_task)


def flat(value: Any) -> list[Any]:
    """Everything in a batch, in order."""
    if isinstance(value, torch.Tensor | int | float | str | None):
        return [value]
    items = value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, "__dict__") else value
    return [leaf for item in items for leaf in flat(item)]


def same(first: Any, second: Any) -> bool:
    pairs = zip(flat(first), flat(second), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


WRONG: list[Any] = [None, [], {}, [[]], "x", -1, 1.5, True, 10**30]


def misshapen(value: Any) -> Iterator[Any]:
    """A JSON value with one of its parts of another shape; of a list the first item stands for all."""
    yield from WRONG
    if isinstance(value, dict):
        for key, part in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield from ({**value, key: wrong} for wrong in misshapen(part))
    elif isinstance(value, list) and value:
        yield from ([wrong, *value[1:]] for wrong in misshapen(value[0]))


def test_annotations_of_another_shape_are_refused_or_left_out(task: Task, example: Example, tmp_path: Path) -> None:
    command = example.command(task.name, tmp_path)
    files = sorted(tmp_path.rglob("*train*.json")) + sorted(tmp_path.glob("train/*.json"))
    if not files:
        pytest.skip("its sets have no JSON")
    texts = ["[" * 100_000, "", "{", *map(json.dumps, misshapen(json.loads(files[0].read_text())))]
    recipe = Recipe(batch_size=4, augment=AugmentOptions(hflip=example.hflip))
    refusals = list[str]()
    for text in texts:
        files[0].write_text(text)
        try:
            load_batches(command, recipe, World(), torch.device("cpu"), SIZE)
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > len(texts) / 3  # where one object is wrong, the others are used
    assert not [message for message in refusals if "\n" in message]


def test_a_task_says_what_it_is(task: Task) -> None:
    assert task.name == task.facts.name
    assert task.facts.about
    assert task.objective.score in task.facts.scores
    names = {option.name for option in list_options(TaskOptions) if option.name.startswith(f"{task.name}.")}
    assert bool(names) == (task.facts.options is not None)
    help_of_task = next(option.help for option in list_options(TaskOptions) if option.name == "task")
    assert f"{task.name}:" in help_of_task


def test_the_head_of_a_task_gives_what_its_loss_takes(task: Task, example: Example) -> None:
    space = space_of(task, example)
    batches = SimpleNamespace(num_classes=10, img_size=8, classes=[str(number) for number in range(10)])
    x, targets = torch.randn(2, 1, 8, 8), task.objective.example_targets(2, batches)  # type: ignore[arg-type]
    told = {"targets": targets} if task.objective.within_model else {}
    loss = task.objective.loss(space.build(space.root.smallest())(x, **told), x, targets)
    assert loss.ndim == 0
    assert loss.isfinite()
    loss.backward()


def test_costs_count_the_head(task: Task, example: Example) -> None:
    space = space_of(task, example)
    for arch in (space.root.smallest(), space.root.largest()):
        model = space.build(arch)
        assert space.costs(arch)["params"] == sum(weight.numel() for weight in model.parameters())
    assert model.task == task.name


def test_the_cost_command_counts_the_head(task: Task, example: Example, capsys: Any) -> None:
    space = task.space(get_space("s3-micro", img_size=SIZE, num_classes=5), example.command(task.name).of_task)
    options = [f"--{task.name}.{name}={value}" for name, value in example.options.items()]
    argv = ["--space", "s3-micro", "--task", task.name, *options, "--img-size", str(SIZE), "--num-classes", "5"]
    found = json_output(capsys, "cost", "--arch", "largest", *argv)
    assert found == space.costs(space.root.largest())
    limit = (found["params"] + space.costs(space.root.smallest())["params"]) // 2
    sampled = space.arch(output(capsys, "sample", "--max-params", str(limit), *argv))
    assert space.costs(sampled)["params"] <= limit


def test_a_supernet_computes_what_the_extracted_model_computes(task: Task, example: Example) -> None:
    space = space_of(task, example)
    supernet, x = Supernet(space).eval(), torch.randn(2, 1, 8, 8)
    arch = space.root.smallest()
    with torch.no_grad():
        assert same(supernet(x, arch), supernet.extract(arch)(x))


def test_a_batch_depends_on_seed_and_step_alone(task: Task, opened: Any) -> None:
    steps = opened(task).train_batches()
    first, second = next(steps), next(steps)
    assert same(second, next(opened(task).train_batches(1)))
    assert not same(first[0], second[0])
    assert not same(first[0], next(opened(task, seed=1).train_batches())[0])


def test_answers_without_a_mistake_score_1(task: Task, example: Example, opened: Any) -> None:
    batches = opened(task)
    metric = task.objective.metric(batches)
    for _, targets in batches.evaluation("test", 2):
        metric.update(example.perfect(targets, SIZE), targets)
    scores = metric.compute()
    assert scores[task.objective.score] == pytest.approx(1.0)
    assert "loss" in scores
    assert metric.images == batches.test_images


def test_names_are_unique_and_unknown_ones_are_refused(task: Task, capsys: Any) -> None:
    with pytest.raises(UserError, match=f"another task named '{task.name}'"):
        register_task(type(task))
    message = refused(capsys, ["train", "--task", f"{task.name}x"])
    assert re.search(f"there is no task '{task.name}x', did you mean '{task.name}'", message)


PLUGIN = '''
from dataclasses import dataclass

from nasformer import register_task
from nasformer.tasks.classify import Classify
from nasformer.tasks.options import TaskFacts


@dataclass
class Options:
    """Options of mine."""

    margin: float = 0.5
    """how sure to be"""


@register_task
class Mine(Classify):
    facts = TaskFacts("mine", "a task of my own", {"accuracy": "accuracy"}, Options)
'''


def test_a_task_has_a_name_that_options_can_have() -> None:
    class Mine(type(get_task("classify"))):  # type: ignore[misc]
        facts = TaskFacts("my-task", "a task of my own", {"accuracy": "accuracy"})

    with pytest.raises(UserError, match="letters, digits and underscores, since its options are; rename 'my-task'"):
        register_task(Mine)


def test_a_plugin_has_a_task_with_options_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "plugin_with_a_task.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nasformer.utils.plugins._loaded", set())  # workers of later tests would look for it in vain
    known = dict(TASKS)
    try:
        assert main(["train", "--help-all", "--import", "plugin_with_a_task"]) == 0
        assert "--mine.margin" in capsys.readouterr().out
        options = CommandParser("retrain", RetrainCommand).parse(["--task", "mine", "--mine.margin", "0.7"]).options
        assert options is not None
        assert options.of_task.margin == 0.7
        assert isinstance(TASKS["mine"], TaskFacts)
    finally:
        TASKS.clear()
        TASKS.update(known)
