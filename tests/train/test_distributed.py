"""Two processes, as torchrun starts them, train what one process trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import processes
import tiny  # noqa: F401 - one thread, as for all small tensors
from nasformer.cli.main import main

# With SGD, since AdamW makes full steps out of gradients that are zero but for rounding, as those of key biases.
CONFIG = """
space: autoformer-micro[embed_dim=16,24,32;blocks.depth=1,2;blocks.num_heads=1,2]
patch_size: 4
export: false
model: {drop_path_rate: 0.0}
train:
  epochs: 1
  batch_size: 128
  optimizer: sgd
  lr: 0.05
  warmup_epochs: 0
  log_epochs: 0.3
  checkpoint_seconds: 0
  augment: {crop: pad, padding: 1, hflip: 0.5, mixup: 0.8, cutmix: 1.0}
search: {population: 2, generations: 1}
"""


def words(folder: Path) -> list[str]:
    (folder / "config.yaml").write_text(CONFIG)
    return ["run", "--config", str(folder / "config.yaml"), "--out"]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "train" / "log.jsonl").read_text().splitlines()]


def assert_close(one: Path, two: Path) -> None:
    expected, found = load_file(one), load_file(two)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_two_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    summary = processes.in_two_processes([*words(tmp_path), str(tmp_path / "two")], tmp_path)
    assert main([*words(tmp_path), str(tmp_path / "one")]) == 0
    assert_close(*(tmp_path / name / "supernet" / "supernet.safetensors" for name in ("one", "two")))
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=0)
    assert len(losses(tmp_path / "two")) == 4
    assert summary["winner"]["arch"] == json.loads((tmp_path / "two" / "result.json").read_text())["winner"]["arch"]


@pytest.mark.slow
def test_two_processes_retrain_the_model_that_one_does(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.partition("search:")[0])
    arch = '{"embed_dim": 24, "depth": 2, "num_heads": [1, 2], "mlp_ratio": [2, 3]}'
    command = ["retrain", "--config", str(tmp_path / "config.yaml"), "--arch", arch, "--holdout", "0", "--out"]
    summary = processes.in_two_processes([*command, str(tmp_path / "two")], tmp_path)
    assert main([*command, str(tmp_path / "one")]) == 0
    assert_close(*(tmp_path / name / "model" / "model.safetensors" for name in ("one", "two")))
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5, atol=0)
    assert summary == json.loads((tmp_path / "two" / "result.json").read_text())
