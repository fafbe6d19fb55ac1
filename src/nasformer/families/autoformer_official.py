"""Reads the published AutoFormer supernet checkpoints, so that a downloaded supernet can be searched at once.

Their layout: rows of q, k and v interleaved modulo 3 in one matrix, its bias plain, other names, tensors wider than the
largest member. The bias was trained under contiguous slicing, so the space takes ``qkv_bias_sharing="contiguous"``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nasformer.families.renaming import rename

NAMES = (
    (r"^patch_embed_super\.", "patch_embed."),
    (r"^(cls_token|pos_embed)$", r"patch_embed.\1"),
    (r"^head\.", "head.fc."),
    (r"\.attn_layer_norm\.", ".norm1."),
    (r"\.ffn_layer_norm\.", ".norm2."),
    (r"\.(fc1|fc2)\.", r".mlp.\1."),
    (r"rel_pos_embed_(k|v)\.embeddings_table_v$", r"rel_pos_\1.vertical"),
    (r"rel_pos_embed_(k|v)\.embeddings_table_h$", r"rel_pos_\1.horizontal"),
)


def is_official(state: Mapping[str, Tensor]) -> bool:
    return "patch_embed_super.proj.weight" in state


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under our names, with the rows of q, k and v each together."""
    return {rename(name, NAMES): deinterleave(name, weight) for name, weight in state.items()}


def deinterleave(name: str, weight: Tensor) -> Tensor:
    if not name.endswith("qkv.weight"):
        return weight
    return torch.cat([weight[part::3] for part in range(3)])
