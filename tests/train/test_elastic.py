"""torchrun: evaluation shared by processes, other archs in each, and a process that is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import processes
import tiny
from nasformer.cli.main import main
from nasformer.data.loaders import Batches
from nasformer.models.registry import get_space
from nasformer.supernet.supernet import recalibrate
from nasformer.train.evaluate import evaluate
from nasformer.train.optim import reduce_gradients
from nasformer.utils.device import World, join_world

CONFIG = """
space: autoformer-micro[embed_dim=16,24,32;blocks.depth=1,2;blocks.num_heads=1,2]
patch_size: 4
holdout: 0.2
model: {drop_path_rate: 0.0}
train:
  epochs: 3
  batch_size: 64
  log_epochs: 0.2
  checkpoint_seconds: 0
  augment: {crop: pad, padding: 1, hflip: 0.5, mixup: 0.8, cutmix: 1.0}
"""


def words(folder: Path, *more: str) -> list[str]:
    (folder / "config.yaml").write_text(CONFIG)
    return ["train", "--config", str(folder / "config.yaml"), *more, "--out"]


def calibrated_norm_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return get_space("trionet-micro", img_size=8, in_chans=1, num_classes=10).build(
        get_space("trionet-micro").root.smallest()
    )


def share(rank: int, port: int, folder: Path) -> None:
    """Calibrates and evaluates a model in one of two processes."""
    processes.join_two(rank, port)
    world = join_world(torch.device("cpu"))
    torch.save(judge(world), folder / f"{rank}.pt")


def judge(world: World) -> dict[str, Any]:
    """A model's statistics of batch norm and its scores."""
    model, batches = calibrated_norm_net(), Batches(tiny.DATA, tiny.PLAIN, 64)
    recalibrate(model, batches, 700, world)
    scores = evaluate(model, batches, "test", batch_size=50, world=world)
    return {"state": dict(model.named_buffers()), "scores": scores}


def test_two_processes_share_calibration_and_evaluation(tmp_path: Path) -> None:
    """Three batches of training images and several of the test set; both processes know the whole in the end."""
    port = processes.free_port()
    with (
        processes.running(share, 0, port, tmp_path) as first,
        processes.running(share, 1, port, tmp_path) as second,
    ):
        for process in (first, second):
            process.join(processes.PATIENCE)
    alone = judge(World())
    for rank in range(2):
        shared = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(shared["state"], alone["state"], rtol=1e-5, atol=1e-6)
        assert shared["scores"]["accuracy"] == alone["scores"]["accuracy"]
        assert shared["scores"]["loss"] == pytest.approx(alone["scores"]["loss"], rel=1e-6)


def test_parts_of_a_split_are_the_whole() -> None:
    batches = Batches(tiny.DATA, tiny.PLAIN, 64)
    whole = [x for x, _ in batches.evaluation("test", 50)]
    parts = [[x for x, _ in batches.evaluation("test", 50, (rank, 3))] for rank in range(3)]
    assert sum(map(len, parts)) == len(whole) > 3
    for number, x in enumerate(whole):
        assert torch.equal(parts[number % 3][number // 3], x)


def reduce(rank: int, port: int, folder: Path) -> None:
    """Gradients of other weights in each of two processes."""
    processes.join_two(rank, port)
    world = join_world(torch.device("cpu"))
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2)) for _ in range(3)])
    model[rank].grad = torch.tensor([2.0, 4.0]) * (rank + 1)
    reduce_gradients(model, world, same=False)
    torch.save([parameter.grad for parameter in model], folder / f"{rank}.pt")


def test_gradients_of_different_archs_are_averaged(tmp_path: Path) -> None:
    port = processes.free_port()
    with processes.running(reduce, 0, port, tmp_path) as first, processes.running(reduce, 1, port, tmp_path) as second:
        for process in (first, second):
            process.join(processes.PATIENCE)
    for rank in range(2):
        one, two, nobody = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert (one.tolist(), two.tolist(), nobody) == ([1.0, 2.0], [2.0, 4.0], None)


