"""Measuring: which machine this is, clocks, the timing of many nets, and peak memory.

Machines are never quiet. All nets are visited in every round, in another order each time, and of a net's visits the
median counts. Before and after each visit a small net, always the same, is timed too: its time is the *pace*. Where the
machine is slower for a while, so is the pace, and the visit's times are divided by it. (On two cores with four busy
programs, the hold-out error of the predictor went from 8 % to 1.7 % by the pace alone, to 2.2 % by counting processor
time, to 1.3 % by both.)
"""

from __future__ import annotations

import gc
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

import nasformer
from nasformer.errors import UserError
from nasformer.models.base import Backbone, Segment
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS
from nasformer.utils.device import cpu_threads
from nasformer.utils.progress import progress

# Backends: how nets are run to be timed, eagerly, compiled or by ONNX Runtime; whole, and layer by layer.

Step = Callable[[Any], Any]


def make_runner(space: Space, backend: str, device: torch.device, batch_size: int, threads: int) -> EagerRunner:
    """The nets of a space, ready to be run by a backend."""
    if backend == "onnxruntime":
        if device.type != "cpu":
            raise UserError("backend onnxruntime is measured on the CPU; use --device cpu, or another backend")
        return OnnxRunner(space, batch_size, threads)
    runners = {"eager": EagerRunner, "compile": CompiledRunner}
    if backend not in runners:
        raise UserError(f"unknown backend {backend!r}; there are: eager, compile, onnxruntime")
    return runners[backend](space, device, batch_size)


def with_inputs(layers: Sequence[Step], plan: Sequence[Segment]) -> list[Step]:
    """Layers to run one after the other, where the last one may read the outputs of several before it."""
    *before, last = layers
    inputs = plan[-1].inputs
    if not inputs:
        return list(layers)
    kept: dict[str, Any] = {}

    def keeping(name: str, layer: Step) -> Step:
        def run(x: Any) -> Any:
            kept[name] = layer(x)
            return kept[name]

        return run

    names = [segment.name for segment in plan]
    steps = [keeping(name, layer) if name in inputs else layer for name, layer in zip(names, before, strict=False)]
    return [*steps, lambda x: last([kept[name] for name in inputs])]


class EagerRunner:
    """Nets of a space, ready to run on a batch of random images, by plain torch in single precision.

    Layers are built once for each kind and each time that it occurs in a net. So nets share them, which keeps many nets
    in memory, but no net runs the same weights twice: that would keep them in the processor's cache.
    """

    def __init__(self, space: Space, device: torch.device, batch_size: int) -> None:
        self.space, self.device = space, device
        generator = torch.Generator().manual_seed(0)
        self.images: Any = torch.randn(batch_size, *space.image_shape, generator=generator).to(device)
        self.built: dict[Hashable, nn.Module] = {}

    def net(self, arch: Arch) -> Step:
        """The net as a user would run it."""
        return self.model(arch)

    def layers(self, arch: Arch) -> list[Step]:
        """The layers of its plan; one after the other they do what the net does."""
        model = self.model(arch)
        return with_inputs([model.get_submodule(name) for name in model.segment_names], self.space.plan(arch))

    def model(self, arch: Arch) -> Backbone:
        occurrences: Counter[Hashable] = Counter()

        def build_layer(segment: Segment) -> nn.Module:
            occurrences[segment.kind] += 1
            key = segment.kind, occurrences[segment.kind]
            if key not in self.built:
                self.built[key] = self.build(segment)
            return self.built[key]

        return self.space.model(arch, build_layer=build_layer, **self.space.options).eval()

    def build(self, segment: Segment) -> nn.Module:
        return Segment("", *segment.kind).build().to(self.device).eval()


class CompiledRunner(EagerRunner):
    """One compiled graph for each kind of layer, run one after the other; whole nets would take minutes each."""

    def __init__(self, space: Space, device: torch.device, batch_size: int) -> None:
        super().__init__(space, device, batch_size)
        self.compiled: dict[Hashable, Step] = {}

    def net(self, arch: Arch) -> Step:
        layers = self.layers(arch)

        def run(x: Tensor) -> Tensor:
            for layer in layers:
                x = layer(x)
            return x

        return run

    def layers(self, arch: Arch) -> list[Step]:
        plan = self.space.plan(arch)
        return with_inputs([self.compiled_layer(segment) for segment in plan], plan)

    def compiled_layer(self, segment: Segment) -> Step:
        if segment.kind not in self.compiled:
            layer = self.build(segment)

            def run(x: Tensor) -> Tensor:
                return layer(x)

            # The compiler keeps its graphs by code object and gives up after a few of them: one object per kind.
            run.__code__ = run.__code__.replace()
            self.compiled[segment.kind] = torch.compile(run, dynamic=False, options={**COMPILE_OPTIONS})
        return self.compiled[segment.kind]


