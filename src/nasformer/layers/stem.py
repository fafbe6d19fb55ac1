"""Stems and downsampling: from an image to tokens or feature maps, and from one stage to the next."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.basic import Cost, MapNorm, init_weights, linear_cost, norm_cost

Grid = tuple[int, int]
"""Rows and columns of a feature map, or of patches."""


def to_2tuple(size: int | tuple[int, int]) -> Grid:
    """Rows and columns of a size that may be given by one number, if it is square.

    >>> to_2tuple(224), to_2tuple((224, 160))
    ((224, 224), (224, 160))
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns


def half_grid(grid: Grid) -> Grid:
    """The grid behind a stride of 2; an odd last row or column counts as a whole one.

    >>> half_grid((8, 7))
    (4, 4)
    """
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2


def check_size(images: Tensor, height: int, width: int) -> None:
    """Refuses images of another size than the model's."""
    if tuple(images.shape[-2:]) != (height, width):
        raise UserError(
            f"images are {images.shape[-2]} x {images.shape[-1]}, the model is for {height} x {width}; resize them"
        )


@runtime_checkable
class OnGrid(Protocol):
    """A layer that depends on the size of the map, and can take another one."""

    def set_grid(self, grid: Grid) -> None: ...


# Tokens: [batch, 1 + rows * columns, embed_dim], the class token first.


class PatchEmbed(nn.Module):
    """Embeds patches that do not overlap, prepends the class token and adds absolute positions.

    Args:
        reg_tokens: Registers, learned tokens behind the class token that no head reads (Darcet et al. 2024).
        no_embed_class: Whether only patches have positions.
        proj_bias: Whether the convolution has a bias; in front of a norm it needs none.
        resize: Whether images come in another size than the grid has, and are resized first.
    """

    def __init__(
        self,
        grid: Grid,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        class_token: bool = True,
        reg_tokens: int = 0,
        no_embed_class: bool = False,
        proj_bias: bool = True,
        resize: bool = False,
    ) -> None:
        super().__init__()
        self.grid, self.no_embed_class, self.resize = grid, no_embed_class, resize
        self.positioned = 0 if no_embed_class else class_token + reg_tokens  # of the tokens before the patches
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size, bias=proj_bias)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, embed_dim)) if reg_tokens else None
        self.pos_embed = nn.Parameter(torch.empty(1, self.positioned + grid[0] * grid[1], embed_dim))
        for tokens in (self.cls_token, self.reg_token, self.pos_embed):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=0.02)

    def set_grid(self, grid: Grid) -> None:
        """Takes another image size: positions of patches are resampled, those of other tokens stay."""
        self.pos_embed = resample_positions(self.pos_embed, self.grid, grid, self.positioned)
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        if self.resize:
            size = [side * self.proj.kernel_size[0] for side in self.grid]
            x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        patches = self.embed(x)
        before = [
            tokens.expand(x.shape[0], -1, -1).to(patches.dtype)
            for tokens in (self.cls_token, self.reg_token)
            if tokens is not None
        ]
        if self.no_embed_class:
            return torch.cat([*before, patches + self.pos_embed.to(patches.dtype)], dim=1)
        return torch.cat([*before, patches], dim=1) + self.pos_embed

    def embed(self, x: Tensor) -> Tensor:
        """The convolution with stride = kernel as a matrix product, which is several times faster on a GPU."""
        size = self.proj.kernel_size[0]
        check_size(x, *(side * size for side in self.grid))
        patches = x.unfold(2, size, size).unfold(3, size, size)  # batch, channels, rows, columns, size, size
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)

    @staticmethod
    def cost(
        grid: Grid,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        class_token: bool = True,
        reg_tokens: int = 0,
        no_embed_class: bool = False,
        proj_bias: bool = True,
        resize: bool = False,
    ) -> Cost:
        patches, inputs, before = grid[0] * grid[1], in_chans * patch_size**2, class_token + reg_tokens
        vectors = inputs + proj_bias + before + patches + (0 if no_embed_class else before)
        return Cost(vectors * embed_dim, patches * inputs * embed_dim)


def resample_positions(positions: nn.Parameter, before: Grid, after: Grid, other_tokens: int) -> nn.Parameter:
    """Absolute positions for another grid; those of the tokens before the patches stay."""
    from timm.layers import resample_abs_pos_embed  # late: timm takes longer to import than torch

    return nn.Parameter(resample_abs_pos_embed(positions.data, list(after), list(before), other_tokens))


