"""Layer norm of maps: over the channels, at every position alone."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost


class MapNorm(nn.LayerNorm):
    """Layer norm of [batch, channels, rows, columns]."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__(embed_dim, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        return norm_cost(embed_dim)
