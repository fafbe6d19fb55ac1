"""Killed at random moments and started again, a run ends with the bytes of one that nobody disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import kill

CONFIG = """
space: autoformer-micro
patch_size: 4
holdout: 0.2
max_params: 150K
model: {drop_path_rate: 0.2}
train: {epochs: 4, batch_size: 64, ema: 0.9, log_epochs: 0.2, checkpoint_seconds: 0, augment: {mixup: 0.5}}
search: {population: 10, generations: 3, parents: 4}
"""


def ended(run: Path) -> dict[str, bytes]:
    """All files of a run, but for hidden ones: the lock, and drafts whose writer was killed."""
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    return {str(name): (run / name).read_bytes() for name in files if not name.name.startswith(".")}


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def after(run: Path, stage: str) -> Callable[[], bool]:
    """When a stage has something to lose: a checkpoint, or candidates judged."""
    if stage == "train":
        return lambda: any((run / "train" / "checkpoints").glob("step-*"))
    return lambda: stage == "start" or lines(run / "search" / "journal.jsonl") > 2


def disturb(folder: Path, stages: list[str], seed: int) -> None:
    """Kills a run in each of the stages, lets it finish, and compares it with an undisturbed one."""
    (folder / "config.yaml").write_text(CONFIG)
    command = kill.nasformer("run", "--config", folder / "config.yaml", "--out")
    whole, run = folder / "whole" / "run", folder / "parts" / "run"  # of one name, which the report shows
    typical, rng, landed = kill.finish([*command, str(whole)]), random.Random(seed), 0
    for stage in stages:
        # Training and search take about a tenth of a run each: importing torch and drawing the report take the rest.
        delay = typical * (rng.random() if stage == "start" else rng.uniform(0, 0.1))
        landed += kill.kill([*command, str(run)], after(run, stage), delay)
    kill.finish([*command, str(run)])
    assert landed >= len(stages) - stages.count("start")
    expected, found = ended(whole), ended(run)
    assert {"train/log.jsonl", "search/journal.jsonl", "result.json", "supernet/supernet.safetensors"} <= set(expected)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_run_killed_twice_ends_as_if_undisturbed(tmp_path: Path) -> None:
    disturb(tmp_path, ["train", "search"], seed=0)


@pytest.mark.slow
def test_a_run_killed_ten_times_ends_as_if_undisturbed(tmp_path: Path) -> None:
    disturb(tmp_path, ["start", "train", "train", "train", "start", "train", "search", "search", "start", "search"], 1)
