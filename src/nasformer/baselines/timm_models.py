"""Models of timm for images of any size, channels and classes, with fresh weights, and what they cost."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nasformer.errors import UserError

PREFIX = "timm:"


def names_of(asked: str) -> list[str]:
    """The timm models that a user asks for as baselines.

    >>> names_of("timm:resnet18, timm:vit_tiny_patch16_224")
    ['resnet18', 'vit_tiny_patch16_224']
    """
    words = list(dict.fromkeys(word.strip() for word in asked.split(",") if word.strip()))
    names = [word.removeprefix(PREFIX) for word in words]
    for word, name in zip(words, names, strict=True):
        if word == name:
            raise UserError(f"baseline {word!r} is not known; write timm:NAME, several as timm:NAME,timm:NAME")
        if not timm.is_model(name):
            close = ", ".join(get_close_matches(name, timm.list_models(), 3, 0)) or "none"
            raise UserError(f"timm has no model {name!r}; the nearest names are {close}")
    return names


def build_timm(
    name: str,
    img_size: int,
    in_chans: int,
    num_classes: int,
    drop_path_rate: float = 0.0,
    device: str | torch.device = "cpu",
    **options: Any,
) -> nn.Module:
    """The model with fresh weights; one that is made for a fixed image size is made for this one.

    Stochastic depth is for models that have it.
    """
    asked = {"in_chans": in_chans, "num_classes": num_classes, "pretrained": False, **options}
    size = {"img_size": img_size}  # most convolutional nets take any size and know no such option
    depth = {"drop_path_rate": drop_path_rate} if drop_path_rate else {}
    with torch.device(device):
        for known in (size | depth, depth, size):
            try:
                return timm.create_model(name, **asked, **known)
            except TypeError:
                continue
        return timm.create_model(name, **asked)


def count(model: nn.Module, img_size: int, in_chans: int) -> dict[str, int]:
    """Parameters, and MACs of one image: half the operations that torch's counter sees. The model must be on meta."""
    model.eval().requires_grad_(False)  # rather than no_grad, under which the counter fails on nested inputs
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, in_chans, img_size, img_size, device="meta"))
    params = sum(parameter.numel() for parameter in model.parameters())
    return {"params": params, "macs": counter.get_total_flops() // 2}
