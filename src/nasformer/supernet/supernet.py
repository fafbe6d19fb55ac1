"""One set of shared weights that runs every arch of a space, by slices.

A forward pass goes through the plan of the arch, segment by segment. Each segment runs the *static* layer of its kind,
with slices of the shared weights in place of its parameters; the sharing rules of the family say which slices. There
are no elastic twins of layers, so what the supernet computes is, by construction, what the extracted model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from nasformer.data.loaders import BatchSource, ImageText
from nasformer.errors import UserError
from nasformer.layers.basic import set_drop_path
from nasformer.models.base import Backbone, Segment, container
from nasformer.models.sharing import SharingRule, SharingRules, rule_for
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.dimensions import values_beyond_corners
from nasformer.space.nodes import corners
from nasformer.utils.cuda_graphs import CudaGraphs
from nasformer.utils.device import World, keep_compiled_code

# Left to itself, the compiler pads the strides of activations, and then copies each before a matrix product; and it
# draws random numbers of its own, so that stochastic depth would differ between compiled and uncompiled steps.
COMPILE_OPTIONS = {"comprehensive_padding": False, "shape_padding": False, "fallback_random": True}


class Supernet(nn.Module):
    """The weights of a whole space.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro", img_size=8, patch_size=4)
    >>> supernet, arch, x = Supernet(space), space.sample(seed=1), torch.randn(2, 3, 8, 8)
    >>> supernet
    Supernet('autoformer-micro', 311,114 shared parameters, cpu)
    >>> torch.equal(supernet.eval()(x, arch), supernet.extract(arch)(x))
    True

    Args:
        space: Which archs there are, and which network each one is.
        seed: Seed of the initial weights.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__()
        self.space = space
        self.rules = space.model.sharing(**space.options)
        self.weights = shared_weights(space, seed)
        self.skeletons: dict[Hashable, Skeleton] = {}
        self.compile_options: dict[str, Any] | None = None
        self.graphs: CudaGraphs | None = None

    @classmethod
    def from_pretrained(cls, model: nn.Module, **options: Any) -> Supernet:
        """The supernet of what can be cut out of a pretrained model, such as one of timm; its weights are copied.

        Args:
            options: Of the model, such as num_classes or img_size; other classes get a fresh classifier.
        """
        from nasformer.supernet.storage import supernet_of

        return supernet_of(model, **options)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def has_statistics(self) -> bool:
        """Whether the supernet has batch norm, whose shared statistics fit no single arch."""
        return next(self.weights.buffers(), None) is not None

    def forward(self, x: Any, arch: Arch, outputs: dict[str, Tensor] | None = None, targets: Any = None) -> Any:
        """The logits of an arch; `outputs` collects the outputs of all segments but the last, by name.

        Args:
            targets: For a head that computes losses itself, which it then gives in place of answers.
        """
        x, text = ImageText.split(x)
        shared, (*plan, head) = self.shared(), self.space.plan(arch)
        read_by_head, previous = dict[str, Tensor](), "images"
        for segment in plan:
            x = self.run(segment, x, shared, previous)
            previous = segment.name
            if segment.name in head.inputs:
                read_by_head[segment.name] = x
            if outputs is not None:
                outputs[segment.name] = x
        inputs = [*(read_by_head[name] for name in head.inputs), *text] if head.inputs else x
        of_training = () if targets is None else (targets,)
        return self.skeleton(head)(inputs, self.weights_of(head, shared), head.drop_path, self.training, *of_training)

    def run(self, segment: Segment, x: Tensor, shared: Mapping[str, Tensor], previous: str) -> Tensor:
        """The output of a segment, or where graphs are used, its replayed recording.

        Args:
            x: The output of the `previous` segment, or images.
        """
        skeleton, weights = self.skeleton(segment), self.weights_of(segment, shared)
        if not self.graphs:
            return skeleton(x, weights, segment.drop_path, self.training)

        def forward(x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor]:
            return (skeleton(x, weights, segment.drop_path, self.training),)

        part = (segment.name, segment.kind, segment.drop_path, self.training)
        return self.graphs(part, forward, x, weights, before=previous, after=segment.name)[0]

    def weights_of(self, segment: Segment, shared: Mapping[str, Tensor]) -> list[Tensor]:
        """The shared tensors of a segment, in the order of its layer."""
        return [shared[f"{segment.name}.{name}"] for name in self.skeleton(segment).names]

    def shared(self) -> dict[str, Tensor]:
        """All shared tensors by name: the weights, and the statistics of batch norm where a family has it."""
        return {**dict(self.weights.named_parameters()), **dict(self.weights.named_buffers())}

    def skeleton(self, segment: Segment) -> Skeleton:
        """The weightless layer of this kind of segment, built once."""
        if segment.kind not in self.skeletons:
            self.skeletons[segment.kind] = Skeleton(segment, self.rules, self.device, self.compile_options)
        return self.skeletons[segment.kind]

    def slices(self, arch: Arch) -> dict[str, Tensor]:
        """The weights of an arch: slices of the shared ones, under the names of the static model."""
        shared = dict(self.weights.named_parameters())
        return {
            f"{segment.name}.{part.name}": part.rule(shared[f"{segment.name}.{part.name}"], part.shape)
            for segment in self.space.plan(arch)
            for part in self.skeleton(segment).parts
            if part.learned
        }

    @torch.no_grad()
    def extract(self, arch: Arch) -> Backbone:
        """The arch as an ordinary model with copies of its weights, and of statistics as they are."""
        build_layer = partial(self.extract_layer, shared=self.shared())
        return self.space.model(arch, build_layer=build_layer, **self.space.options).train(self.training)

    @torch.no_grad()
    def extract_layer(self, segment: Segment, shared: Mapping[str, Tensor]) -> nn.Module:
        """The layer of a segment as an ordinary one, with copies of its slices of the shared tensors."""
        skeleton = self.skeleton(segment)
        return skeleton.with_weights(self.weights_of(segment, shared), segment.drop_path)

    def compile(self, **options: Any) -> None:  # type: ignore[override]
        """Compiles one graph per kind of segment (12 for AutoFormer-T), not one per arch.

        Args:
            options: Those of torch.compile.
        """
        keep_compiled_code()
        self.compile_options = options or {"options": COMPILE_OPTIONS}
        self.forget_layers()

    def no_weight_decay(self) -> set[str]:
        """Names of the shared weights without weight decay."""
        suffixes = tuple(self.space.model.no_decay_suffixes)
        return {name for name, _ in self.named_parameters() if name.endswith(suffixes)}

    @contextmanager
    def replaying(self, graphs: CudaGraphs | None) -> Iterator[None]:
        """Context in which segments are recorded and replayed; an output is overwritten when its segment runs again."""
        before, self.graphs = self.graphs, graphs
        try:
            yield
        finally:
            self.graphs = before

    def forget_layers(self) -> None:
        """Drops skeletons and recordings, which are made anew when they are needed."""
        self.skeletons.clear()
        if self.graphs:
            self.graphs.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Supernet:
        self.forget_layers()  # their constants stay on the device where the weights were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Without compiled code, recordings and sharing rules, which are functions: none is pickled."""
        without: dict[str, Any] = {"skeletons": {}, "graphs": None}
        return {name: value for name, value in self.__dict__.items() if name != "rules"} | without

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.rules = self.space.model.sharing(**self.space.options)

    def __repr__(self) -> str:
        return f"Supernet({self.space.name!r}, {self._size()})"

    def _repr_html_(self) -> str:
        """Space, size and device, for notebooks."""
        return f"<div><b>Supernet</b>, {escape(self._size())}{self.space._repr_html_()}</div>"

    def _size(self) -> str:
        return f"{sum(weight.numel() for weight in self.parameters()):,} shared parameters, {self.device}"


