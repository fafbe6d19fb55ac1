"""Options of data: which images, and how training images are varied. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nasformer.errors import UserError


@dataclass(frozen=True)
class AugmentConfig:
    """How training images are varied. Evaluation never is."""

    crop: Literal["none", "pad", "resized"] = "pad"
    """none; pad: shift by up to `padding` pixels; resized: a random part, scaled to the whole"""
    padding: int = 4
    """largest shift of crop=pad in pixels; what comes into view has the mean colour"""
    hflip: float = 0.5
    """probability of mirroring left to right"""
    rotate: float = 0.0
    """largest rotation in degrees"""
    randaugment: str = ""
    """RandAugment as timm writes it, such as rand-m9-mstd0.5-inc1"""
    color_jitter: float = 0.0
    """largest change of brightness, contrast and saturation; without effect beside randaugment, as in timm"""
    erasing: float = 0.0
    """probability of filling a box with noise"""
    mixup: float = 0.0
    """mixup's alpha; 0 is off"""
    cutmix: float = 0.0
    """cutmix's alpha; 0 is off"""
    mix_prob: float = 1.0
    """probability of mixing a batch at all, if mixup or cutmix is on"""
    switch_prob: float = 0.5
    """probability of cutmix, if both are on"""
    smoothing: float = 0.1
    """share of each target that is spread over all classes"""

    def __post_init__(self) -> None:
        for name in ("hflip", "erasing", "mix_prob", "switch_prob", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}; give a number from 0 to 1")
        for name in ("padding", "rotate", "color_jitter", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}; give 0 or more")
        if self.crop not in ("none", "pad", "resized"):
            raise UserError(f"crop is {self.crop!r}; give none, pad or resized")
        if self.randaugment:
            from nasformer.data.randaugment import RandAugment

            RandAugment.parse(self.randaugment)
