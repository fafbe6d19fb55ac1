"""CUDA graphs: kernels that are launched again and again are recorded once, and then launched together.

A step of a small net is a thousand kernels of a few microseconds, and Python needs longer to launch each than the GPU
to run it. So a *part* of a net (a block of a supernet with its weights, or a whole model) that has run a
few times, and mostly found the GPU with nothing to do, is recorded, forward and backward, and replayed from then on. It
computes what it computed before, bit for bit, with the same random numbers.

A recording reads and writes fixed buffers. Parts that stand behind each other share the buffer between them, and parts
that take turns (the kinds of a block) share all that they need, so that recordings need little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

import torch
from torch import Tensor, nn

WARMUP_RUNS = 8
"""Runs of a part that take about as long as to record it."""
SPARE = 0.1
"""Share of a GPU's memory that recordings leave free."""

Outputs = tuple[Tensor, ...]
Forward = Callable[[Tensor, Sequence[Tensor]], Outputs]
Work = Callable[[], None]


class CudaGraphs:
    """Runs parts of a net as usual at first, and later replays recordings of them.

    Attributes:
        warmup_runs: How often a part runs as usual before it is recorded.
        adds_up: Whether gradients of several passes are added up before they are used.
    """

    def __init__(self) -> None:
        self.warmup_runs, self.adds_up = WARMUP_RUNS, False
        self.clear()

    @classmethod
    def on(cls, device: torch.device, enabled: bool = True) -> Self | None:
        """Recordings where there can be any: on a GPU."""
        return cls() if enabled and device.type == "cuda" else None

    def clear(self) -> None:
        """Drops all recordings, since the net that they belong to was moved or compiled."""
        self.uses, self.waits = Counter[Hashable](), Counter[Hashable]()
        self.recordings: dict[Hashable, Recording] = {}
        self.buffers: dict[Hashable, Tensor] = {}
        self.pools: dict[str, Pool] = {}
        self.failure = ""  # why nothing more is recorded

    def __call__(
        self,
        part: Hashable,
        forward: Forward,
        x: Tensor,
        weights: Sequence[Tensor],
        before: str = "images",
        after: str = "outputs",
    ) -> Outputs:
        """What `forward` gives for x and weights. It is overwritten when a part with the same `after` runs again.

        Args:
            part: What the kernels depend on, besides the shapes of x.
            weights: All other tensors that it reads and that change, in place; without gradients: statistics.
            before: The name of the buffer that x comes from; parts with equal names take turns.
            after: The name of the buffer that the outputs go to.
        """
        key = (part, before, tuple(x.shape), x.stride(), x.dtype, x.requires_grad, torch.is_grad_enabled())
        if key in self.recordings and self.recordings[key].addresses != addresses(weights):
            self.clear()  # the net has been moved
        if key not in self.recordings:
            self.uses[key] += 1
            self.waits[key] += self.gpu_waits(x.device)
            often, late = self.uses[key] > self.warmup_runs, 2 * self.waits[key] >= self.uses[key]
            if self.failure or not (often and late and self.has_room(x.device)):
                return forward(x, weights)
            try:
                self.recordings[key] = Recording(self, forward, x, weights, before, after)
            except (AttributeError, RuntimeError) as error:  # no tensors, a wait for the GPU, no memory
                self.failure = f"{type(error).__name__}: {error}"
                return forward(x, weights)
        recording = self.recordings[key]
        if recording.backward is None:
            return recording.replay(x)
        learned = [weight for weight in weights if weight.requires_grad]
        outputs: Outputs = Replay.apply(recording, self.adds_up, x, *learned)  # type: ignore[no-untyped-call]
        return outputs

    def gpu_waits(self, device: torch.device) -> bool:
        """Whether the GPU has nothing left to do, so that Python is the bottleneck."""
        return torch.cuda.current_stream(device).query()

    def has_room(self, device: torch.device) -> bool:
        free, total = torch.cuda.mem_get_info(device)
        return free > SPARE * total

    def buffer(self, name: Hashable, like: Tensor) -> Tensor:
        """The buffer of this name for tensors of this shape."""
        key = (name, tuple(like.shape), like.stride(), like.dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros_like(like, requires_grad=False)
        return self.buffers[key]

    def pool(self, name: str, device: torch.device) -> Pool:
        """The memory of all parts of this name."""
        if name not in self.pools:
            self.pools[name] = Pool(device)
        return self.pools[name]


class Recording:
    """A part whose forward and backward pass are recorded; the backward pass only where there are gradients."""

    def __init__(
        self,
        graphs: CudaGraphs,
        forward: Forward,
        x: Tensor,
        weights: Sequence[Tensor],
        before: str,
        after: str,
    ) -> None:
        self.function, self.outputs, self.addresses = forward, Outputs(), addresses(weights)
        self.x = graphs.buffer((before, 0), x.detach())
        # Leaves of its own, in the same buffers: those of the net may belong to a graph of gradients on another stream.
        self.leaf = self.x.detach().requires_grad_(x.requires_grad)
        self.weights = [nn.Parameter(weight.detach()) if weight.requires_grad else weight for weight in weights]
        self.inputs = [leaf for leaf in (self.leaf, *self.weights) if leaf.requires_grad]
        copy_into(self.x, x)
        statistics = [(weight, weight.clone()) for weight in weights if not weight.requires_grad]
        pool = graphs.pool(after if torch.is_grad_enabled() else "evaluation", x.device)
        with torch.random.fork_rng([x.device] if x.is_cuda else []), uncached_autocast(x.device):
            try:
                with pool.side_stream():  # once as usual, for what is made at the first run on a stream
                    learns = self.run_once(graphs, before, after)
            finally:
                for weight, value in statistics:
                    weight.copy_(value)
            self.forward = pool.record(self.run_forward)
            self.backward = pool.record(self.run_backward) if learns else None
        self.outputs = ()

    def run_once(self, graphs: CudaGraphs, before: str, after: str) -> bool:
        """Runs once and makes the buffers of inputs and outputs; returns whether there are gradients."""
        self.outputs = self.function(self.leaf, self.weights)
        self.y = [graphs.buffer((after, number), output.detach()) for number, output in enumerate(self.outputs)]
        self.gradients_of_y = [graphs.buffer((after, number, "gradient"), y) for number, y in enumerate(self.y)]
        self.gradient_of_x = graphs.buffer((before, 0, "gradient"), self.x) if self.leaf.requires_grad else None
        learns = any(output.requires_grad for output in self.outputs)
        if learns:
            self.run_backward()
        return learns

    def run_forward(self) -> None:
        self.outputs = self.function(self.leaf, self.weights)
        for buffer, output in zip(self.y, self.outputs, strict=True):
            buffer.copy_(output.detach())

    def run_backward(self) -> None:
        gradients = list(torch.autograd.grad(self.outputs, self.inputs, self.gradients_of_y, allow_unused=True))
        if self.gradient_of_x is not None and (gradient := gradients.pop(0)) is not None:
            self.gradient_of_x.copy_(gradient)
        self.gradients = gradients

    def replay(self, x: Tensor) -> Outputs:
        copy_into(self.x, x)
        self.forward()
        return tuple(y.detach() for y in self.y)

    def replay_backward(self, gradients_of_y: Sequence[Tensor], adds_up: bool) -> list[Tensor | None]:
        """The gradient of x, and those of the weights that are learned.

        A weight's first gradient becomes its `.grad` without a copy, unless the tensor is referenced elsewhere. The
        memory is overwritten by the next replay: where gradients add up, autograd is given the tensors that are kept
        here.
        """
        assert self.backward
        for buffer, gradient in zip(self.gradients_of_y, gradients_of_y, strict=True):
            copy_into(buffer, gradient)
        self.backward()
        if adds_up:
            return [self.gradient_of_x, *self.gradients]
        return [None if tensor is None else tensor.detach() for tensor in (self.gradient_of_x, *self.gradients)]


class Replay(torch.autograd.Function):
    """A recorded part in the graph of gradients."""

    @staticmethod
    def forward(ctx, recording: Recording, adds_up: bool, x: Tensor, *learned: Tensor) -> Outputs:  # type: ignore[no-untyped-def, override]
        ctx.recording, ctx.adds_up = recording, adds_up
        return recording.replay(x)

    @staticmethod
    def backward(ctx, *gradients: Tensor):  # type: ignore[no-untyped-def, override]
        return None, None, *ctx.recording.replay_backward(gradients, ctx.adds_up)


class Pool:
    """Memory of recordings that take turns, and the stream on which they are recorded."""

    def __init__(self, device: torch.device) -> None:
        self.handle, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Context on the stream of recordings: after all that was launched before, and before all that comes."""
        current = torch.cuda.current_stream(self.side.device)
        self.side.wait_stream(current)
        try:
            with torch.cuda.stream(self.side):
                yield
        finally:
            current.wait_stream(self.side)

    def record(self, work: Work) -> Work:
        """Records the kernels of some work; what is returned launches them.

        Unlike torch.cuda.graph it keeps the memory that is cached, and lets other threads (of the data) go on.
        """
        graph = torch.cuda.CUDAGraph()
        with self.side_stream():
            graph.capture_begin(self.handle, capture_error_mode="thread_local")
            try:
                work()
                graph.capture_end()
            except BaseException:
                self.give_up(graph)
                raise
        return graph.replay

    def give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a recording that has failed, which leaves the random numbers of the device in its mode."""
        with suppress(RuntimeError):
            graph.capture_end()
        device = self.side.device
        torch.cuda.default_generators[device.index].graphsafe_set_state(torch.Generator(device))


def copy_into(buffer: Tensor, value: Tensor) -> None:
    """Copies a value into its buffer, unless it is there already."""
    if buffer.data_ptr() != value.data_ptr():
        buffer.copy_(value)


def addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def uncached_autocast(device: torch.device) -> torch.autocast:
    """Autocast as it is, but with all casts inside of recordings: what it has cached is overwritten later."""
    kind = device.type
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return torch.autocast(kind, dtype, enabled=on, cache_enabled=False)
