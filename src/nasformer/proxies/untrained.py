"""Untrained networks of a space, one by one or many side by side.

Layers are initialised once and then used wherever they fit. A layer is identified by its name and its options
(`Segment`), so all archs that have the same kind of layer at the same position get the same weights there. That saves
drawing them (much of the cost of building a net), and such archs can run the layer as one batch.

Weights are nested: those of a small layer are slices of those of the largest at this position, as in a supernet. So two
archs differ by what differs between them and not by the luck of the draw, which makes ranks far steadier. Where an
initialisation depends on the width, a slice of a large layer has the wrong standard deviation, so each weight is scaled
to the one that it has in a layer of its own size.

Two things are not as a family initialises them, because they would hide blocks from every score: gains are 1
(`reset_gains`), and batch norms have the statistics of a batch of noise. With a mean of 0 and a variance of 1, as they
start, they do nothing in evaluation mode, and a branch of three layers with weights of 0.02 all but vanishes.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nasformer.models.base import Backbone, Segment
from nasformer.models.space import Space
from nasformer.proxies.parts import Call, Condition, batch_norms, record_calls, reset_gains
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.utils.rng import generator, mix

CACHED_PARAMETERS = 2**30  # 4 GiB. A layer that was dropped is initialised again, the same, when it is needed.


class UntrainedLayers:
    """The layers of a space's untrained networks, in evaluation mode.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> layers, arch = UntrainedLayers(space, seed=1), space.sample(seed=0)
    >>> torch.equal(layers.model(arch).head.fc.weight, UntrainedLayers(space, seed=1).model(arch).head.fc.weight)
    True
    """

    def __init__(self, space: Space, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.space, self.seed, self.device = space, seed, device
        self.supernet = Supernet(space, seed).eval()
        self.largest = self.supernet.shared()
        self.cache: OrderedDict[Segment, nn.Module] = OrderedDict()
        self.cached_parameters = 0
        self.stds: dict[Hashable, dict[str, float]] = {}

    def layer(self, segment: Segment) -> nn.Module:
        """The layer of a segment; callers must not change it, for others get the same one."""
        if segment in self.cache:
            self.cache.move_to_end(segment)
        else:
            self.cache[segment] = self.draw(segment)
            self.cached_parameters += segment.cost().params
            while self.cached_parameters > CACHED_PARAMETERS and len(self.cache) > 1:
                oldest, _ = self.cache.popitem(last=False)
                self.cached_parameters -= oldest.cost().params
        return self.cache[segment]

    @torch.no_grad()
    def draw(self, segment: Segment) -> nn.Module:
        """A layer with nested weights; a layer too large for the space, as of a preset, draws weights of its own."""
        if self._fits(segment):
            layer = self.supernet.extract_layer(segment, self.largest)
            for name, std in self._own_stds(segment).items():
                if std > 0:  # constants stay as they are
                    layer.get_parameter(name).mul_(std / _std(self.largest[f"{segment.name}.{name}"]))
        else:
            layer = _build(segment, mix(self.seed, zlib.crc32(segment.name.encode())))
        reset_gains(layer)
        return layer.to(self.device).eval().requires_grad_(False)

    def _fits(self, segment: Segment) -> bool:
        """Whether every weight of the layer is a slice of one of the largest."""
        parts = [part for part in self.supernet.skeleton(segment).parts if part.learned]
        weights = [self.largest.get(f"{segment.name}.{part.name}") for part in parts]
        return all(
            weight is not None and all(a <= b for a, b in zip(part.shape, weight.shape, strict=True))
            for part, weight in zip(parts, weights, strict=True)
        )

    def _own_stds(self, segment: Segment) -> dict[str, float]:
        """The standard deviations of the weights of a layer of this kind that draws its own."""
        if segment.kind not in self.stds:
            own = _build(segment, self.seed).named_parameters()
            self.stds[segment.kind] = {name: _std(weight) for name, weight in own}
        return self.stds[segment.kind]

    def model(self, arch: Arch) -> Backbone:
        """The whole network of an arch: a copy that the caller may change."""
        model = self.space.model(arch, build_layer=lambda s: deepcopy(self.layer(s)), **self.space.options)
        if self.has_batch_norm:
            self._estimate_statistics(model)
        return model.eval().requires_grad_()

    @property
    def has_batch_norm(self) -> bool:
        return self.supernet.has_statistics

    @torch.no_grad()
    def _estimate_statistics(self, model: Backbone) -> None:
        """Gives batch norms the mean and variance of their inputs for 8 images of noise."""
        images = torch.randn((8, *self.space.image_shape), generator=generator(self.seed, zlib.crc32(b"statistics")))
        model.eval()  # for stochastic depth
        for norm in batch_norms(model):
            norm.train()
            norm.momentum = 1.0  # the statistics are those of the last batch
        model(images.to(self.device))


def _build(segment: Segment, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return segment.build()


def _std(weight: Tensor) -> float:
    constant = bool(weight.min() == weight.max())  # whose deviation, computed, need not be quite 0
    return 0.0 if constant else weight.std(correction=0).item()


@dataclass(frozen=True)
class SharedCall:
    """A linear layer that several archs ran together.

    Args:
        segment: The segment that it is part of.
        name: Its name in the models, such as ``blocks.3.attn.qkv``.
        module: The layer.
        members: Indices of the archs.
        weight: The weight that all of them use.
        input: [members, tokens, in]
        output: [members, tokens, out], part of the graph.
    """

    segment: Segment
    name: str
    module: nn.Module
    members: list[int]
    weight: Tensor
    input: Tensor
    output: Tensor


class SideBySide:
    """Runs many untrained archs of a space at once.

    Archs that have a layer in common run it as one batch: 256 nets of AutoFormer-T's space are 12 batches a layer, not
    256. Along the batch dimension they stay apart, so every arch's own gradient of a linear layer follows from what
    went in and what came back: the sum over tokens of (gradient at the output) x (input).
    """

    def __init__(self, layers: UntrainedLayers) -> None:
        self.layers = layers
        self.norms: dict[Hashable, float] = {}  # of weights, by segment and name: scores keep them here

    def run(self, archs: Sequence[Arch], x: Tensor, condition: Condition) -> tuple[list[Tensor], list[SharedCall]]:
        """The logits of each arch for one input, and the calls of the linear layers that fulfil a condition."""
        plans = [self.layers.space.plan(arch) for arch in archs]
        rows, calls = [x] * len(archs), list[SharedCall]()
        for step in range(max(map(len, plans))):
            members_of: dict[Segment, list[int]] = defaultdict(list)
            for index, plan in enumerate(plans):
                if step < len(plan):
                    members_of[plan[step]].append(index)
            for segment, members in members_of.items():
                layer = self.layers.layer(segment)
                with record_calls(layer, condition) as recorded:
                    output = layer(torch.cat([rows[index] for index in members]))
                calls += [_shared(segment, members, call) for call in recorded]
                for index, row in zip(members, output.split(len(x)), strict=True):
                    rows[index] = row
        return rows, calls


def _shared(segment: Segment, members: list[int], call: Call) -> SharedCall:
    weight = call.module.weight.detach()  # type: ignore[operator,union-attr]
    name = f"{segment.name}.{call.name}"
    return SharedCall(segment, name, call.module, members, weight, call.input.detach(), call.output)  # type: ignore[arg-type]
