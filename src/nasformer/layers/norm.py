"""Layer norm that knows its cost."""

from __future__ import annotations

from torch import Tensor, nn

from nasformer.layers.cost import Cost, norm_cost


class LayerNorm(nn.LayerNorm):
    """torch's layer norm as a segment of a plan."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-5) -> None:
        super().__init__(embed_dim, norm_eps)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-5) -> Cost:
        return norm_cost(embed_dim)


# ----------------------------------------------------------------------------------------------------------------------
# Layer norm of maps: over the channels, at every position alone.
# ----------------------------------------------------------------------------------------------------------------------


class MapNorm(nn.LayerNorm):
    """Layer norm of [batch, channels, rows, columns]."""

    def __init__(self, embed_dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__(embed_dim, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    @staticmethod
    def cost(embed_dim: int, norm_eps: float = 1e-6) -> Cost:
        return norm_cost(embed_dim)


# ----------------------------------------------------------------------------------------------------------------------
# The place of the last norm, in networks that end without one.
# ----------------------------------------------------------------------------------------------------------------------


class NoNorm(nn.Identity):
    """Nothing: every block of a ResNet ends in a norm and a ReLU, so its features need no other."""

    @staticmethod
    def cost() -> Cost:
        return Cost()
