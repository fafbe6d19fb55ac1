"""Norms as layers of a plan: layer norm of tokens, layer norm of feature maps, and none."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost


class LayerNorm(nn.LayerNorm):
    """Layer norm of tokens: torch's, with its cost."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-5) -> None:
        super().__init__(embed_dim, norm_eps)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-5) -> Cost:
        return norm_cost(embed_dim)


class MapNorm(nn.LayerNorm):
    """Layer norm over the channels of a feature map [batch, channels, rows, columns]."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__(embed_dim, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        return norm_cost(embed_dim)


class NoNorm(nn.Identity):
    """Identity in the place of the final norm, where blocks end in a norm already or the pooled vector gets one."""

    @staticmethod
    def cost() -> Cost:
        return Cost()
