"""Who looks where: the attention of one block, computed again from what its fused attention was given."""
