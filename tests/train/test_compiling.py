"""`--train.compile auto`: what it decides, how it changes over, and that results stay a function of seed and step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from nasformer.layers.basic import DropPath
from nasformer.supernet.supernet import COMPILE_OPTIONS
from nasformer.train import speed
from nasformer.train.loop import train_supernet
from nasformer.train.speed import (
    CompileForecast,
    Rehearsal,
    archs_with_all_kinds,
    forecast_compilation,
    record_seconds,
    recorded_seconds,
)
from nasformer.utils.child import Ended

DEPTH = {"drop_path_rate": 0.3}


class FakeChild:
    """A process that compiles nothing, and is ready when it is asked first."""

    def __init__(self, ended: Ended) -> None:
        self.ended, self.jobs, self.closed = ended, list[Any](), 0

    def __call__(self, job: Any, **options: Any) -> FakeChild:
        self.jobs.append(job)
        return self

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeChild]:
    """As on a GPU where compilation pays; but what is compiled runs as it is, since compiling takes minutes here."""
    fake = FakeChild(Ended())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(speed, "Child", fake)
    monkeypatch.setattr(speed, "WARM_UP", 1)
    monkeypatch.setattr(speed, "MEASURED", 2)
    monkeypatch.setattr(speed.AutoCompile, "before_training", lambda self, steps: None)
    monkeypatch.setattr(speed, "forecast_compilation", lambda *facts: CompileForecast(True, "pays"))
    with torch.compiler.set_stance("force_eager"):
        yield fake


@pytest.mark.parametrize(
    ("steps", "step_seconds", "graphs", "known", "pays"),
    [
        (10_000, 0.07, 14, None, True),
        (1_000, 0.07, 14, None, False),  # too few steps
        (10_000, 0.007, 14, None, False),  # steps too quick
        (10_000, 0.07, 140, None, False),  # too many graphs
        (1_000, 0.07, 14, 5.0, True),  # cached
    ],
)
def test_expected_gain_decides(steps: int, step_seconds: float, graphs: int, known: float | None, pays: bool) -> None:
    verdict = forecast_compilation(steps, step_seconds, graphs, known)
    assert verdict.pays == pays
    assert verdict.reason.startswith("saves" if pays else "would save")


def test_on_a_cpu_it_stays_uncompiled_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, found = tiny.recipe(iterations=2, compile="auto"), tiny.supernet()
    train_supernet(found, tiny.Watched(recipe), recipe)
    assert found.compile_options is None
    assert "supernet: not compiled, as it trains on the CPU" in capsys.readouterr().err
    tiny.assert_same(found, tiny.train(None, tiny.recipe(iterations=2))[0])


def test_changing_over_disturbs_nothing_nor_does_a_resume_in_the_other_mode(child: FakeChild, tmp_path: Path) -> None:
    plain, _ = tiny.train(None, tiny.recipe(iterations=8), **DEPTH)
    found, _ = tiny.train(tmp_path / "run", tiny.recipe(iterations=8, compile="auto"), **DEPTH)
    assert found.compile_options is not None
    assert len(child.jobs) == 1
    assert child.closed
    tiny.assert_same(found, plain)
    for first, second in (("auto", False), (False, "auto")):
        folder = tmp_path / str(first)
        with pytest.raises(tiny.Interrupted):
            tiny.train(folder, tiny.recipe(iterations=8, compile=first), fail_at=6, **DEPTH)
        found, batches = tiny.train(folder, tiny.recipe(iterations=8, compile=second), **DEPTH)
        assert batches.taken[0] > 0
        tiny.assert_same(found, plain)


def test_what_was_compiled_before_needs_no_second_process(child: FakeChild, tmp_path: Path) -> None:
    tiny.train(None, tiny.recipe(iterations=6, compile="auto"))
    tiny.train(None, tiny.recipe(iterations=6, compile="auto"))
    assert len(child.jobs) == 1


def test_where_the_compiler_fails_the_training_goes_on(child: FakeChild, capsys: pytest.CaptureFixture[str]) -> None:
    child.ended = Ended(None, True, None, "Traceback\nRuntimeError: no C++ compiler")
    recipe, found = tiny.recipe(iterations=6, compile="auto"), tiny.supernet()
    train_supernet(found, tiny.Watched(recipe), recipe)
    assert found.compile_options is None
    assert "supernet: not compiled: RuntimeError: no C++ compiler" in capsys.readouterr().err
    tiny.assert_same(found, tiny.train(None, tiny.recipe(iterations=6))[0])


def test_where_compiled_code_fails_nothing_of_its_trial_is_left(
    child: FakeChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Rehearsal) -> None:
        x = torch.randn(self.shape)
        self.model(x, self.archs[0]).square().mean().backward()  # gradients, and random numbers of stochastic depth
        raise RuntimeError("out of memory in a backward pass")

    monkeypatch.setattr(Rehearsal, "run", fail)
    found, _ = tiny.train(None, tiny.recipe(iterations=6, compile="auto"), **DEPTH)
    assert found.compile_options is None
    tiny.assert_same(found, tiny.train(None, tiny.recipe(iterations=6), **DEPTH)[0])


def test_few_archs_have_all_kinds() -> None:
    supernet = tiny.supernet()
    archs = [tiny.SPACE.sample(seed) for seed in range(100)]
    chosen = archs_with_all_kinds(supernet, archs)
    assert len(chosen) < 20
    assert speed.kinds_of(supernet, chosen) == speed.kinds_of(supernet, archs)


def test_seconds_are_recorded_by_what_is_compiled(child: FakeChild) -> None:
    x, supernet = torch.zeros(4, 1, 8, 8), tiny.supernet()
    keys = {
        Rehearsal.of(supernet, [arch], images, precision, False).key
        for arch in (tiny.SMALLEST, tiny.LARGEST)
        for images in (x, x[:2])
        for precision in ("fp32", "bf16")
    }
    assert len(keys) == 8
    record_seconds("some", 3.0)
    record_seconds("other", 4.0)
    assert recorded_seconds("some") == 3.0
    assert recorded_seconds("unknown") is None


COMPILE = """
import sys, time, torch, tiny
from nasformer.train.speed import CompileJob, Rehearsal
from nasformer.utils.child import Child
from torch._dynamo.utils import counters
supernet = tiny.supernet(drop_path_rate=0.3)
rehearsal = Rehearsal.of(supernet, [tiny.SMALLEST], torch.zeros(4, 1, 8, 8), "fp32", False)
if sys.argv[1] == "beside":
    from nasformer.utils.device import keep_compiled_code
    keep_compiled_code()
    child = Child(CompileJob(rehearsal))
    child.process.wait()
    while not child.ended:
        time.sleep(0.1)
    assert not child.ended.failed, child.ended.traceback
CompileJob(rehearsal)(print)
print(counters["inductor"]["fxgraph_cache_miss"], counters["aot_autograd"]["autograd_cache_miss"])
"""


@pytest.mark.slow
def test_the_cache_survives_the_process_that_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    for way in ("beside", "again"):
        command = [sys.executable, "-c", COMPILE, way]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.split() == ["0", "0"]


@pytest.mark.slow
def test_a_training_that_changes_over_is_the_same_to_rounding(child: FakeChild) -> None:
    recipe = tiny.recipe(iterations=8)
    plain, _ = tiny.train(None, recipe, **DEPTH)
    with torch.compiler.set_stance("default"):
        found, _ = tiny.train(None, replace(recipe, compile="auto"), **DEPTH)
    assert found.compile_options is not None
    torch.testing.assert_close(dict(found.state_dict()), dict(plain.state_dict()), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_compiled_stochastic_depth_draws_the_same_numbers() -> None:
    layer, x = DropPath(0.5).train(), torch.ones(64, 3)

    def draw(forward: Any) -> Tensor:
        torch.manual_seed(0)
        found: Tensor = forward(x)
        return found

    assert torch.equal(draw(torch.compile(layer, dynamic=False, options=COMPILE_OPTIONS)), draw(layer))
