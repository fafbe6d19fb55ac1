"""From an image to tokens: patches, a class token and absolute positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.cost import Cost


class PatchEmbed(nn.Module):
    """Cuts the image into patches, embeds each, puts the class token in front and adds absolute positions."""

    def __init__(self, grid: tuple[int, int], patch_size: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1] + 1, embed_dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Another image size: the positions are resampled, that of the class token stays."""
        positions = resample_abs_pos_embed(self.pos_embed.data, list(grid), list(self.grid), num_prefix_tokens=1)
        self.pos_embed, self.grid = nn.Parameter(positions), grid

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        cls_token = self.cls_token.expand(x.shape[0], -1, -1).to(tokens.dtype)
        return torch.cat([cls_token, tokens], dim=1) + self.pos_embed

    def embed(self, x: Tensor) -> Tensor:
        """The convolution with stride = kernel, as the matrix product that it is: several times faster on a GPU."""
        size = self.proj.kernel_size[0]
        check_size(x, *(side * size for side in self.grid))
        patches = x.unfold(2, size, size).unfold(3, size, size)  # batch, channels, rows, columns, size, size
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)

    @staticmethod
    def cost(grid: tuple[int, int], patch_size: int, in_chans: int, embed_dim: int) -> Cost:
        patches, inputs = grid[0] * grid[1], in_chans * patch_size**2
        weights = (inputs + 1) * embed_dim
        return Cost(weights + (patches + 2) * embed_dim, patches * inputs * embed_dim)


def check_size(images: Tensor, height: int, width: int) -> None:
    if tuple(images.shape[-2:]) != (height, width):
        raise UserError(
            f"images are {images.shape[-2]} x {images.shape[-1]}, the model is for {height} x {width}; resize them"
        )
