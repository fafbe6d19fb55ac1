"""Panoptic head: Panoptic-DeepLab (Cheng et al. 2020) on the feature maps of a backbone.

Two decoders of the same form, one for the classes of pixels, one for instances. An instance is found by its centre, as
a peak of a heat map, and each of its pixels says how far away this centre is. Widths are the paper's for `dim` 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.basic import Cost, MapNorm, linear_cost, norm_cost
from nasformer.layers.segmentation import (
    ASPP,
    SegmentationHead,
    SimpleFeaturePyramid,
    atrous_rates,
    conv_cost,
    conv_norm_relu,
    pyramid_cost,
    pyramid_scales,
    resize,
)
from nasformer.layers.stem import Grid

KERNEL = 5
INSTANCE_MAPS = 3
"""Channels of an answer beyond its classes: the heat of centres, and rows and columns to the centre."""


def separable(in_dim: int, out_dim: int) -> nn.Sequential:
    """A convolution of each channel, then one of each position."""
    depthwise = nn.Conv2d(in_dim, in_dim, KERNEL, padding=KERNEL // 2, groups=in_dim, bias=False)
    return nn.Sequential(depthwise, nn.BatchNorm2d(in_dim), nn.ReLU(), *conv_norm_relu(in_dim, out_dim, 1))


def separable_cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
    depthwise = Cost(in_dim * KERNEL**2, grid[0] * grid[1] * in_dim * KERNEL**2)
    return depthwise + norm_cost(in_dim) + conv_cost(grid, in_dim, out_dim, 1)


def fine_dims(dim: int, count: int) -> list[int]:
    """Channels to which finer maps are reduced, the finest first.

    >>> fine_dims(256, 2), fine_dims(128, 2)
    ([32, 64], [16, 32])
    """
    return [max(1, dim // 4 // 2 ** (count - 1 - number)) for number in range(count)]


class PanopticDecoder(nn.Module):
    """Atrous spatial pyramid pooling of the coarsest map, enlarged step by step beside the finer ones."""

    def __init__(self, channels: Sequence[int], rates: Sequence[int], dim: int) -> None:
        super().__init__()
        *finer, last = channels
        reduced = fine_dims(dim, len(finer))
        self.aspp = ASPP(last, dim, rates)
        self.reduce = nn.ModuleList(conv_norm_relu(*widths, 1) for widths in zip(finer, reduced, strict=True))
        self.fuse = nn.ModuleList(separable(dim + width, dim) for width in reduced)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        x = self.aspp(maps[-1])
        for index in reversed(range(len(self.fuse))):
            x = self.fuse[index](torch.cat([resize(x, maps[index]), self.reduce[index](maps[index])], 1))
        return x

    @staticmethod
    def cost(channels: Sequence[int], grids: Sequence[Grid], rates: Sequence[int], dim: int) -> Cost:
        *finer, last = channels
        total = ASPP.cost(grids[-1], last, dim, rates)
        for width, reduced, grid in zip(finer, fine_dims(dim, len(finer)), grids[:-1], strict=True):
            total += conv_cost(grid, width, reduced, 1) + separable_cost(grid, dim + reduced, dim)
        return total


class PanopticHead(SegmentationHead):
    """Logits of every pixel, the heat of centres, and rows and columns to the centre: [batch, classes + 3, ...].

    Args:
        channels: Of each map, the finest first; of a single one a simple feature pyramid is made.
        num_things: How many classes, the first ones, have instances; only what reads the answers needs it.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        num_things: int = 1,
    ) -> None:
        super().__init__(channels, grids, img_size, num_classes, dim)
        self.num_things, rates = num_things, atrous_rates(img_size, grids[-1])
        if len(channels) == 1:
            scales = single_map_scales(img_size, grids[0])
            self.pyramid = SimpleFeaturePyramid(channels[0], dim, scales)
            channels = (dim,) * len(scales)
        self.norms = nn.ModuleList(MapNorm(width) for width in channels)
        self.semantic = PanopticDecoder(channels, rates, dim)
        self.classify = separable(dim, dim)
        self.instance = PanopticDecoder(channels, rates, dim // 2)
        self.centre = nn.Sequential(separable(dim // 2, dim // 8), nn.Conv2d(dim // 8, 1, 1))
        self.offset = nn.Sequential(separable(dim // 2, dim // 8), nn.Conv2d(dim // 8, 2, 1))

    def answer(self, maps: Sequence[Tensor]) -> Tensor:
        maps = [norm(x) for norm, x in zip(self.norms, maps, strict=True)]
        logits, instances = self.fc(self.classify(self.semantic(maps))), self.instance(maps)
        # In eighths of the image: for whole pixels the last weights would have to grow for thousands of steps.
        offsets = self.offset(instances) * (self.img_size[0] / 8)
        # Enlarged in full precision: in bfloat16 neighbours of a peak would be as hot as it is.
        answer = torch.cat([logits, self.centre(instances), offsets], 1).float()
        return F.interpolate(answer, self.img_size, mode="bilinear", align_corners=False)

    @staticmethod
    def cost(
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        **costless: Any,
    ) -> Cost:
        total, rates = Cost(), atrous_rates(img_size, grids[-1])
        if len(channels) == 1:
            total, channels, grids = pyramid_cost(channels, grids, dim, single_map_scales(img_size, grids[0]))
        for width in channels:
            total += norm_cost(width)
        fine, positions = grids[0], grids[0][0] * grids[0][1]
        total += PanopticDecoder.cost(channels, grids, rates, dim)
        total += PanopticDecoder.cost(channels, grids, rates, dim // 2)
        total += separable_cost(fine, dim, dim) + linear_cost(positions, dim, num_classes)
        for maps in (1, 2):
            total += separable_cost(fine, dim // 2, dim // 8) + linear_cost(positions, dim // 8, maps)
        return total


def single_map_scales(img_size: Grid, grid: Grid) -> tuple[float, ...]:
    """The scales by which a single map becomes two finer ones and one as it is."""
    return (*pyramid_scales(img_size[0] // grid[0])[:2], 1.0)
