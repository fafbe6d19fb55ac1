"""What families have in common whose segments hand on tokens: [batch, 1 + rows * columns, dim], class token first."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nasformer.errors import UserError
from nasformer.families.features import FeatureBackbone
from nasformer.layers.grid import Grid, both_sides


class TokenBackbone(FeatureBackbone):
    """Patch embedding, blocks (perhaps in stages), a norm and a head. A family adds `plan` and `feature_info`."""

    undecayed = frozenset({"patch_embed.pos_embed", "patch_embed.cls_token"})

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        patches = x[:, 1:]
        if output_fmt == "NLC":
            return patches
        grid: Any = self.get_submodule(f"{block}.attn").grid
        return patches.transpose(1, 2).unflatten(2, grid)


def check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")


def patch_grid(img_size: int | tuple[int, int], patch_size: int, stride: int | None = None) -> Grid:
    """Rows and columns of patches that cover the image exactly; they overlap where the stride is shorter.

    >>> patch_grid(224, 16), patch_grid(224, 16, stride=8), patch_grid((32, 64), 8)
    ((14, 14), (27, 27), (4, 8))
    """
    step = patch_size if stride is None else stride
    sides = both_sides(img_size)
    if min(patch_size, step) < 1 or any(side < patch_size or (side - patch_size) % step for side in sides):
        unit = f"patch_size {patch_size}"
        needed = f"a multiple of {unit}" if stride is None else f"{unit} plus a multiple of stride {stride}"
        raise UserError(f"img_size {img_size} is not {needed}; change one of them")
    rows, columns = ((side - patch_size) // step + 1 for side in sides)
    return rows, columns
