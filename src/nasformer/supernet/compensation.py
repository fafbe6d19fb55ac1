"""Compensation for what is cut, without training: the weights that read what is kept are fitted anew.

A layer of heads or neurons (`Units`) ends in a linear map of their outputs. Where some of them are cut, the map of the
rest is the one that comes nearest to the whole layer's output over some images, by least squares: what the lost ones
said is said by the others, as far as they can. The moments are measured once, on the full net; then an arch costs a few
small linear solves, each of which is made once. Images need no labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from nasformer.families.base import Backbone
from nasformer.space.arch import Arch
from nasformer.supernet.importance import find_units, input_moments
from nasformer.supernet.supernet import Supernet


class Compensation:
    """Cuts archs out of a full net and fits what is left to its outputs.

    Args:
        supernet: Its largest member is the full net, sorted by importance.
        images: Those on which outputs are compared.
    """

    def __init__(self, supernet: Supernet, images: Iterable[Tensor]) -> None:
        self.supernet = supernet
        full = supernet.extract(supernet.space.root.largest()).eval()
        units = find_units(full)
        moments = input_moments(full, units, images)
        self.layers = {unit.name: (unit, found) for unit, found in zip(units, moments, strict=True)}
        self.fit = lru_cache(None)(self._fit)

    @torch.no_grad()
    def extract(self, arch: Arch) -> Backbone:
        """The arch as an ordinary model whose linear maps make up for what is cut."""
        model = self.supernet.extract(arch).eval()
        for unit in find_units(model):
            whole, _ = self.layers[unit.name]
            if unit.count < whole.count:
                weight, bias = self.fit(unit.name, unit.count)
                unit.reader.weight.copy_(weight[: unit.reader.out_features])
                unit.reader.bias.copy_(bias[: unit.reader.out_features])
        return model

    def _fit(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """Weight and bias that come nearest to the layer's output from its first so many units."""
        unit, moments = self.layers[name]
        weight, covariance, kept = unit.reader.weight, moments.regular(), count * unit.width
        told = torch.linalg.solve(covariance[:kept, :kept], covariance[:kept, kept:])  # of the lost, by the kept
        fitted = weight[:, :kept] + weight[:, kept:] @ told.T
        return fitted, unit.reader.bias + weight @ moments.mean - fitted @ moments.mean[:kept]
