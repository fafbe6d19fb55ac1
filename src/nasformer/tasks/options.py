"""Options of tasks: which one, and how the masks of a segmentation are stored and augmented. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nasformer.errors import UserError
from nasformer.utils.units import check_range

Layout = Literal["auto", "folders", "voc", "ade20k", "cityscapes"]

MOST_ID = 65535


@dataclass
class SegmentOptions:
    """Masks of `--task segment`."""

    layout: Layout = "auto"
    """how images and masks lie in the folder: folders (train, val and test with images and masks in each, or images
    and masks with these in each, or without), voc, ade20k, cityscapes; auto: by what is there"""
    labels: str = ""
    """names of the mask's ids: a text file whose line N names id N - 1, or a JSON file such as {"0": "sky"}; empty:
    classes.txt or labels.json in the folder, or the layout's own names, or the ids themselves"""
    ignore: str = "255"
    """ids of pixels that are left out of losses and scores, such as 11,255"""
    decoder_dim: int | None = None
    """channels within the UPerNet head; None: as in the model to start from, or 256"""
    scale_min: float = 0.5
    """large-scale jitter: an image that is fitted into the crop is shrunk down to this in training, and padded"""
    scale_max: float = 2.0
    """large-scale jitter: and enlarged up to this, of which a random part is seen"""

    def __post_init__(self) -> None:
        check_range(self, "decoder_dim", 1, 4096, optional=True)
        check_range(self, "scale_min", above=0)
        check_range(self, "scale_max", above=0)
        if self.scale_min > self.scale_max:
            raise UserError(f"scale_min is {self.scale_min}, above scale_max {self.scale_max}; exchange them")
        self.ignored_ids()

    def ignored_ids(self) -> list[int]:
        """
        >>> SegmentOptions(ignore="11,255").ignored_ids()
        [11, 255]
        """
        words = [word.strip() for word in str(self.ignore).split(",") if word.strip()]
        if not all(word.isdecimal() and int(word) <= MOST_ID for word in words):
            raise UserError(f"ignore is {self.ignore!r}; give ids from 0 to {MOST_ID} such as 11,255")
        return [int(word) for word in words]


@dataclass
class TaskOptions:
    """What is learned."""

    task: Literal["classify", "segment"] = "classify"
    """classify: one class an image; segment: one a pixel, from images with masks"""
    segment: SegmentOptions = field(default_factory=SegmentOptions)
