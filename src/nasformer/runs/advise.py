"""Advice before a run: which road to a model suits the images, by what was measured on others."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nasformer.data.files import ImageFiles
from nasformer.data.sources import open_data
from nasformer.errors import UserError
from nasformer.latency.profile import Profile
from nasformer.results.verdict import Evidence, Road, load_evidence
from nasformer.runs.options import BUDGET, AdviseCommand

PHOTO_SIDE = 64
"""Colour images from this side on are taken for photos, which pretrained nets know."""
FEW_IMAGES = 200
"""Below so many training images nothing was measured."""


@dataclass(frozen=True)
class ImageFacts:
    """What the advice depends on."""

    train: int
    classes: int
    img_size: int
    in_chans: int

    @property
    def are_photos(self) -> bool:
        return self.in_chans == 3 and self.img_size >= PHOTO_SIDE

    def __str__(self) -> str:
        colour = "colour" if self.in_chans == 3 else "grey"
        return f"{self.train:,} training images, {self.classes} classes, {colour}, {self.img_size} px"


@dataclass(frozen=True)
class Advice:
    """The road to take, why, and the commands that take it.

    Args:
        pays: Whether a search was shown to beat random nets of equal cost on images like these.
        evidence: The measurements behind it.
    """

    images: ImageFacts
    device: str
    road: Road
    pays: bool
    sentences: list[str]
    commands: list[str]
    evidence: list[Evidence]


def advise(command: AdviseCommand) -> Advice:
    """Reads the images' size, the device and the evidence."""
    images = image_facts(command)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    road: Road = "pretrained" if images.are_photos else "supernet"
    evidence = nearest([item for item in load_evidence() if item.road == road], images)
    shown = [item for item in evidence if item.over_random and item.over_random.is_shown]
    sentences = [*reasons(road, evidence), *cautions(images, device, evidence)]
    return Advice(images, device, road, bool(shown), sentences, commands(command, images, bool(shown)), evidence)


def image_facts(command: AdviseCommand) -> ImageFacts:
    """The size of the dataset; files are counted without decoding them."""
    for name, value in command.limits().items():
        if not str(value).endswith("%"):  # a quantity that cannot be read is refused before images are
            command.quantity(name, value)
    if command.latency_profile:
        Profile.load(command.latency_profile)  # the commands that are advised will ask for it
    if not command.data:
        raise UserError("say which images the advice is for: nasformer advise --data FOLDER")
    data = open_data(command.data, root=command.data_root, quiet=True)
    if isinstance(data, ImageFiles):
        return ImageFacts(len(data.splits.train), len(data.splits.classes), data.size, data.channels)
    return ImageFacts(len(data.train), data.num_classes, data.img_size, data.in_chans)


def nearest(evidence: Sequence[Evidence], images: ImageFacts) -> list[Evidence]:
    """The measurements on the set whose images are nearest in number and size, by ratio."""
    if not evidence:
        return []
    ratios = {item.data: (item.images / max(1, images.train), item.img_size / images.img_size) for item in evidence}
    distance = {name: sum(abs(math.log(ratio)) for ratio in pair) for name, pair in ratios.items()}
    best = min(distance, key=distance.__getitem__)
    return [item for item in evidence if item.data == best]


def reasons(road: Road, evidence: Sequence[Evidence]) -> list[str]:
    if road == "pretrained":
        first = "Start from a pretrained net and cut it to your budget: these are photos, which such nets know."
    else:
        first = "Pretrained nets of photos have little to offer for such images: train from scratch."
    return [first, *(sentence(item) for item in evidence)]


def sentence(item: Evidence) -> str:
    """What one record says."""
    gains = [f"{item.over_random} points over random nets" if item.over_random else ""]
    gains += [f"{item.over_handmade} over {item.handmade}" if item.over_handmade else ""]
    time = f", {item.minutes:g} GPU minutes" if item.minutes else ""
    measured = "; ".join(gain for gain in gains if gain)
    return f"Measured on {item.data} ({item.images:,} images) with {item.method}, {item.budget}: {measured}{time}."


def cautions(images: ImageFacts, device: str, evidence: Sequence[Evidence]) -> list[str]:
    found = []
    if not any(item.over_random and item.over_random.is_shown for item in evidence):
        found.append("No search was shown to pay there: a random or hand-made net of your budget may do as well.")
    if images.train < FEW_IMAGES:
        found.append(f"With {images.train} images nothing was measured; expect little of any training.")
    if device == "cpu":
        found.append("There is no GPU here: see `nasformer plan` for the time before you start.")
    return found


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def commands(command: AdviseCommand, images: ImageFacts, pays: bool) -> list[str]:
    """Commands of the road, with the user's budget."""
    limits = [word for name in BUDGET if getattr(command, name) for word in (flag(name), str(getattr(command, name)))]
    data = ["--data", command.data]
    if images.are_photos:
        source = ["--from", "timm:deit_tiny_patch16_224", *data, *(limits or ["--max-macs", "50%"])]
        return [shlex.join(["nasformer", "run", *source, "--out", "runs/advised"])]
    space = ["--space", "autoformer-micro" if images.img_size < PHOTO_SIDE else "autoformer-tiny", *data, *limits]
    other = [] if pays else ["--baseline", "resnet18"]
    return [
        shlex.join(["nasformer", "plan", *space]),
        shlex.join(["nasformer", "run", *space, *other, "--out", "runs/advised"]),
    ]
