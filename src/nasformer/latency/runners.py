"""How a net is run: eagerly, compiled, or by ONNX Runtime; as a whole, and as a chain of layers to be timed one by one.

Layers are built once for each kind and each time that it occurs in a net. So nets share them, which keeps many nets
in memory, but no net runs the same weights twice: that would keep them in the cache.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.families.backbone import Backbone
from nasformer.families.segment import Segment
from nasformer.space import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS

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

        def layer_of(segment: Segment) -> nn.Module:
            met[segment.kind] += 1
            place = segment.kind, met[segment.kind]
            if place not in self.layers:
                self.layers[place] = Segment("", *segment.kind).build().to(self.device).eval()
            return self.layers[place]

        return self.space.model(arch, layer_of=layer_of, **self.space.options).eval()


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
