"""Attention maps: the attention of one block, computed again from what its fused attention was given."""
