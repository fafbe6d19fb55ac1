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

from nasformer.data.rng import mix
from nasformer.families.backbone import Backbone
from nasformer.families.segment import Segment
from nasformer.families.sharing import rule_for
from nasformer.families.space import Space
from nasformer.layers.drop_path import set_drop_path
from nasformer.space import Arch
from nasformer.supernet.supernet import shared_weights

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
        self.largest = dict(shared_weights(space, seed).named_parameters())
        self.rules = space.model.sharing(**space.options)
        self.layers: OrderedDict[Segment, nn.Module] = OrderedDict()
        self.kept = 0
        self.templates: dict[Hashable, nn.Module] = {}
        self.spreads: dict[Hashable, float] = {}

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
        template = self.template(segment)
        if any(not self.holds(f"{segment.name}.{name}", weight) for name, weight in template.named_parameters()):
            layer = self.built(segment, mix(self.seed, zlib.crc32(segment.name.encode())))
        else:
            layer = deepcopy(template)
            set_drop_path(layer, segment.drop_path)
            for name, weight in layer.named_parameters():
                self.nest(segment, name, weight)
        return layer.to(self.device).eval().requires_grad_(False)

    def template(self, segment: Segment) -> nn.Module:
        """A layer of this kind with weights of its own, drawn once: what is used of them is their spread."""
        if segment.kind not in self.templates:
            self.templates[segment.kind] = self.built(segment, self.seed)
        return self.templates[segment.kind]

    def built(self, segment: Segment, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return segment.build()

    def holds(self, name: str, weight: Tensor) -> bool:
        largest = self.largest.get(name)
        return largest is not None and all(a <= b for a, b in zip(weight.shape, largest.shape, strict=True))

    def nest(self, segment: Segment, name: str, weight: Tensor) -> None:
        """Gives a weight its slice of the largest, with the spread that it has; constants stay as they are."""
        largest, key = self.largest[f"{segment.name}.{name}"], (segment.kind, name)
        if key not in self.spreads:
            constant = weight.min() == weight.max()  # whose deviation, computed, need not be quite 0
            self.spreads[key] = 0.0 if constant else weight.std(correction=0).item()
        if self.spreads[key] > 0:
            ratio = self.spreads[key] / largest.std(correction=0).item()
            weight.copy_(rule_for(name, self.rules)(largest, weight.shape)).mul_(ratio)

    def model(self, arch: Arch) -> Backbone:
        """The whole network of an arch, a copy to do with as one likes."""
        model = self.space.model(arch, layer_of=lambda s: deepcopy(self.layer(s)), **self.space.options)
        return model.eval().requires_grad_()
