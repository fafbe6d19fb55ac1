"""One set of shared weights that runs every arch of a space, by slices.

There are no elastic twins of layers: the supernet runs the *static* layers of an arch, with slices of the shared
weights in place of their own. So what it computes is, by construction, what the extracted model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn
from torch.func import functional_call

from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.segment import Segment
from nasformer.families.sharing import MultiHead, Rule, rule_for
from nasformer.families.space import Space
from nasformer.layers.drop_path import set_drop_path
from nasformer.space.arch import Arch
from nasformer.space.dimensions import values_beyond_corners
from nasformer.space.node import corners

# ----------------------------------------------------------------------------------------------------------------------
# The weightless layer through which all segments of one kind run.
# ----------------------------------------------------------------------------------------------------------------------

Run = Callable[[Tensor, Sequence[Tensor], Tensor | None], Tensor]


class Part(NamedTuple):
    """One shared tensor of a layer: its name, its rule and its shape; learned, or a statistic of batch norm."""

    name: str
    rule: Rule
    shape: Size
    learned: bool


class Skeleton:
    """A layer without weights: called with the shared weights, it takes its slices of them and runs.

    Slicing happens inside the call, so that a compiled skeleton fuses it with the casts that autocast asks for, and
    its backward writes each full-size gradient once. Batch norm updates its slices of the shared statistics in place.
    """

    def __init__(
        self,
        segment: Segment,
        rules: Mapping[str, Rule | MultiHead],
        device: torch.device,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):  # weights are drawn in vain, and drop path must not notice
            layer = Segment("", *segment.kind).build().to(device)
        options = dict(segment.options)
        self.parts = [
            Part(name, rule_for(name, rules, options), tensor.shape, isinstance(tensor, nn.Parameter))
            for name, tensor in layer.state_dict(keep_vars=True).items()
        ]
        self.names = [part.name for part in self.parts]
        self.device, self.rates = device, dict[float, Tensor]()
        self.stochastic = [name for name, _ in layer.named_buffers() if name.endswith("drop_path.rate")]
        self.layer = without_weights(layer)
        self.runs = {training: self.bind(training, compile_options) for training in (True, False)}

    def __call__(self, x: Tensor, weights: Sequence[Tensor], drop_path: float, training: bool) -> Tensor:
        rate = self.rate(drop_path) if self.stochastic and training else None
        return self.runs[training](x, weights, rate)

    def rate(self, drop_path: float) -> Tensor:
        if drop_path not in self.rates:
            self.rates[drop_path] = torch.tensor(drop_path, device=self.device)
        return self.rates[drop_path]

    def fill(self, weights: Sequence[Tensor], drop_path: float) -> nn.Module:
        """An ordinary layer with copies of its slices: several times faster than building one and drawing weights."""
        layer = deepcopy(self.layer)
        own = {name: tensor.clone() for name, tensor in slices(self.parts, weights).items()}
        learned = {part.name: nn.Parameter(own[part.name]) for part in self.parts if part.learned}
        layer.load_state_dict({**own, **learned}, assign=True)
        set_drop_path(layer, drop_path)
        return layer.requires_grad_()

    def bind(self, training: bool, compile_options: Mapping[str, Any] | None) -> Run:
        layer, parts, stochastic = deepcopy(self.layer).train(training), self.parts, self.stochastic

        def run(x: Tensor, weights: Sequence[Tensor], rate: Tensor | None) -> Tensor:
            tensors = slices(parts, weights)
            if rate is not None:
                tensors |= dict.fromkeys(stochastic, rate)
            # A layer has no weight twice; to look for such takes a sixth of the time that Python takes.
            return functional_call(layer, tensors, (x,), tie_weights=False)

        if compile_options is None:
            return run
        # The compiler keeps its graphs by code object and gives up after a few of them: one object per kind.
        run.__code__ = run.__code__.replace()
        return torch.compile(run, dynamic=False, **compile_options)


def slices(parts: Sequence[Part], weights: Sequence[Tensor]) -> dict[str, Tensor]:
    return {part.name: part.rule(weight, part.shape) for part, weight in zip(parts, weights, strict=True)}


def without_weights(layer: nn.Module) -> nn.Module:
    """The layer with all that is shared on the meta device; constants such as index tables stay."""
    for module in layer.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to("meta")
    return layer


# Left to itself, the compiler pads the strides of activations, and then copies each before a matrix product.
COMPILE_OPTIONS = {"comprehensive_padding": False, "shape_padding": False}


class Supernet(nn.Module):
    """The weights of a whole space.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro", img_size=8, patch_size=4)
    >>> supernet, arch, x = Supernet(space), space.sample(seed=1), torch.randn(2, 3, 8, 8)
    >>> torch.equal(supernet.eval()(x, arch), supernet.extract(arch)(x))
    True

    Args:
        space: Which archs there are, and which model each one is.
        seed: Seed of the initial weights.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__()
        self.space = space
        self.rules = space.model.sharing(**space.options)
        self.weights = shared_weights(space, seed)
        self.skeletons: dict[Hashable, Skeleton] = {}
        self.compile_options: dict[str, Any] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def has_statistics(self) -> bool:
        """Whether there is batch norm, whose shared statistics fit no single arch."""
        return next(self.weights.buffers(), None) is not None

    def shared(self) -> dict[str, Tensor]:
        """All that archs share, by name: the weights, and the statistics of batch norm where a family has it."""
        return {**dict(self.weights.named_parameters()), **dict(self.weights.named_buffers())}

    def forward(self, x: Tensor, arch: Arch) -> Tensor:
        shared = self.shared()
        for segment in self.space.plan(arch):
            skeleton = self.skeleton(segment)
            weights = [shared[f"{segment.name}.{name}"] for name in skeleton.names]
            x = skeleton(x, weights, segment.drop_path, self.training)
        return x

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
        """The arch as an ordinary model with its own copy of the weights, and of statistics as they are."""
        shared = self.shared()
        model = self.space.model(arch, layer_of=lambda segment: self.filled(segment, shared), **self.space.options)
        return model.train(self.training)

    @torch.no_grad()
    def filled(self, segment: Segment, shared: Mapping[str, Tensor]) -> nn.Module:
        """The layer of a segment as an ordinary one, with its own copy of its slices of what is `shared`."""
        skeleton = self.skeleton(segment)
        return skeleton.fill([shared[f"{segment.name}.{name}"] for name in skeleton.names], segment.drop_path)

    def compile(self, **options: Any) -> None:  # type: ignore[override]
        """Compiles one graph per kind of segment (12 for AutoFormer-T), not one per arch.

        Options are those of torch.compile.
        """
        self.compile_options = options or {"options": COMPILE_OPTIONS}
        self.skeletons.clear()

    def no_weight_decay(self) -> set[str]:
        """Names of the shared weights that no weight decay should touch."""
        ends = tuple(self.space.model.undecayed)
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Supernet:
        self.skeletons.clear()  # their constants live where the weights lived
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "skeletons": {}}  # compiled code is neither copied nor pickled


def shared_weights(space: Space, seed: int) -> nn.Module:
    """The union of the weights of the largest members, each as large as its largest user has it.

    One largest member has every weight, unless the space has alternatives: then each alternative's does its part.
    The running statistics of batch norm are shared like weights, as buffers.
    """
    check_largest(space)
    weights: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for arch in corners(space.root):
            for name, weight in space.build(arch).state_dict(keep_vars=True).items():
                if name not in weights or weight.numel() > weights[name].numel():
                    weights[name] = weight
    root = nn.Module()
    for name, weight in weights.items():
        path, _, last = name.rpartition(".")
        if isinstance(weight, nn.Parameter):
            owner(root, path).register_parameter(last, weight)
        else:
            owner(root, path).register_buffer(last, weight)
    return root


def check_largest(space: Space) -> None:
    """Refuses a space whose rules keep its largest values apart: no member would have the weights that all need."""
    for name, value in values_beyond_corners(space.root).items():
        raise UserError(
            f"{space.name} has no largest member, which a supernet needs: by its rules, {name}={value} goes only with "
            "smaller values of others; choose values whose largest go together"
        )


def owner(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path, made of empty containers where there is none yet."""
    for part in filter(None, path.split(".")):
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    return root
