"""Options of data: which images, how many are held out, and how training images are augmented. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from nasformer.errors import UserError
from nasformer.utils.units import OptionGroup, check_range, check_seed, check_threads

MOST_WORKERS = 1024
MAX_BAD = 0.01
"""More than one unreadable image in a hundred is seldom bad luck: the disk, the download or the format is wrong."""


@dataclass
class DataOptions(OptionGroup):
    """Which images."""

    data: str = "digits"
    """digits, an .npz file of arrays, a folder of images, or a set by name: cifar10, cifar100, flowers102,
    stanford_cars, fgvc_aircraft, caltech101, oxford_pets, cub200"""
    data_root: str = "data"
    """the folder that holds the sets with a name"""
    download: bool = False
    """download a set with a name that is not there"""
    max_bad: float = MAX_BAD
    """share of the image files that may be unreadable: they are left out and listed in OUT/bad_images.txt; a single
    one is always allowed, unless this is 0"""
    holdout: float | str = 0.1
    """training images set aside for the search and never trained on: a share such as 0.1, images per class such as 25,
    or images in all such as 500images; 0: none"""
    train_images: int | None = None
    """train on so many images only, as many of each class as the others; None: on all that are not held out"""
    stream: bool | Literal["auto"] = "auto"
    """read image files from disk while training instead of keeping them in memory; auto: where they do not fit"""
    workers: int | Literal["auto"] = "auto"
    """threads that decode images when streaming; auto: one for each core"""
    calibration_images: int = 2048
    """training images on which batch norm is estimated anew for an arch that inherits its weights from a supernet"""
    seed: int = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    threads: int | Literal["auto"] = "auto"
    """threads of the CPU for each operation; auto: for a training one or all, whichever is faster in a
    short trial"""

    def __post_init__(self) -> None:
        check_range(self, "max_bad", 0, 1)
        check_range(self, "train_images", 1, whole=True, optional=True)
        if self.workers != "auto":
            check_range(self, "workers", 0, MOST_WORKERS, whole=True)
        check_range(self, "calibration_images", 1, whole=True)
        check_seed(self)
        check_threads(self)
        amount = HoldoutAmount.parse(self.holdout)
        if isinstance(self.holdout, str):  # one way of writing it, since run folders compare it
            in_all = amount.unit == "in all" and amount.value
            self.holdout = f"{amount.value} images" if in_all else amount.value or 0
        super().__post_init__()


@dataclass(frozen=True)
class HoldoutAmount:
    """How many training images are held out: a share of them, a number per class, or a number in all.

    >>> HoldoutAmount.parse(0.1), HoldoutAmount.parse("500images")
    (HoldoutAmount(value=0.1, unit='share'), HoldoutAmount(value=500, unit='in all'))
    """

    value: float
    unit: Literal["share", "per class", "in all"]

    @classmethod
    def parse(cls, text: float | str) -> HoldoutAmount:
        """From an option. A number up to 1 is a share; an integer of Python, or a number above 1, images per class."""
        in_all = re.fullmatch(r"\s*(\d+)\s*images?\s*", str(text))
        if in_all:
            return cls(int(in_all[1]), "in all")
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = -1.0
        if 0 <= value < 1 and not (isinstance(text, int) and value):
            return cls(value, "share")
        if value >= 1 and value.is_integer() and (value > 1 or isinstance(text, int)):
            return cls(int(value), "per class")
        raise UserError(
            f"holdout is {text!r}; give a share of the images below 1 such as 0.1, images per class such as 25, "
            "or images in all such as 500images"
        )


SHIFTED = 16
"""Images of this side or more are shifted by default; for smaller ones it looked harmful (docs/results.md)."""


@dataclass(frozen=True)
class AugmentOptions:
    """How training images are augmented; those of an evaluation never are."""

    crop: Literal["none", "pad", "resized"] = "pad"
    """none; pad: shift by up to `padding` pixels; resized: a random part, scaled to the whole"""
    padding: int | None = None
    """largest shift of crop=pad in pixels; what comes into view has the mean colour. None: an eighth of the image's
    side, at most 4; but 0 below 16 px, where one pixel is much"""
    hflip: float | None = None
    """probability of mirroring left to right. None: 0.5 for images in colour, 0 for grey ones, which are often digits
    or letters"""
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
        for name in ("erasing", "mix_prob", "switch_prob", "smoothing"):
            check_range(self, name, 0, 1)
        for name in ("rotate", "color_jitter", "mixup", "cutmix"):
            check_range(self, name, 0)
        check_range(self, "hflip", 0, 1, optional=True)
        check_range(self, "padding", 0, optional=True)
        if self.crop not in ("none", "pad", "resized"):
            raise UserError(f"crop is {self.crop!r}; give none, pad or resized")
        if self.randaugment:
            RandAugment.parse(self.randaugment)

    def for_images(self, img_size: int, in_chans: int) -> AugmentOptions:
        """The same options for images of this size and number of channels, with open ones chosen.

        >>> options = AugmentOptions().for_images(img_size=8, in_chans=1)
        >>> options.padding, options.hflip
        (0, 0.0)
        """
        shift = min(img_size // 8, 4) if img_size >= SHIFTED else 0
        padding = shift if self.padding is None else self.padding
        hflip = (0.0 if in_chans == 1 else 0.5) if self.hflip is None else self.hflip
        return replace(self, padding=padding, hflip=hflip)


FULL_MAGNITUDE = 10.0
"""RandAugment's magnitude that counts as full strength."""


@dataclass(frozen=True)
class RandAugment:
    """The settings of RandAugment, as a string such as "rand-m9-mstd0.5-inc1" gives them.

    >>> RandAugment.parse("rand-m9-mstd0.5-inc1")
    RandAugment(magnitude=9.0, noise=0.5, limit=10.0, layers=2, probability=0.5, increasing=True)
    """

    magnitude: float = FULL_MAGNITUDE
    noise: float = 0.0
    """standard deviation of the magnitude; above 100 it is uniform in 0..magnitude instead"""
    limit: float = FULL_MAGNITUDE
    layers: int = 2
    probability: float = 0.5
    increasing: bool = False
    """more is always stronger, for the operations where timm has two scales"""

    @staticmethod
    def parse(text: str) -> RandAugment:
        name, *words = text.split("-")
        pairs = [re.fullmatch(r"(m|mstd|mmax|n|p|inc)(\d+(?:\.\d+)?)", word) for word in words]
        if name != "rand" or not all(pairs):
            raise UserError(
                f"cannot read RandAugment {text!r}; write it like rand-m9-mstd0.5-inc1 (m mstd mmax n p inc)"
            )
        numbers = {pair[1]: float(pair[2]) for pair in pairs if pair}
        return RandAugment(
            magnitude=numbers.get("m", FULL_MAGNITUDE),
            noise=numbers.get("mstd", 0.0),
            limit=numbers.get("mmax", FULL_MAGNITUDE),
            layers=int(numbers.get("n", 2)),
            probability=numbers.get("p", 0.5),
            increasing=bool(numbers.get("inc", 0)),
        )
