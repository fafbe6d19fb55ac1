"""Models of other tasks than classification: a backbone without its classifier, and a head that reads its feature maps.

The head is one more segment of the plan, which names the segments that it reads. So a supernet slices its weights, its
cost counts in budgets, and a model with it is stored like any other. At the end: the same heads on models of timm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import torch
from torch import Tensor, nn

from nasformer.data.loaders import ImageText
from nasformer.errors import UserError
from nasformer.layers.basic import Cost
from nasformer.layers.segmentation import DeepLabV3Head, DeepLabV3PlusHead, PanopticHead, UPerNetHead
from nasformer.layers.stem import Grid, half_grid, to_2tuple
from nasformer.layers.vqa import VQAHead
from nasformer.models.base import Backbone, FeatureBackbone, Segment, keyword_options
from nasformer.models.registry import OF_PLUGINS, list_families
from nasformer.models.sharing import SharingRules
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.utils.schema import from_json
from nasformer.utils.units import check_number


@dataclass(frozen=True)
class Maps:
    """The maps of a backbone that a head reads, the finest first, and the size of its output.

    Args:
        inputs: The segments that give them.
        channels, grids: Of each map.
        img_size: Rows and columns of the images.
    """

    inputs: tuple[str, ...]
    channels: tuple[int, ...]
    grids: tuple[Grid, ...]
    img_size: Grid
    num_classes: int

    def segment(self, layer: type[nn.Module], **options: Any) -> Segment:
        """A head on these maps."""
        facts = {name: value for name, value in vars(self).items() if name != "inputs"}
        return Segment.of("head", layer, inputs=self.inputs, **facts, **options)  # type: ignore[arg-type]

    def only(self, *numbers: int) -> Maps:
        """A selection of the maps; one that is named twice comes once."""
        chosen = sorted({range(len(self.inputs))[number] for number in numbers})
        inputs, channels, grids = (tuple(part[number] for number in chosen) for part in self.of_each)
        return replace(self, inputs=inputs, channels=channels, grids=grids)

    @property
    def of_each(self) -> tuple[tuple[Any, ...], ...]:
        return self.inputs, self.channels, self.grids


class DenseModel(FeatureBackbone):
    """A backbone of another family with the head of a task; `dense_family` makes the classes.

    A subclass has `task` and `plan_head`, whose keyword arguments are options of the model.
    """

    backbone: ClassVar[type[FeatureBackbone]]

    @classmethod
    def plan_head(cls, maps: Maps) -> Segment:
        raise NotImplementedError(f"{cls.__name__} has no head")

    @classmethod
    def plan(cls, arch: Arch, **options: Any) -> list[Segment]:  # type: ignore[override]
        """The plan of the backbone, with the head of the task in place of norm and classifier."""
        of_head, others = cls.split_options(options)
        others = cls.backbone.default_options() | others
        segments = cls.backbone.plan(arch, **others)[:-2]
        taps = last_of_stages(segments)
        channels, grids = zip(*(map_shape(segment) for segment in taps), strict=True)
        inputs = tuple(segment.name for segment in taps)
        maps = Maps(inputs, channels, grids, to_2tuple(others["img_size"]), others["num_classes"])
        return [*segments, cls.plan_head(maps, **of_head)]

    @classmethod
    def head_options(cls) -> dict[str, Any]:
        """The options of the head with their defaults."""
        return keyword_options(cls.plan_head)

    @classmethod
    def split_options(cls, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of the head, and those of the backbone."""
        names = cls.head_options()
        of_head = {name: value for name, value in options.items() if name in names}
        return of_head, {name: value for name, value in options.items() if name not in names}

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        return cls.backbone.default_options() | cls.head_options()

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        of_head, others = cls.split_options(options)
        hints = get_type_hints(cls.plan_head)
        for name, value in of_head.items():
            from_json(hints[name], value, name, "give another value")
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_number(name, value, 1)
        return {**cls.backbone.check_options(others), **of_head}

    @classmethod
    def sharing(cls, **options: Any) -> SharingRules:
        return cls.backbone.sharing(**cls.split_options(options)[1])

    @classmethod
    def limits(cls, **options: Any) -> Mapping[str, tuple[float | None, float | None]]:
        return cls.backbone.limits(**cls.split_options(options)[1])

    def forward(self, x: Tensor | ImageText, outputs: dict[str, Tensor] | None = None, targets: Any = None) -> Any:
        """The output of the head, such as logits of every pixel; with targets, the losses of a head that needs them."""
        x, text = ImageText.split(x)
        maps, start = list[Tensor](), 0
        for name in self.inputs[self.segment_names[-1]]:
            end = self.segment_names.index(name) + 1
            x = self.run_segments(self.segment_names[start:end], x, outputs)
            maps.append(x)
            start = end
        return self.head([*maps, *text]) if targets is None else self.head([*maps, *text], targets)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Takes another image size; the weights of the head do not depend on it."""
        super().set_input_size(img_size)
        head = self.plan(self.arch, **self.options)[-1].build().to(next(self.parameters()).device)
        head.load_state_dict(self.head.state_dict())
        self.head = head.train(self.training)


def last_of_stages(segments: list[Segment]) -> list[Segment]:
    """The last block of each stage, finest map first; of a plain network its last block alone."""
    blocks = [segment for segment in segments if "blocks." in segment.name] or segments
    return list({segment.name.rpartition("blocks.")[0]: segment for segment in blocks}.values())


def map_shape(segment: Segment) -> tuple[int, Grid]:
    """Channels and grid of the output of a block."""
    options: dict[str, Any] = dict(segment.options)
    dim = options.get("out_dim", options.get("embed_dim"))
    if dim is None or "grid" not in options:
        raise UserError(f"{segment.name} has no options embed_dim and grid, so it gives no map for a dense task")
    return dim, half_grid(options["grid"]) if options.get("stride") == 2 else options["grid"]


HEADS: dict[str, type[DenseModel]] = {}
"""Models of dense tasks, by the name of the task."""


def register_head(model: type[DenseModel]) -> type[DenseModel]:
    """Registers the model of a dense task, for every family."""
    HEADS[model.task] = model
    return model


@register_head
class SegmentationModel(DenseModel):
    """A backbone with UPerNet or DeepLab: logits of every pixel, [batch, classes, rows, columns]."""

    task = "segment"

    @classmethod
    def plan_head(
        cls,
        maps: Maps,
        *,
        head: Literal["upernet", "deeplabv3", "deeplabv3plus"] = "upernet",
        decoder_dim: int = 256,
    ) -> Segment:
        if head == "deeplabv3":
            return maps.only(-1).segment(DeepLabV3Head, dim=decoder_dim)
        if head == "deeplabv3plus":
            return maps.only(0, -1).segment(DeepLabV3PlusHead, dim=decoder_dim)
        return maps.segment(UPerNetHead, dim=decoder_dim)


@register_head
class PanopticModel(DenseModel):
    """A backbone with Panoptic-DeepLab: logits of every pixel, heat of centres, offsets to them."""

    task = "panoptic"

    @classmethod
    def plan_head(cls, maps: Maps, *, num_things: int = 1, decoder_dim: int = 256) -> Segment:
        return maps.only(0, min(1, len(maps.inputs) - 1), -1).segment(
            PanopticHead, dim=decoder_dim, num_things=num_things
        )


@register_head
class VQAModel(DenseModel):
    """A backbone with a text transformer: logits of answers to questions about images."""

    task = "vqa"
    classifiers = ("head.fc.", "head.words.")

    @classmethod
    def plan_head(
        cls,
        maps: Maps,
        *,
        decoder_dim: int = 256,
        depth: int = 2,
        num_maps: int = 2,
        vocab_size: int = 2,
        max_words: int = 20,
        text_dim: int | None = None,
    ) -> Segment:
        sizes = {"depth": depth, "vocab_size": vocab_size, "max_words": max_words}
        sizes |= {"text_dim": text_dim} if text_dim else {}
        last = range(-min(num_maps, len(maps.inputs)), 0)
        return maps.only(*last).segment(VQAHead, dim=decoder_dim, **sizes)


@register_head
class DetectionModel(DenseModel):
    """A backbone with Mask R-CNN or a cascade of it: losses with targets, else the detections in each image."""

    task = "detect"
    classifiers = tuple(
        f"head.roi.{stage}{part}_predictor."
        for stage in ("", "stages.0.", "stages.1.", "stages.2.")
        for part in ("box", "mask")
    )

    @classmethod
    def plan_head(
        cls,
        maps: Maps,
        *,
        head: Literal["mask-rcnn", "cascade"] = "mask-rcnn",
        decoder_dim: int = 256,
        masks: bool = True,
    ) -> Segment:
        from nasformer.layers.detection import DetectionHead  # torchvision's models take a while to import

        return maps.segment(DetectionHead, dim=decoder_dim, cascade=head == "cascade", masks=masks)


# Families by task

_made: dict[tuple[str, type[Backbone]], type[DenseModel]] = {}


def dense_family(family: type[Backbone], task: str) -> type[Backbone]:
    """The family with the head of a task in place of its classifier; one class for each, made once."""
    family = family.backbone if issubclass(family, DenseModel) else family
    if (task, family) not in _made:
        if not issubclass(family, FeatureBackbone):
            raise UserError(
                f"the family {family.family} has no feature maps, which --task {task} needs; take another one"
            )
        if task not in HEADS:
            raise UserError(f"the task {task!r} has no head; {OF_PLUGINS}")
        head = HEADS[task]
        facts = {"family": f"{task}:{family.family}", "backbone": family, "__doc__": head.__doc__}
        _made[task, family] = type(f"{head.__name__}Of{family.__name__}", (head, family), facts)
    return _made[task, family]


def head_option_names() -> set[str]:
    """The names of the options of all heads."""
    return {name for model in HEADS.values() for name in model.head_options()}


def dense_space(space: Space, task: str, **options: Any) -> Space:
    """The same archs as backbones of another task's models; their costs count the head.

    Args:
        options: Of the head; those that are None stay as they are.
    """
    others = set() if space.model.task == task else head_option_names()  # those of another task's head
    kept = {name: value for name, value in space.options.items() if name not in others}
    space = replace(space, model=dense_family(space.model, task), options=kept)
    return space.with_options(**{name: value for name, value in options.items() if value is not None})


def backbone_space(space: Space) -> Space:
    """The same archs as classifiers, in place of the models of another task; costs are without its head."""
    if space.model.task == "classify":
        return space
    kept = {name: value for name, value in space.options.items() if name not in head_option_names()}
    return replace(space, model=space.model.backbone, options=kept)  # type: ignore[attr-defined]


def saved_family(name: str, path: Path) -> type[Backbone]:
    """The family that a file names, perhaps with a head for another task."""
    families = list_families()
    task, _, base = name.rpartition(":")
    if base not in families or (task and task not in HEADS):
        raise UserError(f"{path} names the family {name!r}; known: {', '.join(families)}; {OF_PLUGINS}")
    return dense_family(families[base], task) if task else families[base]


# Models of timm with the head of a task: what our nets are compared with by the same recipe.

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

    def forward(self, x: Tensor | ImageText, targets: Any = None) -> Any:
        """The output of the head; with targets, the losses of a head that needs them."""
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
    """Which maps of a model are read, by their indices from the end, and their shapes; nothing is computed."""
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