class OnnxRunner(EagerRunner):
    """ONNX Runtime on the CPU: a session for each whole net, and for its layers one of each kind, to save exports."""

    def __init__(self, space: Space, batch_size: int, threads: int) -> None:
        super().__init__(space, torch.device("cpu"), batch_size)
        self.threads, self.sessions = threads, dict[Hashable, Step]()
        self.example: Tensor = self.images
        self.images = self.example.numpy()

    def net(self, arch: Arch) -> Step:
        return self.session(self.model(arch), self.example)

    @torch.no_grad()
    def layers(self, arch: Arch) -> list[Step]:
        if (task := self.space.model.task) != "classify":
            raise UserError(f"backend onnxruntime is for classifiers; take eager or compile with --task {task}")
        model, x, steps = self.model(arch), self.example, []
        for segment in self.space.plan(arch):
            layer = model.get_submodule(segment.name)
            if segment.kind not in self.sessions:
                self.sessions[segment.kind] = self.session(layer, x)
            steps.append(self.sessions[segment.kind])
            x = layer(x)
        return steps

    def session(self, module: nn.Module, example: Tensor) -> Step:
        from nasformer.export.bundle import INSTALL_ONNX, has_onnxruntime, onnx_bytes, trace

        if not has_onnxruntime():
            raise UserError(f"backend onnxruntime needs its package: {INSTALL_ONNX}")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 3
        several = example.expand(max(2, len(example)), *example.shape[1:]).contiguous()  # one would fix the batch
        graph = onnx_bytes(trace(module, (several,)))
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]


# The machine


