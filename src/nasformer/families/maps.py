"""What families have in common whose segments hand on maps: [batch, channels, rows, columns]."""

from __future__ import annotations

from torch import Tensor

from nasformer.families.features import FeatureBackbone


class MapBackbone(FeatureBackbone):
    """A stem, stages of blocks, a norm and a head. A family adds `plan` and `feature_info`."""

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        return x.flatten(2).transpose(1, 2) if output_fmt == "NLC" else x
