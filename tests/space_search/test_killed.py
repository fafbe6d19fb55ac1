"""Killed in each phase and started again, an evolution ends with the bytes of one that nobody disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import kill
import processes
from nasformer.utils.files import read_json
from space_search.test_runs import ended

CONFIG = """
space: autoformer-micro[embed_dim=16,24,32;blocks.depth=2,3;blocks.num_heads=1,2,3]
patch_size: 4
holdout: 0.2
min_params: 8K
max_params: 40K
model: {drop_path_rate: 0.2}
train: {epochs: 6, batch_size: 64, ema: 0.9, log_epochs: 0.2, checkpoint_seconds: 0, augment: {mixup: 0.5}}
evolve: {samples: 80, top: 4, sigma: 0, tau: 1.0e-6}
"""


def trained(step: Path, least: int) -> Callable[[], bool]:
    """Whether the training of a space has got so far."""
    return lambda: any(
        int(path.name.removeprefix("step-")) >= least for path in (step / "train" / "checkpoints").glob("step-*")
    )


def judged(step: Path, least: int) -> Callable[[], bool]:
    journal = step / "search" / "journal.jsonl"
    return lambda: journal.exists() and journal.read_bytes().count(b"\n") >= least


def written(run: Path, least: int) -> Callable[[], bool]:
    path = run / "evolution.json"
    return lambda: path.exists() and len(json.loads(path.read_text())["steps"]) >= least


@pytest.mark.slow
def test_an_evolution_killed_in_each_phase_ends_as_if_undisturbed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = kill.nasformer("evolve", "--config", tmp_path / "config.yaml", "--out")
    whole, run = tmp_path / "whole" / "run", tmp_path / "parts" / "run"
    kill.finish([*command, str(whole)])
    steps = [run / "steps" / str(number) for number in range(3)]
    phases = [trained(steps[0], 20), judged(steps[0], 30), written(run, 1), trained(steps[1], 40), judged(steps[1], 50)]
    phases += [written(run, 2), trained(steps[2], 10), judged(steps[2], 2)]
    for phase in phases:
        assert kill.kill([*command, str(run)], phase, delay=0.0)
    kill.finish([*command, str(run)])
    expected, found = ended(whole), ended(run)
    assert found["evolution.json"] == expected["evolution.json"]
    assert [name for name in expected if found.get(name) != expected[name]] == []
    assert len(json.loads(expected["evolution.json"])["steps"]) == 3


@pytest.mark.slow
def test_two_processes_evolve_together(tmp_path: Path) -> None:
    """One judges, the other waits and goes on from the same space."""
    (tmp_path / "config.yaml").write_text(CONFIG.replace("epochs: 6", "epochs: 1"))
    command = ["evolve", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    found = processes.in_two_processes(command, tmp_path)
    assert found == read_json(tmp_path / "run" / "evolution.json")
    assert len({step["space"] for step in found["steps"]}) == 3
