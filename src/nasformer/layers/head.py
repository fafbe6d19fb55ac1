"""Classification heads for tokens and for feature maps."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from nasformer.layers.cost import Cost, linear_cost


class TokenHead(nn.Module):
    """Classifier on the mean of the patch tokens (`avg`) or on the class token (`token`)."""

    def __init__(self, embed_dim: int, num_classes: int, global_pool: str = "avg") -> None:
        super().__init__()
        self.embed_dim, self.global_pool = embed_dim, global_pool
        self.reset(num_classes)

    def reset(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a fresh classifier, on the device of the old one; 0 classes leave the features."""
        self.global_pool = global_pool or self.global_pool
        old = next(self.parameters(), None)
        self.fc: nn.Module = nn.Identity()
        if num_classes:
            self.fc = linear = nn.Linear(self.embed_dim, num_classes, device=old.device if old is not None else None)
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x[:, 0] if self.global_pool == "token" else x[:, 1:].mean(dim=1)
        return x if pre_logits else self.fc(x)

    @staticmethod
    def cost(embed_dim: int, num_classes: int, global_pool: str = "avg") -> Cost:
        return linear_cost(1, embed_dim, num_classes) if num_classes else Cost()


class MapHead(TokenHead):
    """Classifier on the mean of a feature map, with dropout before it."""

    def __init__(self, embed_dim: int, num_classes: int, global_pool: str = "avg", drop_rate: float = 0.0) -> None:
        super().__init__(embed_dim, num_classes, global_pool)
        self.drop_rate = drop_rate

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = F.dropout(x.mean((2, 3)), self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    @staticmethod
    def cost(embed_dim: int, num_classes: int, global_pool: str = "avg", drop_rate: float = 0.0) -> Cost:
        return TokenHead.cost(embed_dim, num_classes, global_pool)
