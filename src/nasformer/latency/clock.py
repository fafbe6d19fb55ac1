"""Clocks: how long a net takes, and each of its layers while the net runs.

Layers are timed inside a running net, not alone: alone, a layer finds its weights in the cache and its input warm.
On a GPU the marks are events in its queue, so that nothing waits for a layer and the net runs as it always does.
With one thread on the CPU, what counts is the time that this thread had the processor: while another program has it,
the clock stands still. Several threads wait for each other, so there the time on the wall counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from nasformer.latency.runners import Step


class CpuClock:
    def __init__(self, threads: int) -> None:
        self.name = "processor time" if threads == 1 else "wall time"
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def whole(self, net: Step, x: Any) -> float:
        """Seconds of one run."""
        start = self.now()
        net(x)
        return self.now() - start

    def parts(self, chain: Sequence[Step], x: Any) -> list[float]:
        """Seconds of each layer in one run."""
        marks = [self.now()]
        for step in chain:
            x = step(x)
            marks.append(self.now())
        return [end - start for start, end in pairwise(marks)]


class CudaClock:
    name = "wall time"

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
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]


Clock = CpuClock | CudaClock


def make_clock(device: torch.device, threads: int) -> Clock:
    return CudaClock() if device.type == "cuda" else CpuClock(threads)
