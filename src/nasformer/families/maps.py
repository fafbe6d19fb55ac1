"""What families have in common whose segments hand on maps: [batch, channels, rows, columns], in four stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from nasformer.families.features import FeatureBackbone
from nasformer.space import Arch

STAGES = ("stage1", "stage2", "stage3", "stage4")


class MapBackbone(FeatureBackbone):
    """A stem, four stages of blocks of which each halves the map before it, a norm and a head. A family adds `plan`.

    Each stage of an arch has an `embed_dim` and `blocks`; in the plan they are called stages.N.blocks.M.
    """

    stem_option: ClassVar[str] = "patch_size"
    """The option that says by how much the stem shrinks the image."""

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        ends = {name.split(".")[1]: name for name in self.segment_names if ".blocks." in name}  # the last of each stage
        return [
            {
                "num_chs": self.arch[STAGES[number]].embed_dim,
                "reduction": self.options[self.stem_option] * 2**number,
                "module": name,
            }
            for number, name in enumerate(ends.values())
        ]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        stages = [(r"^stages\.(\d+)", None)]
        blocks = [(r"^stages\.(\d+)\.downsample", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        return {"stem": r"^stem", "blocks": [*(stages if coarse else blocks), (r"^norm", (99999,))]}

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        return x.flatten(2).transpose(1, 2) if output_fmt == "NLC" else x


def drop_path_rates(arch: Arch, last: float) -> Iterator[float]:
    """The rate of each block in the order of the net: from 0 to that of the last, evenly.

    >>> from types import SimpleNamespace
    >>> arch = {stage: SimpleNamespace(blocks=[None]) for stage in STAGES}
    >>> [round(rate, 2) for rate in drop_path_rates(arch, 0.3)]
    [0.0, 0.1, 0.2, 0.3]
    """
    count = sum(len(arch[stage].blocks) for stage in STAGES)
    return (last * number / max(count - 1, 1) for number in range(count))
