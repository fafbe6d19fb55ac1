"""Who looks where: the attention of one block, computed again from what its fused attention was given."""

from __future__ import annotations

from nasformer.attention.blocks import attention_blocks
from nasformer.attention.maps import AttentionMaps, Head, attention_maps

__all__ = ["AttentionMaps", "Head", "attention_blocks", "attention_maps"]
