"""One set of shared weights that runs every arch of a space, by slices.

There are no elastic twins of layers: the supernet runs the *static* layers of an arch, with slices of the shared
weights in place of their own. So what it computes is, by construction, what the extracted model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families.backbone import Backbone
from nasformer.families.segment import Segment
from nasformer.families.space import Space
from nasformer.space import Arch, corners
from nasformer.space.dimensions import apart
from nasformer.supernet.skeleton import Skeleton

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
    for name, value in apart(space.root).items():
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