@dataclass(frozen=True)
class Machine:
    """The processor or GPU that computes, and the versions that decide how."""

    processor: str
    cores: int | None
    gpu: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def same_hardware(self, other: Machine) -> bool:
        """Whether times of one machine hold for the other, as far as names tell."""
        return (self.processor, self.cores, self.gpu) == (other.processor, other.cores, other.gpu)

    def __str__(self) -> str:
        parts = {"gpu": self.gpu, "processor": self.processor, "cores": self.cores}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def describe_machine(device: torch.device, backend: str) -> Machine:
    versions = {"nasformer": nasformer.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if backend == "onnxruntime":
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return Machine(processor_name(), os.cpu_count(), gpu, versions)


def processor_name() -> str:
    """The name that the system gives its processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# Clocks. Layers are timed inside a running net: alone, a layer finds its weights in the cache and its input warm.


class CpuClock:
    """Processor time of one thread, which stands still while another program runs.

    Several threads wait for each other, so with them wall time counts.
    """

    def __init__(self, threads: int) -> None:
        self.name = "processor time" if threads == 1 else "wall time"
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def time_net(self, net: Step, x: Any) -> float:
        """Seconds of one run."""
        start = self.now()
        net(x)
        return self.now() - start

    def time_layers(self, layers: Sequence[Step], x: Any) -> list[float]:
        """Seconds of each layer in one run."""
        marks = [self.now()]
        for layer in layers:
            x = layer(x)
            marks.append(self.now())
        return [end - start for start, end in pairwise(marks)]


class CudaClock:
    """Wall time; layers by events in the queue of the GPU, so that the net runs as it always does."""

    name = "wall time"

    def time_net(self, net: Step, x: Any) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        net(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def time_layers(self, layers: Sequence[Step], x: Any) -> list[float]:
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(layers) + 1)]
        marks[0].record()
        for layer, mark in zip(layers, marks[1:], strict=True):
            x = layer(x)
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]


Clock = CpuClock | CudaClock


def make_clock(device: torch.device, threads: int) -> Clock:
    return CudaClock() if device.type == "cuda" else CpuClock(threads)


# Timing of many nets

VISIT_SECONDS = 0.1  # least time of the runs of a visit
MIN_RUNS, MAX_RUNS = 3, 50  # of a visit
MAX_PACE_RUNS = 10  # each time


@dataclass
class Visit:
    """Median seconds of a few runs in a row: of the net, of each of its layers, and of the reference net meanwhile."""

    net: float
    layers: list[float]
    pace: float


@dataclass
class TimedNet:
    """A net, with its layers where these are to be timed too, and its visits."""

    net: Step
    layers: Sequence[Step] = ()
    visits: list[Visit] = field(default_factory=list)

    def seconds(self, pace: float) -> float:
        """What the net takes when the reference net takes `pace`."""
        return median(visit.net / visit.pace for visit in self.visits) * pace

    def layer_seconds(self, pace: float) -> list[list[float]]:
        """For each layer, its time in every visit."""
        return [[visit.layers[i] / visit.pace * pace for visit in self.visits] for i in range(len(self.layers))]


def time_nets(
    nets: Sequence[TimedNet], images: Any, clock: Clock, *, reference: Step, rounds: int, seed: int = 0, label: str = ""
) -> list[float]:
    """Visit the nets in rounds; returns the pace at every visit, in seconds."""
    rng, order, paces = random.Random(seed), list(nets), list[float]()
    with inference_without_gc(), progress(label, rounds * len(order), quiet=not label) as report:
        for _ in range(3):
            reference(images)
        for _ in range(rounds):
            rng.shuffle(order)
            for net in order:
                net.visits.append(visit(net, images, clock, reference))
                paces.append(net.visits[-1].pace)
                report(len(paces))
    return paces


def time_archs(
    space: Space, archs: Sequence[Arch], device: torch.device, rounds: int = 5, others: Sequence[nn.Module] = ()
) -> list[float]:
    """Seconds that nets take for one image, eagerly and on the CPU by one thread; then those of other models."""
    with cpu_threads(1):
        runner = make_runner(space, "eager", device, 1, 1)
        nets, reference = [TimedNet(runner.net(arch)) for arch in archs], runner.net(space.root.largest())
        nets += [TimedNet(model.to(device).eval()) for model in others]
        with torch.inference_mode():
            clock = make_clock(device, 1)
            paces = time_nets(nets, runner.images, clock, reference=reference, rounds=rounds, label="latencies")
        return [net.seconds(median(paces)) for net in nets]


def visit(net: TimedNet, images: Any, clock: Clock, reference: Step) -> Visit:
    def pace() -> float:
        first = clock.time_net(reference, images)
        runs = min(round(VISIT_SECONDS / 5 / max(first, 1e-9)), MAX_PACE_RUNS)
        return median([first, *(clock.time_net(reference, images) for _ in range(runs - 1))])

    paces = [pace()]
    clock.time_net(net.net, images)  # to warm up
    first = clock.time_net(net.net, images)
    runs = min(max(MIN_RUNS, round(VISIT_SECONDS / max(first, 1e-9))), MAX_RUNS)
    seconds = median([first, *(clock.time_net(net.net, images) for _ in range(runs - 1))])
    paces.append(pace())
    layers: list[float] = []
    if net.layers:
        clock.time_layers(net.layers, images)
        times = [clock.time_layers(net.layers, images) for _ in range(runs - 1)]
        layers = [median(column) for column in zip(*times, strict=True)]
        paces.append(pace())
    return Visit(seconds, layers, mean(paces))


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
def inference_without_gc() -> Iterator[None]:
    """Context without gradients and without garbage collection."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.inference_mode():
            yield
    finally:
        if enabled:
            gc.enable()


# Peak memory. Layers run one after the other, so the peak of a net is that of its hungriest layer (its input, what it
# computes in between, its output) beside weights and images. What other libraries allocate is not seen.


def layer_peaks(layers: Sequence[Step], images: Tensor) -> list[int]:
    """For each layer, the most bytes held while it runs, its input included."""
    peaks, x = list[int](), images
    for layer in layers:
        held = 0 if x is images else nbytes(x)  # images are counted once, for the whole net
        peak, x = peak_of(layer, x)
        peaks.append(held + peak)
    return peaks


def peak_of(step: Step, x: Any) -> tuple[int, Any]:
    """The most bytes that a call allocates at a time by torch's allocator, and what it returns."""
    step(x)  # what is allocated once and kept does not count
    return _peak_cuda(step, x) if x.is_cuda else _peak_cpu(step, x)


def _peak_cuda(step: Step, x: Tensor) -> tuple[int, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = step(x)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, output


def _peak_cpu(step: Step, x: Tensor) -> tuple[int, Any]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler prints every start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = step(x)
    return highest_level(allocations(profiler)), output


def allocations(profiler: Any) -> list[int]:
    """Bytes allocated, or as negative numbers freed, in the order of time."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def highest_level(changes: Sequence[int]) -> int:
    """The highest level that a sequence of changes reaches.

    >>> highest_level([100, 50, -100, 30])
    150
    """
    level = top = 0
    for change in changes:
        level += change
        top = max(top, level)
    return top


def nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