class OverlapPatchEmbed(nn.Module):
    """Embeds patches that may overlap and adds absolute positions; the class token before them has no position."""

    def __init__(self, grid: Grid, patch_size: int, stride: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, stride)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1], embed_dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def set_grid(self, grid: Grid) -> None:
        """Takes another image size: positions are resampled."""
        self.pos_embed, self.grid = resample_positions(self.pos_embed, self.grid, grid, other_tokens=0), grid

    def forward(self, x: Tensor) -> Tensor:
        size, stride = self.proj.kernel_size[0], self.proj.stride[0]
        check_size(x, *((side - 1) * stride + size for side in self.grid))
        patches = self.proj(x).flatten(2).transpose(1, 2) + self.pos_embed
        cls_token = self.cls_token.expand(x.shape[0], -1, -1).to(patches.dtype)
        return torch.cat([cls_token, patches], dim=1)

    @staticmethod
    def cost(grid: Grid, patch_size: int, stride: int, in_chans: int, embed_dim: int) -> Cost:
        patches, inputs = grid[0] * grid[1], in_chans * patch_size**2
        return Cost((inputs + 1 + patches + 1) * embed_dim, patches * inputs * embed_dim)


class TokenPool(nn.Module):
    """PiT's pooling: a depthwise 3 x 3 convolution with stride 2 for the patches, a linear layer for the class token.

    Output channel c is made from input channel c // (out_dim // in_dim), so out_dim is a multiple of in_dim.

    Args:
        grid: Rows and columns of patches before pooling.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, out_dim, kernel_size=3, stride=2, padding=1, groups=in_dim)
        self.fc = nn.Linear(in_dim, out_dim)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, 1:].transpose(1, 2).unflatten(2, self.grid)
        pooled = self.conv(patches).flatten(2).transpose(1, 2)
        return torch.cat([self.fc(x[:, :1]), pooled], dim=1)

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        rows, columns = half_grid(grid)
        return linear_cost(1, in_dim, out_dim) + Cost((9 + 1) * out_dim, rows * columns * 9 * out_dim)


# Feature maps: [batch, channels, rows, columns].


class MapStem(nn.Module):
    """Patches that do not overlap as a feature map: a convolution whose stride is its size, and a norm.

    Args:
        grid: Rows and columns of the output map.
    """

    def __init__(self, grid: Grid, patch_size: int, in_chans: int, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.norm = MapNorm(embed_dim, norm_eps)
        init_weights(self)
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        check_size(x, *(side * self.conv.stride[0] for side in self.grid))
        return self.norm(self.conv(x))

    @staticmethod
    def cost(grid: Grid, patch_size: int, in_chans: int, embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        inputs = in_chans * patch_size**2
        return norm_cost(embed_dim) + Cost((inputs + 1) * embed_dim, grid[0] * grid[1] * inputs * embed_dim)


class Downsample(nn.Module):
    """ConvNeXt's downsampling: a norm, and a 2 x 2 convolution with stride 2.

    Args:
        grid: Rows and columns of the output map; only the cost depends on it.
    """

    def __init__(self, grid: Grid, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.norm = MapNorm(in_dim)
        self.conv = nn.Conv2d(in_dim, out_dim, kernel_size=2, stride=2)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x))

    @staticmethod
    def cost(grid: Grid, in_dim: int, out_dim: int) -> Cost:
        inputs = 4 * in_dim
        return norm_cost(in_dim) + Cost((inputs + 1) * out_dim, grid[0] * grid[1] * inputs * out_dim)


KERNELS = {4: 7, 2: 3, 1: 3}
"""Side of `TrioStem`'s convolution by the stride of the stem."""


class TrioStem(nn.Module):
    """ResNet's stem: a convolution, batch norm and ReLU; for ImageNet, or for small images.

    With a stride of 4 it is ResNet's: 7 x 7 with stride 2, and 3 x 3 max-pooling with stride 2. With 2 or 1 it is one
    3 x 3 convolution of that stride without pooling, so that images of 64 or 32 pixels keep maps of a useful size.

    Args:
        grid: Rows and columns of the image; only the cost depends on it.
    """

    def __init__(self, grid: Grid, stride: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        kernel = KERNELS[stride]
        self.conv = nn.Conv2d(in_chans, embed_dim, kernel, min(stride, 2), kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(embed_dim)
        self.act = nn.ReLU()
        self.pool: nn.Module = nn.MaxPool2d(3, 2, 1) if stride == 4 else nn.Identity()
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.act(self.norm(self.conv(x))))

    @staticmethod
    def cost(grid: Grid, stride: int, in_chans: int, embed_dim: int) -> Cost:
        rows, columns = half_grid(grid) if stride > 1 else grid
        filters = KERNELS[stride] ** 2 * in_chans * embed_dim
        return norm_cost(embed_dim) + Cost(filters, rows * columns * filters)
