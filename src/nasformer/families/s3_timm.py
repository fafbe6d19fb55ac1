"""Reads timm's S3 nets, so that their pretrained weights serve as ours.

theirs = timm.create_model("swin_s3_tiny_224", pretrained=True)
model = nasformer.get_space("s3").build(PRESETS["s3-t"])
model.load_state_dict(from_timm(theirs.state_dict()))
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from torch import Tensor

from nasformer.errors import UserError
from nasformer.families.renaming import rename

TABLE = "relative_position_bias_table"
NAMES = (
    (r"^patch_embed\.proj\.", "stem.conv."),
    (r"^patch_embed\.norm\.", "stem.norm."),
    (r"^layers\.", "stages."),
    (r"\.downsample\.norm\.", ".downsample.merge_norm."),
    (rf"\.{TABLE}$", ".positions"),
)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a timm Swin under our names; its lists of offsets become tables, [heads, rows, columns]."""
    return {rename(name, NAMES): as_table(weight) if name.endswith(TABLE) else weight for name, weight in state.items()}


def as_table(listed: Tensor) -> Tensor:
    """From [rows * columns, heads]; windows are square.

    >>> import torch
    >>> as_table(torch.arange(18).reshape(9, 2))[1].tolist()
    [[1, 3, 5], [7, 9, 11], [13, 15, 17]]
    """
    side = isqrt(listed.shape[0])
    if side**2 != listed.shape[0]:
        raise UserError(f"a table of {listed.shape[0]} offsets is not that of a square window; take a square image")
    return listed.T.unflatten(1, (side, side))
