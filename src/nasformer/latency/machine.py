"""Which machine this is, so that a profile is not taken for that of another."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import nasformer


def describe_machine(device: torch.device, backend: str) -> dict[str, Any]:
    """The processor or GPU that computes, and the versions that decide how."""
    versions = {"nasformer": nasformer.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if backend == "onnxruntime":
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    found: dict[str, Any] = {"processor": processor(), "cores": os.cpu_count()}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return {**found, "versions": versions}


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Torch computes with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processor() -> str:
    """The name that the system gives its processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether times of the one hold for the other: the same hardware, as far as its names tell."""
    names = ("processor", "cores", "gpu")
    return all(one.get(name) == other.get(name) for name in names)
