"""Untrained networks made of freshly initialised layers, each made once and then used wherever it fits.

A layer is known by its place and its kind (`Segment`). All archs that have the same kind of layer at the same place get
the same weights there, so making weights (much of the cost of building a net) happens once, and such archs can run the
layer together.

Weights are nested: those of a small layer are slices of those of the largest at this place, as in a supernet. So two
archs differ by what differs between them and not by the luck of the draw, which makes ranks far steadier. Where an
initialisation depends on the width, a slice of a large layer has the wrong spread, so each weight is scaled to the
spread that it has in a layer of its own size.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Hashable
from copy import deepcopy

import torch
from torch import Tensor, nn

from nasformer.families.base import Backbone
from nasformer.families.segment import Segment
from nasformer.families.space import Space
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import Supernet
from nasformer.utils.rng import mix

LIMIT = 2**30
"""Numbers kept: 4 GiB. A layer that was dropped is made again, the same, when it is needed."""


class FreshLayers:
    """The layers of a space's untrained networks, in evaluation mode.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> fresh, arch = FreshLayers(space, seed=1), space.sample(seed=0)
    >>> torch.equal(fresh.model(arch).head.fc.weight, FreshLayers(space, seed=1).model(arch).head.fc.weight)
    True
    """

    def __init__(self, space: Space, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.space, self.seed, self.device = space, seed, device
        self.supernet = Supernet(space, seed).eval()
        self.largest = self.supernet.shared()
        self.layers: OrderedDict[Segment, nn.Module] = OrderedDict()
        self.kept = 0
        self.spreads: dict[Hashable, dict[str, float]] = {}

    def layer(self, segment: Segment) -> nn.Module:
        """The layer of a segment, to be used but not changed: others will get it too."""
        if segment in self.layers:
            self.layers.move_to_end(segment)
        else:
            self.layers[segment] = self.draw(segment)
            self.kept += segment.cost().params
            while self.kept > LIMIT and len(self.layers) > 1:
                oldest, _ = self.layers.popitem(last=False)
                self.kept -= oldest.cost().params
        return self.layers[segment]

    @torch.no_grad()
    def draw(self, segment: Segment) -> nn.Module:
        """A layer with nested weights; one too large for the space, as a preset may have, gets its own."""
        if self.holds(segment):
            layer = self.supernet.extract_layer(segment, self.largest)
            for name, spread in self.own_spreads(segment).items():
                if spread > 0:  # constants stay as they are
                    layer.get_parameter(name).mul_(spread / spread_of(self.largest[f"{segment.name}.{name}"]))
        else:
            layer = self.built(segment, mix(self.seed, zlib.crc32(segment.name.encode())))
        return layer.to(self.device).eval().requires_grad_(False)

    def holds(self, segment: Segment) -> bool:
        parts = [part for part in self.supernet.skeleton(segment).parts if part.learned]
        found = [self.largest.get(f"{segment.name}.{part.name}") for part in parts]
        return all(
            weight is not None and all(a <= b for a, b in zip(part.shape, weight.shape, strict=True))
            for part, weight in zip(parts, found, strict=True)
        )

    def own_spreads(self, segment: Segment) -> dict[str, float]:
        """How far weights spread in a layer of this kind that draws its own: drawn once, to be measured."""
        if segment.kind not in self.spreads:
            own = self.built(segment, self.seed).named_parameters()
            self.spreads[segment.kind] = {name: spread_of(weight) for name, weight in own}
        return self.spreads[segment.kind]

    def built(self, segment: Segment, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return segment.build()

    def model(self, arch: Arch) -> Backbone:
        """The whole network of an arch, a copy to do with as one likes."""
        model = self.space.model(arch, build_layer=lambda s: deepcopy(self.layer(s)), **self.space.options)
        return model.eval().requires_grad_()


def spread_of(weight: Tensor) -> float:
    constant = bool(weight.min() == weight.max())  # whose deviation, computed, need not be quite 0
    return 0.0 if constant else weight.std(correction=0).item()
