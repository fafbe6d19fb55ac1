"""Segmentation heads: UPerNet, DeepLab and Panoptic-DeepLab, on the feature maps of a backbone or a pyramid of one map.

UPerNet (Xiao et al. 2018) pools the coarsest map at several scales, adds finer maps from top to bottom as a feature
pyramid network does, and classifies all of them together. DeepLabV3 (Chen et al. 2017) reads the coarsest map alone,
by convolutions with holes; DeepLabV3+ (Chen et al. 2018) adds the finest one. They are written here, not taken from a
library, since a supernet must slice their weights and an exported model must carry their source; tests compare UPerNet
with segmentation-models-pytorch and DeepLabV3 with torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.basic import Cost, MapNorm, linear_cost, norm_cost
from nasformer.layers.stem import Grid

POOLED = (1, 2, 3, 6)
"""Sides of the grids to which the coarsest map is pooled."""
FINEST = 4
"""Pixels of the image to one position of the finest map of a simple feature pyramid, or fewer with small patches."""
LEVELS = 4
ATROUS = (96, 192, 288)
"""Pixels of the image between the weights of DeepLab's convolutions: rates 12, 24, 36 where the map has stride 8."""
FINE_DIM = 48
"""Channels to which DeepLabV3+ reduces the finest map."""


