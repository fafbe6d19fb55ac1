"""Peak memory of inference: the weights, the images, and the most that a layer holds at a time.

Layers run one after the other, so the peak of a net is that of its hungriest layer (its input, what it computes in
between, its output) beside weights and images. What a layer holds is measured once for each kind: by torch's own
allocator, on the GPU as on the CPU. What other libraries allocate for themselves is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nasformer.latency.runners import Step


def layer_peaks(chain: Sequence[Step], images: Tensor) -> list[int]:
    """For each layer of a chain, the most bytes held while it runs, its input included."""
    peaks, x = list[int](), images
    for step in chain:
        held = 0 if x is images else nbytes(x)  # images are counted once, for the whole net
        peak, x = peak_of(step, x)
        peaks.append(held + peak)
    return peaks


def peak_of(step: Step, x: Any) -> tuple[int, Any]:
    """The most bytes that a call allocates at a time, and what it returns."""
    step(x)  # what is allocated once and kept does not count
    return _peak_cuda(step, x) if x.is_cuda else _peak_cpu(step, x)


def _peak_cuda(step: Step, x: Tensor) -> tuple[int, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = step(x)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, found


def _peak_cpu(step: Step, x: Tensor) -> tuple[int, Any]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler talks of every start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        found = step(x)
    return highest(allocations(profiler)), found


def allocations(profiler: Any) -> list[int]:
    """Bytes allocated, or as negative numbers freed, in the order of time."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def highest(changes: Sequence[int]) -> int:
    """The highest level that a sequence of changes reaches.

    >>> highest([100, 50, -100, 30])
    150
    """
    level = top = 0
    for change in changes:
        level += change
        top = max(top, level)
    return top


def nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
