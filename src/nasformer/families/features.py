"""What families have in common that hand out feature maps as timm's models do.

Maps, pruning and image size follow from the plan and from `feature_info`, whatever the stages of a family are.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families.backbone import Backbone, detach


class FeatureBackbone(Backbone):
    """A stem, blocks (perhaps in stages), a norm and a head. A family adds `plan`, `feature_info` and `as_map`."""

    norm: nn.Module

    @property
    def num_features(self) -> int:
        return self.head.embed_dim

    embed_dim = head_hidden_size = num_features

    @property
    @abstractmethod
    def feature_info(self) -> list[dict[str, Any]]:
        """For each map that can be taken: channels, reduction, and the block behind which it is taken."""

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What lies at the chosen places of `feature_info` (all, the last n, or a list), as maps or as tokens.

        The final norm fits what has the final resolution: `norm` leaves maps of earlier stages as they are.
        """
        infos, maps, last = self.feature_info, [], self.feature_info[-1]
        wanted = {infos[index]["module"] for index in chosen(indices, len(infos))}
        normed = {info["module"] for info in infos if info["reduction"] == last["reduction"]}
        for name in self.segment_names[: self.segment_names.index(last["module"]) + 1]:
            x = self.run([name], x)
            if name in wanted:
                maps.append(self.as_map(name, self.norm(x) if norm and name in normed else x, output_fmt))
            if stop_early and len(maps) == len(wanted):
                break
        return maps if intermediates_only else (self.norm(x) if name in normed else x, maps)

    @abstractmethod
    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        """What a block gave as a map ("NCHW") or as its positions in a row ("NLC")."""

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops what lies behind the last map wanted, the head, and a norm that does not fit that map."""
        infos = self.feature_info
        kept = chosen(indices, len(infos))
        last, width = infos[max(kept)], self.num_features
        if not prune_head and last["num_chs"] != width:
            raise UserError(f"the head reads {width} features, {last['module']} gives {last['num_chs']}; prune it too")
        end = self.segment_names.index(last["module"]) + 1
        *dropped, norm, head = self.segment_names[end:]
        for name in dropped:
            detach(self, name)
        self.segment_names = [*self.segment_names[:end], norm, head]
        if prune_norm or last["num_chs"] != width:
            self.norm = nn.Identity()
        self.head.embed_dim = last["num_chs"]
        if prune_head:
            self.reset_classifier(0)
        return kept

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Goes on at another image size: every layer takes its new grid, absolute positions are resampled."""
        for segment in self.plan(self.arch, **{**self.options, "img_size": img_size}):
            grid: Any = dict(segment.options).get("grid")
            if grid is not None and segment.name in self.segment_names:
                layer: Any = self.get_submodule(segment.name)
                layer.set_grid(grid)
        self.options["img_size"] = img_size


def chosen(indices: int | list[int] | None, count: int) -> list[int]:
    """Which of `count` maps are meant: all, the last n, or a list that may count from the end.

    >>> chosen(None, 3), chosen(2, 3), chosen([0, -1], 3)
    ([0, 1, 2], [1, 2], [0, 2])
    """
    if isinstance(indices, int):
        return list(range(count))[-indices:]
    return [range(count)[index] for index in indices or range(count)]
