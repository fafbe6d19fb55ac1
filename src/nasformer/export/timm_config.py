"""What timm wants to find in a model's config.json, so that it can rebuild the model from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from nasformer.families.backbone import Backbone
from nasformer.layers.grid import both_sides
from nasformer.timm_plugin import timm_name

TIMM_KEYS = ("architecture", "num_classes", "num_features", "model_args", "label_names", "pretrained_cfg")


def timm_config(model: Backbone, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Name, arguments and image preprocessing under timm's keys.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> config = timm_config(space.build(space.sample()), {})
    >>> config["architecture"], config["pretrained_cfg"]["input_size"]
    ('nasformer_autoformer', [3, 32, 32])
    """
    labels = {"label_names": list(facts["classes"])} if "classes" in facts else {}
    return {
        "architecture": timm_name(model.family),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": {"arch": model.arch.to_dict(), **model.options},
        **labels,
        "pretrained_cfg": pretrained_config(model.options, facts, first_convolution(model)),
    }


def pretrained_config(
    options: Mapping[str, Any], facts: Mapping[str, Any] | None = None, first_conv: str | None = None
) -> dict[str, Any]:
    """What timm knows about a model beside its arguments; from the model's options and facts about it."""
    facts = facts or {}
    return {
        "input_size": [options["in_chans"], *both_sides(options["img_size"])],
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": facts.get("crop_pct", 1.0),
        **{name: list(facts[name]) for name in ("mean", "std") if name in facts},
        "num_classes": options["num_classes"],
        # timm turns filters for 3 channels into filters for others, and believes that all weights have 3
        "first_conv": first_conv if options["in_chans"] == 3 else None,
        "classifier": "head.fc",
    }


def first_convolution(model: nn.Module) -> str | None:
    return next((name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)


def input_shape(model: Backbone) -> tuple[int, int, int]:
    """Channels, rows and columns of the images that a model takes."""
    return (model.options["in_chans"], *both_sides(model.options["img_size"]))
