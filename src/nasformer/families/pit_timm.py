"""Reads timm's PiT, so that its pretrained weights serve as ours.

theirs = timm.create_model("pit_xs_224", pretrained=True)
model = nasformer.get_space("pit-xs").build(PRESETS["pit-xs"])
model.load_state_dict(from_timm(theirs.state_dict()))
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from nasformer.errors import UserError
from nasformer.families.renaming import rename

NAMES = (
    (r"^patch_embed\.conv\.", "patch_embed.proj."),
    (r"^(cls_token|pos_embed)$", r"patch_embed.\1"),
    (r"^transformers\.", "stages."),
    (r"^head\.", "head.fc."),
)


def from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a timm PiT under our names; its map of positions becomes a list of tokens."""
    if any(name.startswith("head_dist.") for name in state):
        raise UserError("these are weights of a distilled PiT, which has a second class token; take the plain one")
    return {
        rename(name, NAMES): weight.flatten(2).transpose(1, 2) if name == "pos_embed" else weight
        for name, weight in state.items()
    }
