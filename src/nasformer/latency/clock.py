"""Clocks: how long a net takes, and each of its layers while the net runs.

Layers are timed inside a running net, not alone: alone, a layer finds its weights in the cache and its input warm.
On a GPU the marks are events in its queue, so that nothing waits for a layer and the net runs as it always does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from nasformer.latency.runners import Step


class CpuClock:
    def whole(self, net: Step, x: Any) -> float:
        """Seconds of one run."""
        start = time.perf_counter()
        net(x)
        return time.perf_counter() - start

    def parts(self, chain: Sequence[Step], x: Any) -> list[float]:
        """Seconds of each layer in one run."""
        marks = [time.perf_counter()]
        for step in chain:
            x = step(x)
            marks.append(time.perf_counter())
        return [end - start for start, end in zip(marks, marks[1:], strict=False)]


class CudaClock:
    def whole(self, net: Step, x: Any) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        net(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def parts(self, chain: Sequence[Step], x: Any) -> list[float]:
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(chain) + 1)]
        marks[0].record()
        for step, mark in zip(chain, marks[1:], strict=True):
            x = step(x)
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in zip(marks, marks[1:], strict=False)]


Clock = CpuClock | CudaClock


def make_clock(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else CpuClock()
