"""Families for dense tasks: a backbone without its classifier, and a head that reads its feature maps.

The head is one more segment of the plan, which names the segments that it reads. So a supernet slices its weights, its
cost counts in budgets, and a model with it is stored like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from nasformer.errors import UserError
from nasformer.families.base import Backbone, FeatureBackbone, Segment
from nasformer.families.registry import OF_PLUGINS, list_families
from nasformer.families.space import Space
from nasformer.layers.segmentation import DeepLabV3Head, DeepLabV3PlusHead, UPerNetHead
from nasformer.layers.stem import Grid, half_grid, to_2tuple
from nasformer.space.arch import Arch
from nasformer.utils.units import check_number

SEGMENT = "segment:"
"""What the names of families for segmentation begin with."""
DECODERS: dict[str, Any] = {
    "upernet": UPerNetHead,
    "deeplabv3": DeepLabV3Head,
    "deeplabv3plus": DeepLabV3PlusHead,
}
OWN_OPTIONS: dict[str, Any] = {"decoder": "upernet", "decoder_dim": 256}
"""Options of segmentation models beside those of their backbone."""


class SegmentationModel(FeatureBackbone):
    """A backbone of another family with a segmentation head; `segmentation_family` makes the classes."""

    classifies = False
    backbone: ClassVar[type[FeatureBackbone]]

    @classmethod
    def plan(cls, arch: Arch, **options: Any) -> list[Segment]:  # type: ignore[override]
        """The plan of the backbone, with the segmentation head in place of norm and classifier.

        Its options are the backbone's, `decoder` (one of DECODERS) and `decoder_dim`, the channels within the head.
        """
        options = cls.default_options() | options
        segments = cls.backbone.plan(arch, **without_own(options))[:-2]
        taps = maps_for(options["decoder"], last_of_stages(segments))
        channels, grids = zip(*(map_shape(segment) for segment in taps), strict=True)
        head = Segment.of(
            "head",
            DECODERS[options["decoder"]],
            inputs=tuple(segment.name for segment in taps),
            channels=channels,
            grids=grids,
            img_size=to_2tuple(options["img_size"]),
            num_classes=options["num_classes"],
            dim=options["decoder_dim"],
        )
        return [*segments, head]

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        return cls.backbone.default_options() | OWN_OPTIONS

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        checked = cls.backbone.check_options(without_own(options))
        if (decoder := options.get("decoder", "upernet")) not in DECODERS:
            raise UserError(f"decoder is {decoder!r}; there are: {', '.join(DECODERS)}")
        if "decoder_dim" in options:
            check_number("decoder_dim", options["decoder_dim"], 1)
            checked["decoder_dim"] = int(options["decoder_dim"])
        return checked | ({"decoder": decoder} if "decoder" in options else {})

    @classmethod
    def sharing(cls, **options: Any) -> Any:
        return cls.backbone.sharing(**without_own(options))

    @classmethod
    def limits(cls, **options: Any) -> Any:
        return cls.backbone.limits(**without_own(options))

    def forward(self, x: Tensor, outputs: dict[str, Tensor] | None = None) -> Tensor:
        """Logits of every pixel, [batch, classes, rows, columns]."""
        maps, start = list[Tensor](), 0
        for name in self.inputs[self.segment_names[-1]]:
            end = self.segment_names.index(name) + 1
            x = self.run_segments(self.segment_names[start:end], x, outputs)
            maps.append(x)
            start = end
        return self.head(maps)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Takes another image size; the weights of the head do not depend on it."""
        super().set_input_size(img_size)
        head = self.plan(self.arch, **self.options)[-1].build().to(next(self.parameters()).device)
        head.load_state_dict(self.head.state_dict())
        self.head = head.train(self.training)


def without_own(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the backbone."""
    return {name: value for name, value in options.items() if name not in OWN_OPTIONS}


def maps_for(decoder: str, taps: list[Segment]) -> list[Segment]:
    """The segments whose maps a head reads: UPerNet all, DeepLabV3 the coarsest, DeepLabV3+ the finest as well."""
    finest = {"upernet": taps[:-1], "deeplabv3": [], "deeplabv3plus": taps[:-1][:1]}
    return [*finest[decoder], taps[-1]]


def last_of_stages(segments: list[Segment]) -> list[Segment]:
    """The last block of each stage, finest map first; of a plain network its last block alone."""
    blocks = [segment for segment in segments if "blocks." in segment.name] or segments
    return list({segment.name.rpartition("blocks.")[0]: segment for segment in blocks}.values())


def map_shape(segment: Segment) -> tuple[int, Grid]:
    """Channels and grid of what a block gives."""
    options: dict[str, Any] = dict(segment.options)
    dim = options.get("out_dim", options.get("embed_dim"))
    if dim is None or "grid" not in options:
        raise UserError(f"{segment.name} has no options embed_dim and grid, so it gives no map for a dense task")
    return dim, half_grid(options["grid"]) if options.get("stride") == 2 else options["grid"]


_made: dict[type[Backbone], type[SegmentationModel]] = {}


def segmentation_family(family: type[Backbone]) -> type[SegmentationModel]:
    """The family with a segmentation head in place of its classifier; one class for each, made once."""
    if family in _made:
        return _made[family]
    if not issubclass(family, FeatureBackbone):
        raise UserError(f"the family {family.family} has no feature maps, which segmentation needs; take another one")
    facts = {"family": f"{SEGMENT}{family.family}", "backbone": family, "__doc__": SegmentationModel.__doc__}
    _made[family] = type(f"Segmentation{family.__name__}", (SegmentationModel, family), facts)
    return _made[family]


def segmentation_space(space: Space) -> Space:
    """The same archs as backbones of segmentation models; their costs count the head."""
    if issubclass(space.model, SegmentationModel):
        return space
    return replace(space, model=segmentation_family(space.model))


def saved_family(name: str, path: Path) -> type[Backbone]:
    """The family that a file names, perhaps with a head for another task."""
    families = list_families()
    base = name.removeprefix(SEGMENT)
    if base not in families:
        raise UserError(f"{path} names the family {name!r}; known: {', '.join(families)}; {OF_PLUGINS}")
    return segmentation_family(families[base]) if name != base else families[base]
