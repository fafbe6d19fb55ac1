"""From a map to logits."""

from __future__ import annotations

from torch import Tensor

from nasformer.layers.head import TokenHead


class MapHead(TokenHead):
    """Pools the map by its mean, then classifies."""

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x.mean((2, 3))
        return x if pre_logits else self.fc(x)
