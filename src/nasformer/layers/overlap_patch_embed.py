"""From an image to tokens by patches that overlap, with absolute positions for the patches alone."""

from __future__ import annotations

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from nasformer.layers.cost import Cost
from nasformer.layers.patch_embed import check_size


class OverlapPatchEmbed(nn.Module):
    """A convolution without padding makes the patches, which get positions; the class token in front has none."""

    def __init__(self, grid: tuple[int, int], patch_size: int, stride: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, stride)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1], embed_dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Another image size: the positions are resampled."""
        positions = resample_abs_pos_embed(self.pos_embed.data, list(grid), list(self.grid), num_prefix_tokens=0)
        self.pos_embed, self.grid = nn.Parameter(positions), grid

    def forward(self, x: Tensor) -> Tensor:
        size, stride = self.proj.kernel_size[0], self.proj.stride[0]
        check_size(x, *((side - 1) * stride + size for side in self.grid))
        patches = self.proj(x).flatten(2).transpose(1, 2) + self.pos_embed
        cls_token = self.cls_token.expand(x.shape[0], -1, -1).to(patches.dtype)
        return torch.cat([cls_token, patches], dim=1)

    @staticmethod
    def cost(grid: tuple[int, int], patch_size: int, stride: int, in_chans: int, embed_dim: int) -> Cost:
        patches, inputs = grid[0] * grid[1], in_chans * patch_size**2
        return Cost((inputs + 1 + patches + 1) * embed_dim, patches * inputs * embed_dim)
