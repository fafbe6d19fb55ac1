"""Backends: how nets are run to be timed, eagerly, compiled or by ONNX Runtime; whole, and layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.segment import Segment
from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS

Step = Callable[[Any], Any]


class Runner(Protocol):
    """Nets of a space, ready to run on a batch of random images."""

    images: Any

    def net(self, arch: Arch) -> Step:
        """The net as a user would run it."""

    def layers(self, arch: Arch) -> list[Step]:
        """The layers of its plan; one after the other they do what the net does."""


def make_runner(space: Space, backend: str, device: torch.device, batch_size: int, threads: int) -> Runner:
    if backend == "onnxruntime":
        if device.type != "cpu":
            raise UserError("backend onnxruntime is measured on the CPU; use --device cpu, or another backend")
        return OnnxRunner(space, batch_size, threads)
    runners = {"eager": EagerRunner, "compile": CompiledRunner}
    if backend not in runners:
        raise UserError(f"unknown backend {backend!r}; there are: eager, compile, onnxruntime")
    return runners[backend](space, device, batch_size)


class EagerRunner:
    """Plain torch, in single precision.

    Layers are built once for each kind and each time that it occurs in a net. So nets share them, which keeps many nets
    in memory, but no net runs the same weights twice: that would keep them in the processor's cache.
    """

    def __init__(self, space: Space, device: torch.device, batch_size: int) -> None:
        self.space, self.device = space, device
        generator = torch.Generator().manual_seed(0)
        self.images: Any = torch.randn(batch_size, *space.image_shape, generator=generator).to(device)
        self.built: dict[Hashable, nn.Module] = {}

    def net(self, arch: Arch) -> Step:
        return self.model(arch)

    def layers(self, arch: Arch) -> list[Step]:
        model = self.model(arch)
        return [model.get_submodule(name) for name in model.segment_names]

    def model(self, arch: Arch) -> Backbone:
        occurrences: Counter[Hashable] = Counter()

        def layer_of(segment: Segment) -> nn.Module:
            occurrences[segment.kind] += 1
            key = segment.kind, occurrences[segment.kind]
            if key not in self.built:
                self.built[key] = self.build(segment)
            return self.built[key]

        return self.space.model(arch, layer_of=layer_of, **self.space.options).eval()

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
        return [self.compiled_layer(segment) for segment in self.space.plan(arch)]

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
        model, x, steps = self.model(arch), self.example, []
        for segment in self.space.plan(arch):
            layer = model.get_submodule(segment.name)
            if segment.kind not in self.sessions:
                self.sessions[segment.kind] = self.session(layer, x)
            steps.append(self.sessions[segment.kind])
            x = layer(x)
        return steps

    def session(self, module: nn.Module, example: Tensor) -> Step:
        from nasformer.export.graphs import INSTALL_ONNX, has_onnxruntime, onnx_bytes, trace

        if not has_onnxruntime():
            raise UserError(f"backend onnxruntime needs its package: {INSTALL_ONNX}")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 3
        several = example.expand(max(2, len(example)), *example.shape[1:]).contiguous()  # one would fix the batch
        graph = onnx_bytes(trace(module, several))
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]