def conv_norm_relu(in_dim: int, out_dim: int, kernel: int, rate: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of the map, batch norm and ReLU."""
    padding = kernel // 2 * rate
    convolution = nn.Conv2d(in_dim, out_dim, kernel, padding=padding, dilation=rate, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_dim), nn.ReLU())


def conv_cost(grid: Grid, in_dim: int, out_dim: int, kernel: int) -> Cost:
    """Cost of `conv_norm_relu` on a map of this grid."""
    return linear_cost(grid[0] * grid[1], in_dim * kernel**2, out_dim, bias=False) + norm_cost(out_dim)


def pyramid_scales(reduction: int) -> tuple[float, ...]:
    """By how much each level of a simple feature pyramid enlarges a map, the finest first.

    >>> pyramid_scales(16), pyramid_scales(4), pyramid_scales(2)
    ((4.0, 2.0, 1.0, 0.5), (1.0, 0.5, 0.25, 0.125), (1.0, 0.5, 0.25, 0.125))
    """
    finest = min(FINEST, reduction)
    return tuple(reduction / (finest * 2**level) for level in range(LEVELS))


def scaled_grid(grid: Grid, scale: float) -> Grid:
    """Rows and columns of a map that is enlarged or pooled.

    >>> scaled_grid((7, 7), 2.0), scaled_grid((7, 7), 0.5)
    ((14, 14), (4, 4))
    """
    rows, columns = (int(side * scale) if scale >= 1 else -(-side // round(1 / scale)) for side in grid)
    return rows, columns


class SimpleFeaturePyramid(nn.Module):
    """Maps of several resolutions from a single one, as ViTDet (Li et al. 2022) makes them from the last of a ViT.

    Finer ones by transposed convolutions, coarser ones by max pooling. The map is projected first, so that all other
    weights are the same for backbones of any width.
    """

    def __init__(self, in_dim: int, dim: int, scales: Sequence[float]) -> None:
        super().__init__()
        self.norm, self.proj = MapNorm(in_dim), nn.Conv2d(in_dim, dim, 1)
        self.levels = nn.ModuleList(resampler(dim, scale) for scale in scales)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.proj(self.norm(x))
        return [level(x) for level in self.levels]

    @staticmethod
    def cost(in_dim: int, dim: int, scales: Sequence[float], grid: Grid) -> Cost:
        total = norm_cost(in_dim) + linear_cost(grid[0] * grid[1], in_dim, dim)
        for scale in scales:
            side, steps = 1, doublings(scale)
            for step in range(steps):
                params = Cost(dim * dim * 4 + dim, grid[0] * grid[1] * side**2 * dim * dim * 4)
                total, side = total + params + (norm_cost(dim) if step + 1 < steps else Cost()), 2 * side
        return total


def pyramid_cost(
    channels: Sequence[int], grids: Sequence[Grid], dim: int, scales: Sequence[float]
) -> tuple[Cost, tuple[int, ...], tuple[Grid, ...]]:
    """The cost of a simple feature pyramid of a single map, and the channels and grids of its levels."""
    cost = SimpleFeaturePyramid.cost(channels[0], dim, scales, grids[0])
    return cost, (dim,) * len(scales), tuple(scaled_grid(grids[0], scale) for scale in scales)


def doublings(scale: float) -> int:
    """How often a map is doubled to reach a scale.

    >>> [doublings(scale) for scale in (4.0, 2.0, 1.0, 0.5)]
    [2, 1, 0, 0]
    """
    return max(0, round(scale).bit_length() - 1)


def resampler(dim: int, scale: float) -> nn.Module:
    """Layers that enlarge a map, step by step, or pool it."""
    if scale < 1:
        return nn.MaxPool2d(round(1 / scale), ceil_mode=True)
    layers = list[nn.Module]()
    for step in range(doublings(scale)):
        layers += [MapNorm(dim), nn.GELU()] if step else []
        layers.append(nn.ConvTranspose2d(dim, dim, 2, 2))
    return nn.Sequential(*layers)


class SegmentationHead(nn.Module):
    """Logits of every pixel from the maps of a backbone; subclasses decode features from them.

    Args:
        channels: Of each map, the finest first.
        grids: Rows and columns of each map, which may come as tokens with others before them.
        img_size: Rows and columns of the logits.
        dim: Channels within the head.
    """

    def __init__(
        self, channels: tuple[int, ...], grids: tuple[Grid, ...], img_size: Grid, num_classes: int, dim: int = 256
    ) -> None:
        super().__init__()
        self.grids, self.img_size, self.dim, self.embed_dim = grids, img_size, dim, channels[-1]
        self.pyramid: SimpleFeaturePyramid | None = None
        self.reset(num_classes)
        scales = self.single_map_scales(img_size[0] // grids[0][0]) if len(channels) == 1 else ()
        if scales:
            self.pyramid = SimpleFeaturePyramid(channels[0], dim, scales)
            channels = (dim,) * len(scales)
        self.add_decoder(channels, atrous_rates(img_size, grids[-1]))

    @staticmethod
    def single_map_scales(reduction: int) -> tuple[float, ...]:
        """The scales of a simple feature pyramid of a single map; none: the map is decoded as it is."""
        return ()

    def add_decoder(self, channels: tuple[int, ...], rates: tuple[int, ...]) -> None:
        """Makes the layers of `decode`, for maps with these channels and atrous convolutions of these rates."""
        raise NotImplementedError

    def reset(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a fresh classifier of pixels, on the device of the old weights."""
        device = next((weight.device for weight in self.parameters()), None)
        self.fc = nn.Conv2d(self.dim, num_classes, 1, device=device)
        # With small weights all features come to vote for the most frequent class, and none is left for the others.
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)  # type: ignore[arg-type]

    def forward(self, outputs: list[Tensor]) -> Tensor:
        maps = [as_map(x, grid) for x, grid in zip(outputs, self.grids, strict=True)]
        return self.answer(maps if self.pyramid is None else self.pyramid(maps[0]))

    def answer(self, maps: Sequence[Tensor]) -> Tensor:
        logits = self.fc(self.decode(maps))
        return F.interpolate(logits, self.img_size, mode="bilinear", align_corners=False)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Features of the maps: [batch, dim, rows, columns]."""
        raise NotImplementedError

    @classmethod
    def cost(
        cls,
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        **costless: Any,
    ) -> Cost:
        total, rates = Cost(), atrous_rates(img_size, grids[-1])
        scales = cls.single_map_scales(img_size[0] // grids[0][0]) if len(channels) == 1 else ()
        if scales:
            total, channels, grids = pyramid_cost(channels, grids, dim, scales)
        for width in channels:
            total += norm_cost(width)
        total += cls.decoder_cost(channels, grids, rates, dim)
        return total + linear_cost(grids[0][0] * grids[0][1], dim, num_classes)

    @classmethod
    def decoder_cost(cls, channels: tuple[int, ...], grids: tuple[Grid, ...], rates: tuple[int, ...], dim: int) -> Cost:
        """The cost of the decoder, without the norms of the maps."""
        raise NotImplementedError


class UPerNetHead(SegmentationHead):
    """UPerNet on all maps; of a single one a simple feature pyramid is made."""

    @staticmethod
    def single_map_scales(reduction: int) -> tuple[float, ...]:
        return pyramid_scales(reduction)

    def add_decoder(self, channels: tuple[int, ...], rates: tuple[int, ...]) -> None:
        dim, (*finer, last) = self.dim, channels
        self.norms = nn.ModuleList(MapNorm(width) for width in channels)
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), conv_norm_relu(last, dim, 1)) for side in POOLED
        )
        # The map comes behind the pooled ones, so that a narrower backbone uses the first weights of a wider one's.
        self.bottleneck = conv_norm_relu(len(POOLED) * dim + last, dim, 3)
        self.laterals = nn.ModuleList(conv_norm_relu(width, dim, 1) for width in finer)
        self.smooth = nn.ModuleList(conv_norm_relu(dim, dim, 3) for _ in finer)
        self.fuse = conv_norm_relu(len(channels) * dim, dim, 3)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Features at the resolution of the finest map."""
        *finer, last = [norm(x) for norm, x in zip(self.norms, maps, strict=True)]
        pooled = [resize(pool(last), last) for pool in self.pools]
        x = self.bottleneck(torch.cat([*pooled, last], 1))
        levels = [x]
        for index in reversed(range(len(finer))):
            lateral = self.laterals[index](finer[index])
            x = lateral + resize(x, lateral)
            levels.insert(0, self.smooth[index](x))
        return self.fuse(torch.cat([resize(level, levels[0]) for level in levels], 1))

    @classmethod
    def decoder_cost(cls, channels: tuple[int, ...], grids: tuple[Grid, ...], rates: tuple[int, ...], dim: int) -> Cost:
        total, (*finer, last) = Cost(), channels
        for side in POOLED:
            total += conv_cost((side, side), last, dim, 1)
        total += conv_cost(grids[-1], len(POOLED) * dim + last, dim, 3)
        for width, grid in zip(finer, grids[:-1], strict=True):
            total += conv_cost(grid, width, dim, 1) + conv_cost(grid, dim, dim, 3)
        return total + conv_cost(grids[0], len(channels) * dim, dim, 3)


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: a map by convolutions of several reaches, and its mean, put together again."""

    def __init__(self, in_dim: int, dim: int, rates: Sequence[int]) -> None:
        super().__init__()
        reaches = [conv_norm_relu(in_dim, dim, 3, rate) for rate in rates]
        self.branches = nn.ModuleList([conv_norm_relu(in_dim, dim, 1), *reaches])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_norm_relu(in_dim, dim, 1))
        self.project = conv_norm_relu((len(rates) + 2) * dim, dim, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        parts = [*(branch(x) for branch in self.branches), resize(self.pool(x), x)]
        return self.dropout(self.project(torch.cat(parts, 1)))

    @staticmethod
    def cost(grid: Grid, in_dim: int, dim: int, rates: Sequence[int]) -> Cost:
        total = conv_cost(grid, in_dim, dim, 1) + conv_cost((1, 1), in_dim, dim, 1)
        for _ in rates:
            total += conv_cost(grid, in_dim, dim, 3)
        return total + conv_cost(grid, (len(rates) + 2) * dim, dim, 1)


def atrous_rates(img_size: Grid, grid: Grid) -> tuple[int, ...]:
    """Rates with which a convolution reaches as far in the image, whatever the stride of the map.

    >>> [atrous_rates((512, 512), (side, side)) for side in (64, 32, 16)]
    [(12, 24, 36), (6, 12, 18), (3, 6, 9)]
    """
    return tuple(max(1, round(pixels * grid[0] / img_size[0])) for pixels in ATROUS)


class DeepLabV3Head(SegmentationHead):
    """DeepLabV3: atrous spatial pyramid pooling of the coarsest map, at its resolution."""

    def add_decoder(self, channels: tuple[int, ...], rates: tuple[int, ...]) -> None:
        (width,) = channels
        self.norm = MapNorm(width)
        self.aspp = ASPP(width, self.dim, rates)
        self.fuse = conv_norm_relu(self.dim, self.dim, 3)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        return self.fuse(self.aspp(self.norm(maps[0])))

    @classmethod
    def decoder_cost(cls, channels: tuple[int, ...], grids: tuple[Grid, ...], rates: tuple[int, ...], dim: int) -> Cost:
        return ASPP.cost(grids[0], channels[0], dim, rates) + conv_cost(grids[0], dim, dim, 3)


class DeepLabV3PlusHead(SegmentationHead):
    """DeepLabV3+: the features of DeepLabV3, refined with the finest map; a single map is enlarged for that."""

    @staticmethod
    def single_map_scales(reduction: int) -> tuple[float, ...]:
        return (pyramid_scales(reduction)[0], 1.0)

    def add_decoder(self, channels: tuple[int, ...], rates: tuple[int, ...]) -> None:
        dim = self.dim
        self.norms = nn.ModuleList(MapNorm(width) for width in channels)
        self.aspp = ASPP(channels[-1], dim, rates)
        self.reduce = conv_norm_relu(channels[0], FINE_DIM, 1)
        self.fuse = nn.Sequential(conv_norm_relu(dim + FINE_DIM, dim, 3), conv_norm_relu(dim, dim, 3))

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        finest, coarsest = [norm(x) for norm, x in zip(self.norms, maps, strict=True)]
        return self.fuse(torch.cat([resize(self.aspp(coarsest), finest), self.reduce(finest)], 1))

    @classmethod
    def decoder_cost(cls, channels: tuple[int, ...], grids: tuple[Grid, ...], rates: tuple[int, ...], dim: int) -> Cost:
        total = ASPP.cost(grids[-1], channels[-1], dim, rates) + conv_cost(grids[0], channels[0], FINE_DIM, 1)
        return total + conv_cost(grids[0], dim + FINE_DIM, dim, 3) + conv_cost(grids[0], dim, dim, 3)


# Panoptic-DeepLab (Cheng et al. 2020): two decoders of the same form, one for the classes of pixels, one for instances.
# An instance is found by its centre, as a peak of a heat map, and each of its pixels says how far away this centre is.
# Widths are the paper's for `dim` 256.

SEPARABLE_KERNEL = 5
INSTANCE_MAPS = 3
"""Channels of an answer beyond its classes: the heat of centres, and rows and columns to the centre."""


def separable(in_dim: int, out_dim: int) -> nn.Sequential:
    """A convolution of each channel, then one of each position."""
    depthwise = nn.Conv2d(in_dim, in_dim, SEPARABLE_KERNEL, padding=SEPARABLE_KERNEL // 2, groups=in_dim, bias=False)
    return nn.Sequential(depthwise, nn.BatchNorm2d(in_dim), nn.ReLU(), *conv_norm_relu(in_dim, out_dim, 1))


def separable_cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
    depthwise = Cost(in_dim * SEPARABLE_KERNEL**2, grid[0] * grid[1] * in_dim * SEPARABLE_KERNEL**2)
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
        self.num_things = num_things

    @staticmethod
    def single_map_scales(reduction: int) -> tuple[float, ...]:
        return (*pyramid_scales(reduction)[:2], 1.0)

    def add_decoder(self, channels: tuple[int, ...], rates: tuple[int, ...]) -> None:
        dim = self.dim
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

    @classmethod
    def decoder_cost(cls, channels: tuple[int, ...], grids: tuple[Grid, ...], rates: tuple[int, ...], dim: int) -> Cost:
        fine, positions = grids[0], grids[0][0] * grids[0][1]
        total = PanopticDecoder.cost(channels, grids, rates, dim) + separable_cost(fine, dim, dim)
        total += PanopticDecoder.cost(channels, grids, rates, dim // 2)
        for maps in (1, 2):
            total += separable_cost(fine, dim // 2, dim // 8) + linear_cost(positions, dim // 8, maps)
        return total


# Helpers


def fitted_size(rows: int, columns: int, size: int, scale: float = 1.0) -> tuple[int, int]:
    """Rows and columns of an image whose longer side is scaled to `size`, times a further scale.

    >>> fitted_size(240, 320, 160), fitted_size(240, 320, 160, scale=0.5)
    ((120, 160), (60, 80))
    """
    factor = size * scale / max(rows, columns)
    return max(1, round(rows * factor)), max(1, round(columns * factor))


def as_map(x: Tensor, grid: Grid) -> Tensor:
    """Tokens as a map, without class and register tokens; a map as it is."""
    return x if x.ndim == 4 else x[:, -grid[0] * grid[1] :].transpose(1, 2).unflatten(2, grid)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """A map in the resolution of another one."""
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)
