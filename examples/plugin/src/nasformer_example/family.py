"""A family of your own: ConvMixer (Trockman and Kolter 2022), with elastic width, depth and kernel.

A family is a model class with a `plan`: which layers an architecture has. Static model, supernet, cost, latency,
extraction and export follow from it. Layers are plain torch modules with a static method `cost`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nasformer import Arch, Choice, Cost, MapBackbone, Repeat, Segment, Space, Struct, register_space
from nasformer.layers.basic import MapHead, MapNorm
from nasformer.layers.stem import Grid
from nasformer.models.base import patch_grid
from nasformer.models.sharing import centre_crop


class PatchConv(nn.Module):
    """Patches of the image as a feature map."""

    def __init__(self, in_chans: int, embed_dim: int, patch_size: int, grid: Grid) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)

    @staticmethod
    def cost(in_chans: int, embed_dim: int, patch_size: int, grid: Grid) -> Cost:
        weights = embed_dim * in_chans * patch_size**2
        return Cost(weights + embed_dim, weights * grid[0] * grid[1])


class MixerBlock(nn.Module):
    """A depthwise convolution around a residual, then a pointwise one."""

    def __init__(self, embed_dim: int, kernel: int, grid: Grid) -> None:
        super().__init__()
        self.norm = MapNorm(embed_dim)
        self.depthwise = nn.Conv2d(embed_dim, embed_dim, kernel, padding=kernel // 2, groups=embed_dim)
        self.pointwise = nn.Conv2d(embed_dim, embed_dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.depthwise(self.norm(x)).relu()
        return x + self.pointwise(x).relu()

    @staticmethod
    def cost(embed_dim: int, kernel: int, grid: Grid) -> Cost:
        depthwise, pointwise = embed_dim * kernel**2, embed_dim**2
        return Cost(depthwise + pointwise + 4 * embed_dim, (depthwise + pointwise) * grid[0] * grid[1])


class ConvMixer(MapBackbone):
    """ConvMixer: a stem of patches, blocks of one width, a head."""

    family = "convmixer"

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 32,
        in_chans: int = 3,
        num_classes: int = 10,
        patch_size: int = 4,
    ) -> list[Segment]:
        grid, width = patch_grid(img_size, patch_size), arch.embed_dim
        stem = Segment.of("stem", PatchConv, in_chans=in_chans, embed_dim=width, patch_size=patch_size, grid=grid)
        blocks = [
            Segment.of(f"stages.0.blocks.{number}", MixerBlock, embed_dim=width, kernel=block.kernel, grid=grid)
            for number, block in enumerate(arch.blocks)
        ]
        norm = Segment.of("norm", MapNorm, embed_dim=width)
        return [stem, *blocks, norm, Segment.of("head", MapHead, embed_dim=width, num_classes=num_classes)]

    @classmethod
    def sharing(cls, **options: Any) -> dict[str, Any]:
        """A small kernel is the centre of a large one; all other weights share their first entries."""
        return {"depthwise.weight": centre_crop}


blocks = Repeat(Struct(kernel=Choice(3, 5, 7)), depth=Choice(2, 3, 4))
about = "ConvMixer for small images: width, depth and the kernel of every block"
register_space(Space("convmixer-micro", ConvMixer, Struct(embed_dim=Choice(16, 24, 32), blocks=blocks), about=about))