def shared_weights(space: Space, seed: int) -> nn.Module:
    """The union of the weights of the largest members, each as large as its largest user has it.

    One largest member has every weight, unless the space has alternatives: then the largest member of each alternative
    adds its own. The running statistics of batch norm are shared like weights, as buffers.
    """
    check_largest(space)
    tensors: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for arch in corners(space.root):
            for name, tensor in space.build(arch).state_dict(keep_vars=True).items():
                if name not in tensors or tensor.numel() > tensors[name].numel():
                    tensors[name] = tensor
    weights = nn.Module()
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        if isinstance(tensor, nn.Parameter):
            container(weights, path).register_parameter(last, tensor)
        else:
            container(weights, path).register_buffer(last, tensor)
    return weights


def check_largest(space: Space) -> None:
    """Refuses a space whose rules keep its largest values apart: no member would have the weights that all need."""
    for name, value in values_beyond_corners(space.root).items():
        raise UserError(
            f"{space.name} has no largest member, which a supernet needs: by its rules, {name}={value} goes only with "
            "smaller values of others; choose values whose largest go together"
        )


class Part(NamedTuple):
    """A shared tensor of a layer: its name, sharing rule and shape; learned, or a statistic of batch norm."""

    name: str
    rule: SharingRule
    shape: Size
    learned: bool


Inputs = Tensor | list[Tensor]
Forward = Callable[[Inputs, Sequence[Tensor], Tensor | None], Tensor]
"""The forward pass of a skeleton: input, shared weights and, where there is stochastic depth, its rate."""


