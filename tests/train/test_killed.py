"""Killed at random moments and started again, a run ends with the bytes of one that nobody disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import processes
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main

CONFIG = """
space: autoformer-micro[embed_dim=16,24,32;blocks.depth=1,2;blocks.num_heads=1,2]
patch_size: 4
holdout: 0.2
max_params: 20K
export: false
model: {drop_path_rate: 0.2}
train: {epochs: EPOCHS, batch_size: 64, ema: 0.9, log_epochs: 0.2, checkpoint_seconds: 0.1, augment: {mixup: 0.5}}
search: {population: 10, generations: GENERATIONS, parents: 4}
"""


def ended(run: Path) -> dict[str, bytes]:
    """All files of a run, but for hidden ones: the lock, and drafts whose writer was killed."""
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    return {str(name): (run / name).read_bytes() for name in files if not name.name.startswith(".")}


def trained(run: Path) -> int:
    """The step of the newest checkpoint."""
    found = (run / "train" / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


def judged(run: Path) -> int:
    """Lines of the journal, its header among them."""
    path = run / "search" / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def moving(run: Path, stage: str) -> Callable[[], bool]:
    """When a process that starts now has got ahead in a stage, so that a kill takes something from it."""
    steps, lines = trained(run), judged(run)
    if stage == "train":
        return lambda: trained(run) > steps
    if stage == "search":
        return lambda: judged(run) > lines + 1
    return lambda: True


def disturb(folder: Path, stages: list[str], seed: int, epochs: int, generations: int) -> None:
    """Kills a run once for each stage named, lets it finish, and compares it with an undisturbed one."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("EPOCHS", str(epochs)).replace("GENERATIONS", str(generations)))
    command = ["run", "--config", str(config), "--out"]
    whole, run = folder / "whole" / "run", folder / "parts" / "run"  # of one name, which the report shows
    assert main([*command, str(whole)]) == 0
    rng = random.Random(seed)
    for stage in stages:
        delay = rng.uniform(0, 5 if stage == "anywhere" else 0.05)
        landed = processes.kill_command([*command, str(run)], moving(run, stage), delay)
        print(f"killed {landed}, meant for {stage}: at step {trained(run)}, journal of {judged(run)} lines")
        assert landed or stage == "anywhere"
    assert main([*command, str(run)]) == 0
    expected, found = ended(whole), ended(run)
    assert {"train/log.jsonl", "search/journal.jsonl", "result.json", "supernet/supernet.safetensors"} <= set(expected)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_run_killed_twice_ends_as_if_undisturbed(tmp_path: Path) -> None:
    disturb(tmp_path, ["train", "search"], seed=0, epochs=2, generations=2)


@pytest.mark.slow
def test_a_run_killed_ten_times_ends_as_if_undisturbed(tmp_path: Path) -> None:
    stages = ["train"] * 5 + ["search"] * 4 + ["anywhere"]
    disturb(tmp_path, stages, seed=1, epochs=10, generations=16)
