"""Commands with paths on object stores: fsspec's own in memory, and S3 as moto serves it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import small_run
from nasformer.cli.main import main
from nasformer.cli.remote import RemoteFolder, mirrored

UNTRAINED = [
    *("search", "--space", "autoformer-micro", "--img-size", "8", "--patch-size", "4", "--proxy", "params"),
    *("--max-params", "200K", "--search.strategy", "random", "--search.evaluations", "20"),
]


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_a_run_folder_on_a_store_goes_on_elsewhere(memory: Any, tmp_path: Path) -> None:
    assert main([*UNTRAINED, "--out", "here"]) == 0
    assert main([*UNTRAINED, "--out", "memory://runs/far"]) == 0
    expected = Path("here/search/journal.jsonl").read_bytes()
    assert memory.cat_file("/runs/far/search/journal.jsonl") == expected
    assert memory.exists("/runs/far/report.html")
    assert not [path for path in memory.find("/runs/far") if "/." in path]  # no locks
    lines = expected.splitlines(keepends=True)
    memory.pipe_file("/runs/far/search/journal.jsonl", b"".join(lines[:10]))
    memory.rm_file("/runs/far/result.json")
    shutil.rmtree("remote")  # another machine
    assert main([*UNTRAINED, "--out", "memory://runs/far"]) == 0
    assert memory.cat_file("/runs/far/search/journal.jsonl") == expected
    assert memory.exists("/runs/far/result.json")


def test_a_folder_is_copied_both_ways_and_only_what_changed(memory: Any, tmp_path: Path) -> None:
    memory.pipe({"/box/a.txt": b"one", "/box/sub/b.txt": b"two"})
    folder = RemoteFolder("memory://box")
    assert small_run.contents(folder.fetch()) == {"a.txt": b"one", "sub/b.txt": b"two"}
    (folder.local / "a.txt").unlink()
    (folder.local / "c.txt").write_text("three")
    before = memory.info("/box/sub/b.txt")
    folder.push()
    assert sorted(memory.find("/box")) == ["/box/c.txt", "/box/sub/b.txt"]
    assert memory.info("/box/sub/b.txt") == before


def test_what_does_not_exist_or_cannot_be_opened(memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "memory://none.npz does not exist" in small_run.refused(capsys, [*UNTRAINED, "--data", "memory://none.npz"])
    assert "nosuch://x cannot be opened" in small_run.refused(capsys, [*UNTRAINED, "--data", "nosuch://x"])


class Unreachable(Exception):
    """As the errors of botocore, which are no OSErrors."""


def unreachable(*arguments: Any, **options: Any) -> None:
    raise Unreachable("no route to host")


def soon(happens: Callable[[], bool]) -> bool:
    """Whether something happens within half a minute."""
    deadline = time.monotonic() + 30
    while not (happened := happens()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return happened


def test_a_store_that_is_away_for_a_while_gets_the_rest_later(
    memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nasformer.cli.remote.SECONDS", 0.01)
    folder = RemoteFolder("memory://box")
    with mirrored([folder]):
        with monkeypatch.context() as away:
            away.setattr(type(memory), "put_file", unreachable)
            folder.local.mkdir(parents=True)
            (folder.local / "a.txt").write_text("one")
            assert soon(lambda: "memory://box: not all could be copied (no route to host)" in capsys.readouterr().err)
        assert soon(lambda: memory.exists("/box/a.txt"))


def test_a_store_that_is_away_is_named(
    memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as away:
        away.setattr(type(memory), "put_file", unreachable)
        assert main([*UNTRAINED, "--out", "memory://runs/far"]) == 2
    assert "memory://runs/far is not complete; copy remote/memory/runs/far there" in capsys.readouterr().err
    assert Path("remote/memory/runs/far/result.json").exists()
    monkeypatch.setattr(type(memory), "exists", unreachable)
    said = small_run.refused(capsys, [*UNTRAINED, "--out", "memory://runs/far"])
    assert "memory://runs/far cannot be read (no route to host)" in said


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 server of this machine."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto[server]").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    system.mkdir("lake")
    yield system
    server.stop()


def test_data_and_runs_on_s3(s3: Any, tmp_path: Path) -> None:
    """A supernet is trained on an .npz file there and kept there; another machine searches it."""
    rng = np.random.default_rng(0)
    arrays = {"train_images": rng.integers(0, 255, (80, 8, 8), np.uint8), "train_labels": np.arange(80) % 4}
    arrays |= {"test_images": rng.integers(0, 255, (20, 8, 8), np.uint8), "test_labels": np.arange(20) % 4}
    np.savez("set.npz", **arrays)
    s3.put_file("set.npz", "lake/set.npz")
    data = ["--data", "s3://lake/set.npz", "--holdout", "0.2", "--out", "s3://lake/runs/first"]
    train = ["--space", "autoformer-micro", "--patch-size", "4", "--train.iterations", "2", "--train.batch_size", "32"]
    assert main(["train", *train, *data]) == 0
    assert s3.exists("lake/runs/first/supernet/supernet.safetensors")
    shutil.rmtree("remote")
    assert main(["search", *data, "--search.population", "2", "--search.generations", "1"]) == 0
    s3.invalidate_cache()
    assert s3.exists("lake/runs/first/result.json")
    assert os.path.exists("remote/s3/lake/runs/first/report.html")
