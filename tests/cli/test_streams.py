"""Streams and files of a command: closed ones, pipes, files that may not grow, and Ctrl-C while it starts."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

import kill
from nasformer.cli.main import main
from nasformer.utils.files import read_tensors, save_tensors
from small_run import contents, refused, words


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "2>/dev/full"])
def test_closed_streams(closed: str) -> None:
    """Nobody hears what is wrong, but the exit code says it."""
    command = f'"{sys.executable}" -m nasformer.cli.main fly {closed}'
    done = subprocess.run(["sh", "-c", command], env=kill.ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr


def test_a_full_standard_output_is_one_line() -> None:
    command = f'"{sys.executable}" -m nasformer.cli.main recipes > /dev/full'
    done = subprocess.run(["sh", "-c", command], env=kill.ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_a_config_from_a_pipe(tmp_path: Path, capsys: Any) -> None:
    """It can be read only once, as in --config <(echo ...)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=("space: autoformer-micro\ntrain: {epochs: 0}",), daemon=True)
    writer.start()
    argv = ["train", "--config", str(pipe), "--out", str(tmp_path / "run")]
    assert "epochs is 0; give 1 or more" in refused(capsys, argv)
    writer.join(timeout=10)


def test_control_c_during_imports(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "slow_to_import.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--import", "slow_to_import", "spaces"]) == 130
    assert capsys.readouterr().err == "nasformer: stopped; the same command goes on from here\n"


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 50 KB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_file_that_may_not_grow(finished: Path, tmp_path: Path, capsys: Any) -> None:
    message = refused(capsys, ["extract", str(finished), "--to", str(tmp_path / "to")])
    assert "a file grew beyond what this system allows" in message
    assert contents(tmp_path) == {}


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_no_weight_file_runs_code(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Versions of timm before 1.0.26, which is the least that is allowed, would run it."""
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, "evil.pth")
    Path("plain.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    for name in ("evil.pth", "plain.pth"):
        argv = [*words("train", tmp_path / "run"), "--train.teacher", f"timm:resnet18:{name}"]
        capsys.readouterr()
        assert main(argv) == 2
        assert "cannot be read as weights" in capsys.readouterr().err
    assert not Path("pwned").exists()


def test_the_least_timm_reads_weights_without_running_code() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    floor = next(line for line in pyproject.read_text().splitlines() if line.strip().startswith('"timm>='))
    assert tuple(map(int, floor.split(">=")[1].strip('",').split("."))) >= (1, 0, 26)


def test_a_supernet_of_nothing_but_nan_has_no_winner(run: Path, tmp_path: Path, capsys: Any) -> None:
    weights = next((run / "supernet").glob("*.safetensors"))
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in read_tensors(weights).items()}
    save_tensors(weights, broken)
    assert main([*words("search", tmp_path / "new"), "--supernet", str(run / "supernet")]) == 2
    assert "NaN" in capsys.readouterr().err.splitlines()[-1]


def test_a_space_of_a_module_of_ones_own_names_import(run: Path, tmp_path: Path, capsys: Any) -> None:
    config = run / "supernet" / "supernet.json"
    config.write_text(config.read_text().replace('"autoformer-micro"', '"my-space"'))
    message = refused(capsys, ["extract", str(run), "--to", str(tmp_path / "to")])
    assert "supernet.json: unknown space 'my-space'" in message
    assert "--import MODULE" in message
    assert "damaged" not in message
