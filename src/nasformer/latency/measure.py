"""Which machine this is, so that a profile is not taken for that of another."""

from __future__ import annotations

import gc
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import nasformer
from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.segment import Segment
from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS
from nasformer.utils.progress import progress


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


# ----------------------------------------------------------------------------------------------------------------------
# Clocks: how long a net takes, and each of its layers while the net runs.
#
# Layers are timed inside a running net, not alone: alone, a layer finds its weights in the cache and its input warm.
# On a GPU the marks are events in its queue, so that nothing waits for a layer and the net runs as it always does.
# With one thread on the CPU, what counts is the time that this thread had the processor: while another program has it,
# the clock stands still. Several threads wait for each other, so there the time on the wall counts.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# How a net is run: eagerly, compiled, or by ONNX Runtime; as a whole, and as a chain of layers to be timed one by one.
#
# Layers are built once for each kind and each time that it occurs in a net. So nets share them, which keeps many nets
# in memory, but no net runs the same weights twice: that would keep them in the cache.
# ----------------------------------------------------------------------------------------------------------------------

Step = Callable[[Any], Any]


class Runner(Protocol):
    """Nets of a space, ready to run on a batch of random images."""

    images: Any

    def whole(self, arch: Arch) -> Step:
        """The net as a user would run it."""

    def chain(self, arch: Arch) -> list[Step]:
        """The steps of its plan; together they do what the whole does."""


def make_runner(space: Space, backend: str, device: torch.device, batch_size: int, threads: int) -> Runner:
    if backend == "onnxruntime":
        if device.type != "cpu":
            raise UserError("backend onnxruntime is measured on the CPU; use --device cpu, or another backend")
        return OnnxRunner(space, batch_size, threads)
    kinds = {"eager": EagerRunner, "compile": CompiledRunner}
    if backend not in kinds:
        raise UserError(f"unknown backend {backend!r}; there are: eager, compile, onnxruntime")
    return kinds[backend](space, device, batch_size)


def random_images(space: Space, batch_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch_size, *space.image_shape, generator=generator)


class EagerRunner:
    """Plain torch, in single precision."""

    def __init__(self, space: Space, device: torch.device, batch_size: int) -> None:
        self.space, self.device = space, device
        self.images: Any = random_images(space, batch_size).to(device)
        self.layers: dict[Hashable, nn.Module] = {}

    def whole(self, arch: Arch) -> Step:
        return self.model(arch)

    def chain(self, arch: Arch) -> list[Step]:
        model = self.model(arch)
        return [model.get_submodule(name) for name in model.segment_names]

    def model(self, arch: Arch) -> Backbone:
        met: Counter[Hashable] = Counter()

        def build_layer(segment: Segment) -> nn.Module:
            met[segment.kind] += 1
            place = segment.kind, met[segment.kind]
            if place not in self.layers:
                self.layers[place] = Segment("", *segment.kind).build().to(self.device).eval()
            return self.layers[place]

        return self.space.model(arch, build_layer=build_layer, **self.space.options).eval()


class CompiledRunner(EagerRunner):
    """One compiled graph for each kind of layer, run one after the other; whole nets would take minutes each."""

    def __init__(self, space: Space, device: torch.device, batch_size: int) -> None:
        super().__init__(space, device, batch_size)
        self.steps: dict[Hashable, Step] = {}

    def whole(self, arch: Arch) -> Step:
        steps = self.chain(arch)

        def run(x: Tensor) -> Tensor:
            for step in steps:
                x = step(x)
            return x

        return run

    def chain(self, arch: Arch) -> list[Step]:
        return [self.compiled(segment) for segment in self.space.plan(arch)]

    def compiled(self, segment: Segment) -> Step:
        if segment.kind not in self.steps:
            layer = Segment("", *segment.kind).build().to(self.device).eval()

            def run(x: Tensor) -> Tensor:
                return layer(x)

            # The compiler keeps its graphs by code object and gives up after a few of them: one object per kind.
            run.__code__ = run.__code__.replace()
            self.steps[segment.kind] = torch.compile(run, dynamic=False, options={**COMPILE_OPTIONS})
        return self.steps[segment.kind]


