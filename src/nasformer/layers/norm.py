"""Layer norm that knows its cost."""

from __future__ import annotations

from torch import nn

from nasformer.layers.cost import Cost, norm_cost


class LayerNorm(nn.LayerNorm):
    """torch's layer norm as a segment of a plan."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-5) -> None:
        super().__init__(embed_dim, norm_eps)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-5) -> Cost:
        return norm_cost(embed_dim)
