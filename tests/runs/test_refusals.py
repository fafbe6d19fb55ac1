"""What is wrong whatever the images are is refused before they are read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from nasformer.runs.options import EvolveCommand, ExecutorOptions, RunCommand, TrainCommand
from small_run import refused, words


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading images is a failure of the test; and no profiles are near."""

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("images were read")

    monkeypatch.setattr("nasformer.runs.base.load_batches", read)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_params": "6mm"}, "'6mm' is not a quantity"),
        ({"max_latency": "5"}, "'5' is not a time"),
        ({"max_macs": "50%"}, "--max-macs 50% is a share, but of what?"),
        ({"space": "autoformer-nano"}, "autoformer-nano"),
        ({"baseline": "timm:resnet81"}, "timm has no model 'resnet81'"),
        ({"baseline": "resnet18"}, "write timm:NAME"),
        ({"search": {"strategy": "magic"}}, "unknown strategy 'magic'"),
        ({"search": {"objectives": ["beauty"]}}, "objective 'beauty' is not among the scores"),
        ({"latency_profile": "missing.json"}, "missing.json"),
    ],
)
def test_refused_before_images_are_read(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("run", "plan"):
        assert message in refused(capsys, words(command, tmp_path / "out", **changes))
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.usefixtures("no_images")
def test_a_plan_without_a_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run would measure it."""
    message = refused(capsys, words("plan", tmp_path / "out", max_latency="5ms"))
    assert "nothing was profiled for autoformer-micro (looked in profiles/); measure it first" in message


@pytest.mark.usefixtures("no_images")
def test_a_search_by_proxies_is_refused_before_images_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words("search", tmp_path / "out", max_params="6mm")
    assert "'6mm' is not a quantity" in refused(capsys, [*asked, "--proxy", "dss", "--data", "digits"])


def test_what_a_command_has_no_option_for_is_as_usual() -> None:
    evolve, run = EvolveCommand(), RunCommand(track="mlflow", executor="ray", task="segment")
    assert (evolve.task, evolve.tracker, evolve.baseline, evolve.search) == ("classify", "none", "", None)
    assert not {"task", "track", "proxy", "baseline", "search"} & {item.name for item in fields(EvolveCommand)}
    assert (run.task, run.tracker, run.executor_options.executor) == ("segment", "mlflow", "ray")
    assert TrainCommand().executor_options == ExecutorOptions()
