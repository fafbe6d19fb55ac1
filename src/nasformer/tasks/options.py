"""Options of tasks: which one, and how the masks of a segmentation are stored and augmented. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nasformer.errors import UserError
from nasformer.utils.units import check_range

Layout = Literal["auto", "folders", "voc", "ade20k", "cityscapes"]

MOST_ID = 65535
MOST_SCALE = 8


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
    head: Literal["upernet", "deeplabv3", "deeplabv3plus"] | None = None
    """upernet; deeplabv3, which reads the coarsest map alone; deeplabv3plus, which adds the finest one; None: as in
    the model to start from, or upernet"""
    decoder_dim: int | None = None
    """channels within the head; None: as in the model to start from, or 256"""
    scale_min: float = 0.5
    """large-scale jitter: an image that is fitted into the crop is shrunk down to this in training, and padded"""
    scale_max: float = 2.0
    """large-scale jitter: and enlarged up to this, of which a random part is seen"""
    test_scales: str = "1"
    """multi-scale test of `evaluate`: sizes of the image as shares of the usual one, such as 0.5,0.75,1,1.25; the
    probabilities are averaged"""
    test_flip: bool = False
    """`evaluate` averages over the mirrored image as well"""

    def __post_init__(self) -> None:
        check_range(self, "decoder_dim", 1, 4096, optional=True)
        check_range(self, "scale_min", above=0)
        check_range(self, "scale_max", above=0)
        if self.scale_min > self.scale_max:
            raise UserError(f"scale_min is {self.scale_min}, above scale_max {self.scale_max}; exchange them")
        self.ignored_ids()
        self.scales()

    def scales(self) -> list[float]:
        """
        >>> SegmentOptions(test_scales="0.5,1").scales()
        [0.5, 1.0]
        """
        try:
            scales = [float(word) for word in str(self.test_scales).split(",")]
        except ValueError:
            scales = []
        if not scales or not all(0 < scale <= MOST_SCALE for scale in scales):
            raise UserError(f"test_scales is {self.test_scales!r}; give numbers above 0 such as 0.5,1,1.5")
        return scales

    @property
    def tests_several(self) -> bool:
        """Whether an evaluation averages over several views of an image."""
        return self.scales() != [1.0] or self.test_flip

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
