from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nasformer.data import files as memory


def test_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  16 kB\nMemAvailable:   1000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_memory() == 1000 * 1024
    (tmp_path / "memory.max").write_text("600000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert memory.free_memory() == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() == 1000 * 1024


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert memory.fits(500, cpu)
    assert not memory.fits(501, cpu)
    assert not memory.fits(500, cpu, world=2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (400, 10_000))
    assert memory.fits(200, gpu)
    assert not memory.fits(201, gpu)