class Skeleton:
    """A layer without weights, through which all segments of one kind run: it slices the shared weights and runs.

    Slicing happens inside the call, so that a compiled skeleton fuses it with the casts that autocast asks for, and
    its backward writes each full-size gradient once. Batch norm updates its slices of the shared statistics in place.
    """

    def __init__(
        self,
        segment: Segment,
        rules: SharingRules,
        device: torch.device,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):  # initial weights are thrown away; stochastic depth must not notice
            layer = Segment("", *segment.kind).build().to(device)
        options = dict(segment.options)
        self.parts = [
            Part(name, rule_for(name, rules, options), tensor.shape, isinstance(tensor, nn.Parameter))
            for name, tensor in layer.state_dict(keep_vars=True).items()
        ]
        self.names = [part.name for part in self.parts]
        self.device, self.rates = device, dict[float, Tensor]()
        self.drop_paths = [name for name, _ in layer.named_buffers() if name.endswith("drop_path.rate")]
        self.layer, self.compile_options = without_weights(layer), compile_options
        self.forwards = dict[bool, Forward]()

    def __call__(self, x: Inputs, weights: Sequence[Tensor], drop_path: float, training: bool, *targets: Any) -> Any:
        if training not in self.forwards:
            self.forwards[training] = self.make_forward(training)
        rate = self.rate(drop_path) if self.drop_paths and training else None
        return self.forwards[training](x, weights, rate, *targets)

    def rate(self, drop_path: float) -> Tensor:
        """A stochastic-depth rate as a tensor, made once."""
        if drop_path not in self.rates:
            self.rates[drop_path] = torch.tensor(drop_path, device=self.device)
        return self.rates[drop_path]

    def make_forward(self, training: bool) -> Forward:
        """The forward pass in training or evaluation mode, perhaps compiled."""
        layer, parts, drop_paths = deepcopy(self.layer).train(training), self.parts, self.drop_paths

        def forward(x: Inputs, weights: Sequence[Tensor], rate: Tensor | None, *targets: Any) -> Any:
            tensors = slice_parts(parts, weights)
            if rate is not None:
                tensors |= dict.fromkeys(drop_paths, rate)
            # No layer has tied weights, and looking for them takes a sixth of the time that Python takes.
            return functional_call(layer, tensors, (x, *targets), tie_weights=False)

        if self.compile_options is None:
            return forward
        # The compiler keeps its graphs by code object and gives up after a few of them: one object per kind.
        forward.__code__ = forward.__code__.replace()
        return torch.compile(forward, dynamic=False, **self.compile_options)

    def with_weights(self, weights: Sequence[Tensor], drop_path: float) -> nn.Module:
        """An ordinary layer with copies of its slices: several times faster than building and initialising one."""
        layer = deepcopy(self.layer)
        copies = {name: tensor.clone() for name, tensor in slice_parts(self.parts, weights).items()}
        learned = {part.name: nn.Parameter(copies[part.name]) for part in self.parts if part.learned}
        layer.load_state_dict({**copies, **learned}, assign=True)
        set_drop_path(layer, drop_path)
        return layer.requires_grad_()


def slice_parts(parts: Sequence[Part], weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """The slices of the shared weights that a layer uses, by name."""
    return {part.name: part.rule(weight, part.shape) for part, weight in zip(parts, weights, strict=True)}


def without_weights(layer: nn.Module) -> nn.Module:
    """The layer with its weights and statistics on the meta device; constants such as index tables stay."""
    for module in layer.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to("meta")
    return layer


# Batch-norm statistics of single archs. In training, the shared running statistics average over whatever archs were
# sampled, so they fit none of them. Before an arch is evaluated or exported, its statistics are estimated on training
# images. Without batch norm nothing is done.

ALONE = World()
CALIBRATION_IMAGES = 2048
CALIBRATION_BATCH = 256


def has_batch_norm(space: Space) -> bool:
    """Whether archs of a space need statistics of their own."""
    with torch.random.fork_rng(devices=[]):  # the weights do not matter, and what is random later must not change
        model = space.build(space.root.largest())
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def recalibrated(
    supernet: Supernet, arch: Arch, batches: BatchSource, images: int = CALIBRATION_IMAGES, world: World = ALONE
) -> Backbone:
    """The arch as an ordinary model in evaluation mode, with statistics estimated on `images` training images."""
    model = supernet.extract(arch).eval()
    recalibrate(model, batches, images, world)
    return model


@torch.no_grad()
def recalibrate(model: nn.Module, batches: BatchSource, images: int = CALIBRATION_IMAGES, world: World = ALONE) -> None:
    """Sets the running statistics to their plain average over batches of training images, without augmentation.

    The mode of the model and the momentum of its norms stay as they were; stochastic depth is off meanwhile.

    Args:
        world: Processes that share the batches, and all call this alike.
    """
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, _BatchNorm)}
    if not momenta:
        return
    training = model.training
    model.eval()
    for norm in momenta:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # torch then averages over all batches
    share = (world.part,) if world.size > 1 else ()
    for x in batches.calibration(images, CALIBRATION_BATCH, *share):
        model(x)
    if world.size > 1:
        average_statistics(list(momenta), world)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(training)


def average_statistics(norms: Sequence[_BatchNorm], world: World) -> None:
    """The plain average over the batches of all processes, each of which has averaged over its own."""
    for norm in norms:
        if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
            continue
        count = norm.num_batches_tracked.to(norm.running_mean)
        sums = world.sum(torch.stack([norm.running_mean, norm.running_var, torch.ones_like(norm.running_mean)]) * count)
        norm.running_mean.copy_(sums[0] / sums[2])
        norm.running_var.copy_(sums[1] / sums[2])
        norm.num_batches_tracked.copy_(sums[2, 0])
