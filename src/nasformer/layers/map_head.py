"""From a map to logits."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nasformer.layers.cost import Cost
from nasformer.layers.head import TokenHead


class MapHead(TokenHead):
    """Pools the map by its mean, drops some of the features in training, then classifies."""

    def __init__(self, embed_dim: int, num_classes: int, global_pool: str = "avg", drop_rate: float = 0.0) -> None:
        super().__init__(embed_dim, num_classes, global_pool)
        self.drop_rate = drop_rate

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = F.dropout(x.mean((2, 3)), self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    @staticmethod
    def cost(embed_dim: int, num_classes: int, global_pool: str = "avg", drop_rate: float = 0.0) -> Cost:
        return TokenHead.cost(embed_dim, num_classes, global_pool)
