"""The place of the last norm, in networks that end without one."""

from __future__ import annotations

from torch import nn

from nasformer.layers.cost import Cost


class NoNorm(nn.Identity):
    """Nothing: every block of a ResNet ends in a norm and a ReLU, so its features need no other."""

    @staticmethod
    def cost() -> Cost:
        return Cost()
