"""Models of timm with the head of a dense task: what our nets are compared with by the same recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import ImageText
from nasformer.families.dense import HEADS, Maps
from nasformer.layers.basic import Cost

MAPS = 4
"""The feature maps of a net that a head may read, the last ones."""


class TimmNet(nn.Module):
    """The last feature maps of a timm model, and the head of a task on them.

    A net whose maps are all of one size, such as a ViT, gives its last one: the head makes a pyramid of it.

    Args:
        head: Options of the head.
        encoder: Options of the timm model.
    """

    def __init__(
        self,
        name: str,
        task: str,
        img_size: int,
        in_chans: int,
        num_classes: int,
        head: Mapping[str, Any] | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        options = {"in_chans": in_chans, "features_only": True, **(encoder or {})}
        images = torch.zeros(1, in_chans, img_size, img_size, device="meta")
        indices, shapes = choose_maps(name, images, **{**options, "pretrained": False})
        encoder_model: Any = timm_model(name, out_indices=indices, **options)
        self.encoder: nn.Module = encoder_model
        self.channels = [info["num_chs"] for info in encoder_model.feature_info.get_dicts()]
        grids = [grid_of(shape, width) for shape, width in zip(shapes, self.channels, strict=True)]
        names = tuple(map(str, range(len(grids))))
        maps = Maps(names, tuple(self.channels), tuple(grids), (img_size, img_size), num_classes)
        self.segment = HEADS[task].plan_head(maps, **(head or {}))
        self.head = self.segment.build()

    def forward(self, x: Any, targets: Any = None) -> Any:
        """What the head answers; its losses, where it is the one that needs targets."""
        images, text = ImageText.split(x)
        maps = [channels_first(x, width) for x, width in zip(self.encoder(images), self.channels, strict=True)]
        chosen = [*(maps[int(name)] for name in self.segment.inputs), *text]
        return self.head(chosen) if targets is None else self.head(chosen, targets)

    def head_cost(self) -> Cost:
        return self.segment.cost()


def timm_model(name: str, **options: Any) -> nn.Module:
    import timm  # late: it takes longer to import than torch

    return timm.create_model(name, **options)


def choose_maps(name: str, images: Tensor, **options: Any) -> tuple[tuple[int, ...], list[torch.Size]]:
    """Which maps of a model are read, by their indices from the end, and their shapes; nothing is computed for that."""
    with torch.device("meta"):
        model: Any = timm_model(name, **options).eval()
    shapes = [x.shape for x in model(images)]
    reductions = [info["reduction"] for info in model.feature_info.get_dicts()]
    kept = 1 if len(set(reductions)) == 1 else min(MAPS, len(shapes))
    return tuple(range(-kept, 0)), shapes[-kept:]


def grid_of(shape: torch.Size, width: int) -> tuple[int, int]:
    """Rows and columns of a map, whose channels may come last."""
    return (shape[2], shape[3]) if shape[1] == width else (shape[1], shape[2])


def channels_first(x: Tensor, width: int) -> Tensor:
    return x if x.shape[1] == width else x.permute(0, 3, 1, 2)