class OnnxRunner(EagerRunner):
    """ONNX Runtime on the CPU: a session for each whole net, and for its layers one of each kind, to save exports."""

    def __init__(self, space: Space, batch_size: int, threads: int) -> None:
        super().__init__(space, torch.device("cpu"), batch_size)
        self.threads, self.sessions = threads, dict[Hashable, Step]()
        self.example = self.images
        self.images = self.example.numpy()

    def whole(self, arch: Arch) -> Step:
        return self.session(self.model(arch), self.example)

    @torch.no_grad()
    def chain(self, arch: Arch) -> list[Step]:
        model, x, steps = self.model(arch), self.example, []
        for segment in self.space.plan(arch):
            layer = model.get_submodule(segment.name)
            if segment.kind not in self.sessions:
                self.sessions[segment.kind] = self.session(layer, x)
            steps.append(self.sessions[segment.kind])
            x = layer(x)
        return steps

    def session(self, module: nn.Module, example: Tensor) -> Step:
        from nasformer.export.graphs import INSTALL_ONNX, has_onnxruntime, traced, write_onnx

        if not has_onnxruntime():
            raise UserError(f"backend onnxruntime needs its package: {INSTALL_ONNX}")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 3
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            write_onnx(traced(module, example.expand(max(2, len(example)), *example.shape[1:]).contiguous()), path)
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]


# ----------------------------------------------------------------------------------------------------------------------
# Peak memory of inference: the weights, the images, and the most that a layer holds at a time.
#
# Layers run one after the other, so the peak of a net is that of its hungriest layer (its input, what it computes in
# between, its output) beside weights and images. What a layer holds is measured once for each kind: by torch's own
# allocator, on the GPU as on the CPU. What other libraries allocate for themselves is not seen.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# Timing many nets on a machine that is never quiet.
#
# All nets are visited in every round, in another order each time, and of a net's visits the median counts. Before and
# after each visit a small net, always the same, is timed too: the pace. Where the machine is slower for a while, so is
# the pace, and the visit's times are divided by it. (On two cores with four busy programs, the hold-out error of the
# predictor went from 8 % to 1.7 % by the pace alone, to 2.2 % by counting processor time, to 1.3 % by both.)
# ----------------------------------------------------------------------------------------------------------------------

VISIT = 0.1  # seconds of the runs of a visit, at least
FEWEST, MOST = 3, 50  # of these runs
PACE_RUNS = 10  # at most, each time


@dataclass
class Visit:
    """The median seconds of a few runs in a row: of the net, of each of its layers, and of the pacemaker meanwhile."""

    whole: float
    parts: list[float]
    pace: float


@dataclass
class Timed:
    """A net, with a chain of its layers where these are to be timed too, and its visits."""

    net: Step
    chain: Sequence[Step] = ()
    visits: list[Visit] = field(default_factory=list)

    def seconds(self, pace: float) -> float:
        """What the net takes when the pacemaker takes `pace`."""
        return median(visit.whole / visit.pace for visit in self.visits) * pace

    def layers(self, pace: float) -> list[list[float]]:
        """For each layer, its time in every visit."""
        return [[visit.parts[place] / visit.pace * pace for visit in self.visits] for place in range(len(self.chain))]


def time_all(
    nets: Sequence[Timed], images: Any, clock: Clock, *, pacemaker: Step, rounds: int, seed: int = 0, label: str = ""
) -> list[float]:
    """Visits the nets in rounds; returns the pace at every visit, in seconds."""
    rng, order, paces = random.Random(seed), list(nets), list[float]()
    with undisturbed(), progress(label, rounds * len(order), quiet=not label) as report:
        for _ in range(3):
            pacemaker(images)
        for _ in range(rounds):
            rng.shuffle(order)
            for net in order:
                net.visits.append(visit(net, images, clock, pacemaker))
                paces.append(net.visits[-1].pace)
                report(len(paces))
    return paces


def visit(net: Timed, images: Any, clock: Clock, pacemaker: Step) -> Visit:
    def pace() -> float:
        first = clock.whole(pacemaker, images)
        runs = min(round(VISIT / 5 / max(first, 1e-9)), PACE_RUNS)
        return median([first, *(clock.whole(pacemaker, images) for _ in range(runs - 1))])

    paces = [pace()]
    clock.whole(net.net, images)  # to warm up
    first = clock.whole(net.net, images)
    runs = min(max(FEWEST, round(VISIT / max(first, 1e-9))), MOST)
    whole = median([first, *(clock.whole(net.net, images) for _ in range(runs - 1))])
    paces.append(pace())
    parts: list[float] = []
    if net.chain:
        clock.parts(net.chain, images)
        found = [clock.parts(net.chain, images) for _ in range(runs - 1)]
        parts = [median(times) for times in zip(*found, strict=True)]
        paces.append(pace())
    return Visit(whole, parts, mean(paces))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the quartiles.

    >>> quartiles([1, 2, 3, 4, 5])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return float(values[0]), float(values[0]), float(values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


@contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients, and no garbage collection in between."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            yield
    finally:
        if enabled:
            gc.enable()