def test_the_process_group_knows_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of torch where the device is a GPU; no NCCL is run."""
    asked: dict[str, Any] = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.rendezvous", lambda method: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **rest: asked.update(rest, to=backend))
    monkeypatch.setattr("torch.cuda.set_device", lambda device: asked.update(current=device))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    gpu = torch.device("cuda:1")
    assert join_world(gpu) == World(1, 2)
    assert (asked["to"], asked["device_id"], asked["current"], asked["rank"]) == ("nccl", gpu, gpu, 1)


def torchrun(command: list[str], restarts: int, size: int = 2) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [*("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size))]
    words += ["--max-restarts", str(restarts), "--monitor-interval", "0.1", "-m", "nasformer.cli.main", *command]
    return subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True)


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("archs", ["shared", "own"])
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (4, 2)])
def test_torchrun_restarts_a_killed_process_and_ends_with_the_same_weights(
    tmp_path: Path, size: int, victim: int, archs: str
) -> None:
    command = words(tmp_path, "--train.archs", archs)
    with torchrun([*command, str(tmp_path / "whole")], 0, size) as whole:
        assert whole.wait(processes.PATIENCE) == 0
    log = tmp_path / "killed" / "train" / "log.jsonl"
    with torchrun([*command, str(tmp_path / "killed")], 2, size) as agent:
        while agent.poll() is None and not (log.exists() and log.read_text().count("\n") >= 3):
            time.sleep(0.01)
        os.kill(ranks_of(agent.pid)[victim], signal.SIGKILL)
        _, said = agent.communicate(timeout=processes.PATIENCE)
    assert agent.returncode == 0, said
    assert "resuming at step" in said
    weights = [load_file(tmp_path / name / "supernet" / "supernet.safetensors") for name in ("whole", "killed")]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-6, atol=1e-7, msg=name)
    assert log.read_text() == (tmp_path / "whole" / "train" / "log.jsonl").read_text()


@pytest.mark.slow
def test_four_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    """With SGD, since AdamW makes full steps out of gradients that are zero but for rounding."""
    recipe = ["--train.epochs", "1", "--train.optimizer", "sgd", "--train.lr", "0.05", "--train.warmup_epochs", "0"]
    command = words(tmp_path, *recipe)
    with torchrun([*command, str(tmp_path / "four")], 0, size=4) as agent:
        assert agent.wait(processes.PATIENCE) == 0
    assert main([*command, str(tmp_path / "one")]) == 0
    four, one = (load_file(tmp_path / name / "supernet" / "supernet.safetensors") for name in ("four", "one"))
    for name, weight in one.items():
        torch.testing.assert_close(four[name], weight, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
def test_another_arch_in_every_process_trains(tmp_path: Path) -> None:
    """As many archs a step as processes, so that other weights come out than with a shared one; both are finite."""
    for archs in ("shared", "own"):
        with torchrun([*words(tmp_path, "--train.archs", archs), str(tmp_path / archs)], restarts=0) as agent:
            assert agent.wait(processes.PATIENCE) == 0
    shared, own = (load_file(tmp_path / name / "supernet" / "supernet.safetensors") for name in ("shared", "own"))
    assert all(weight.isfinite().all() for weight in own.values())
    assert any(not torch.equal(own[name], weight) for name, weight in shared.items())


def test_alone_an_arch_of_its_own_is_the_shared_one(tmp_path: Path) -> None:
    for archs in ("shared", "own"):
        assert main([*words(tmp_path, "--train.archs", archs, "--train.iterations", "4"), str(tmp_path / archs)]) == 0
    shared, own = (load_file(tmp_path / name / "supernet" / "supernet.safetensors") for name in ("shared", "own"))
    tiny.assert_same(own, shared)
