"""From an image to the first map of a ResNet: the stem of ImageNet, and gentler ones for small images."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost
from nasformer.layers.grid import Grid, halved

KERNELS = {4: 7, 2: 3, 1: 3}
"""Side of the convolution by the stride of the whole stem."""


class TrioStem(nn.Module):
    """A convolution, batch norm and ReLU.

    With a stride of 4 it is ResNet's: 7 x 7 with stride 2, and 3 x 3 max-pooling with stride 2. With 2 or 1 it is one
    3 x 3 convolution of that stride and no pooling, so that images of 64 or 32 pixels keep maps worth looking at.

    Args:
        grid: Rows and columns of the image, which only the cost depends on.
    """

    def __init__(self, grid: Grid, stride: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        kernel = KERNELS[stride]
        self.conv = nn.Conv2d(in_chans, embed_dim, kernel, min(stride, 2), kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(embed_dim)
        self.act = nn.ReLU()
        self.pool: nn.Module = nn.MaxPool2d(3, 2, 1) if stride == 4 else nn.Identity()
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.set_grid(grid)

    def set_grid(self, grid: Grid) -> None:
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.act(self.norm(self.conv(x))))

    @staticmethod
    def cost(grid: Grid, stride: int, in_chans: int, embed_dim: int) -> Cost:
        rows, columns = halved(grid) if stride > 1 else grid
        filters = KERNELS[stride] ** 2 * in_chans * embed_dim
        return norm_cost(embed_dim) + Cost(filters, rows * columns * filters)
