"""Choice of the device to compute on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nasformer.errors import UserError


def choose_device(name: str = "auto") -> torch.device:
    """The device by name; "auto" takes a GPU where there is one. Under torchrun each process has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for but torch sees no GPU; use --device cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"there is no device {name}; torch sees {torch.cuda.device_count()} GPUs, the first is cuda:0")
    return device


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Runs each operation on the CPU on so many threads, and restores the number that was set before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
