"""CPU threads: a trial chooses them, the folder remembers them, and a user's number goes before both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tiny
from nasformer.cli.main import main
from nasformer.data.options import DataOptions
from nasformer.errors import UserError
from nasformer.train.loop import train_supernet
from nasformer.train.speed import recorded_threads, threads_of_training
from nasformer.utils.device import cpu_threads, fastest_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("seconds", "fastest"), [({1: 0.001, 2: 0.01}, 1), ({1: 0.01, 2: 0.001}, 2)])
def test_the_faster_of_one_and_all_threads_is_chosen(seconds: dict[int, float], fastest: int) -> None:
    assert fastest_threads(lambda: time.sleep(seconds[torch.get_num_threads()])) == fastest
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_long_trial_ends_after_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def work() -> None:
        tried.append(torch.get_num_threads())
        time.sleep(0.02 if torch.get_num_threads() > 1 else 0.001)

    monkeypatch.setattr("nasformer.utils.device.TRIAL_SECONDS", 0.01)
    assert fastest_threads(work) == 1
    assert tried == [1, 2]


@pytest.mark.usefixtures("two_threads")
def test_a_training_says_records_and_resumes_with_the_threads_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = list[int]()

    def trial(work: Callable[[], object]) -> int:
        work()
        trials.append(1)
        return 1

    monkeypatch.setattr("nasformer.train.speed.fastest_threads", trial)
    recipe = tiny.recipe(iterations=20)
    with pytest.raises(tiny.Interrupted):
        train_supernet(tiny.supernet(), tiny.Watched(recipe, fail_at=4), recipe, folder=tmp_path)
    said = capsys.readouterr().err
    assert "supernet: trying a step on 1 and on 2 threads of the CPU\n" in said
    assert "supernet: one thread is the fastest here, by this trial (--threads)\n" in said
    assert recorded_threads(tmp_path) == 1
    resumed = tiny.supernet()
    train_supernet(resumed, tiny.Watched(recipe), recipe, folder=tmp_path, quiet=True)
    assert trials == [1]
    with threads_of_training(tmp_path):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2

    # The trial itself leaves no trace in the weights.
    straight = tiny.supernet()
    with cpu_threads(1):
        train_supernet(straight, tiny.Watched(recipe), recipe, quiet=True)
    assert trials == [1]
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])


def test_a_trial_changes_neither_statistics_nor_gradients() -> None:
    from nasformer.train.loop import Trainer

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recipe = tiny.recipe()
    Trainer(model, tiny.Watched(recipe), recipe, quiet=True).try_step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_threads_that_a_user_asks_for_hold_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with cpu_threads(2):
        assert torch.get_num_threads() == 2
    with pytest.raises(UserError, match="threads is 0; give a whole number from 1"):
        DataOptions(threads=0)
    assert main(["score", "--space", "autoformer-micro", "--proxy", "dss", "--arch", "smallest", "--threads", "0"]) == 2
    assert "threads is 0" in capsys.readouterr().err
