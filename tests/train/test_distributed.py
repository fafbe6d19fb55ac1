"""Two processes that torchrun starts train the supernet that one process trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import kill
from nasformer.cli import main

# With SGD, since AdamW makes full steps out of gradients that are zero but for rounding, as those of key biases.
CONFIG = """
space: autoformer-micro
patch_size: 4
model: {drop_path_rate: 0.0}
train:
  epochs: 1
  batch_size: 128
  optimizer: sgd
  lr: 0.05
  warmup_epochs: 0
  log_epochs: 0.25
  augment: {crop: pad, padding: 1, hflip: 0.5, mixup: 0.8, cutmix: 1.0}
search: {population: 2, generations: 1}
"""


def words(folder: Path) -> list[str]:
    (folder / "config.yaml").write_text(CONFIG)
    return ["run", "--config", str(folder / "config.yaml"), "--out"]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "train" / "log.jsonl").read_text().splitlines()]


def test_two_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "nasformer.cli", *words(tmp_path), str(tmp_path / "two"), "--json"]
    done = subprocess.run(command, env=kill.ENVIRONMENT, capture_output=True, text=True, timeout=kill.PATIENCE)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)  # printed by one process only
    assert main([*words(tmp_path), str(tmp_path / "one")]) == 0
    one, two = (load_file(tmp_path / name / "supernet" / "supernet.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=0)
    assert len(losses(tmp_path / "two")) == 5
    assert summary["winner"]["arch"] == json.loads((tmp_path / "two" / "result.json").read_text())["winner"]["arch"]
