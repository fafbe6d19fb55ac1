"""Advice before a run: which road to a model suits the images, the budget and the machine, judging by our benchmarks.

A road is open if it has a net that keeps the limits: costs are looked up, latencies are measured here. Gains come from
records, which are named; training time on a machine without a GPU is extrapolated from one step.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from nasformer.data.files import ImageFiles
from nasformer.data.sources import open_data
from nasformer.errors import UserError
from nasformer.latency.measure import time_archs
from nasformer.latency.profile import Profile
from nasformer.models.pretrained import source_space
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.results.verdict import Evidence, load_evidence
from nasformer.runs.finish import finish_recipes
from nasformer.runs.options import BUDGET, AdviseCommand
from nasformer.runs.pretrained import LONG, pretrained_recipe, shorter_options, stage_recipes
from nasformer.runs.run import TRAINING, training_work
from nasformer.search.options import is_share
from nasformer.train.recipe import Recipe
from nasformer.utils.progress import in_hours
from nasformer.utils.units import format_quantity

Way = Literal["pretrained", "supernet", "timm", "none"]
"""A pretrained net, cut; a supernet from scratch; the pretrained net as timm has it; nothing keeps the limits."""
PHOTO_SIDE = 32
"""Colour images from this side on are taken for photos, which pretrained nets know."""
LARGE_SIDE = 64
"""Images from this side on are searched in a space of usual size when there is nothing to start from."""
FEW_IMAGES = 200
"""No record has fewer training images."""
FAR = 4.0
"""Datasets whose numbers of images differ by this factor or more are not comparable."""
NET = "deit_tiny_patch16_224"
"""The pretrained net whose cuts were measured."""
USUAL_SHARE = 0.5
"""Share of that net's costs that is kept where nothing is limited."""
SMALL_SPACE = (
    "autoformer-micro[embed_dim=16,24,32,48,64;blocks.depth=1,2,3,4,5,6,8;blocks.num_heads=1,2,3,4;"
    "blocks.mlp_ratio=0.5,1,2,4]"
)
"""The space of the recipe digits, in which searches on small images were measured."""
TIMED_IMAGES = 4, 64
"""Images of a step that is timed, large ones and small ones."""
UNITS = {"params": "parameters", "macs": "multiply-accumulates", "latency_ms": "ms an image here"}


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
        pays: Whether a search was shown to beat random and hand-made nets of equal cost on images like these.
        evidence: The measurements behind it.
    """

    images: ImageFacts
    device: str
    road: Way
    pays: bool
    sentences: list[str]
    commands: list[str]
    evidence: list[Evidence]


@dataclass(frozen=True)
class Reach:
    """The limits, and the costs of the smallest and the largest net on a road."""

    limits: dict[str, float]
    smallest: dict[str, float]
    largest: dict[str, float]

    @property
    def missed(self) -> list[str]:
        """Limits that no net keeps."""
        return [name for name, limit in self.limits.items() if self.smallest[name] > limit]

    @property
    def is_whole(self) -> bool:
        """Whether even the largest net keeps all limits."""
        return bool(self.limits) and all(self.largest[name] <= limit for name, limit in self.limits.items())

    @property
    def share(self) -> float:
        """The least share of the largest net's costs that a limit leaves."""
        return min((limit / self.largest[name] for name, limit in self.limits.items()), default=USUAL_SHARE)

    def in_words(self, costs: Mapping[str, float], names: Sequence[str]) -> str:
        return " and ".join(f"{format_quantity(costs[name])} {UNITS[name]}" for name in names)


def advise(command: AdviseCommand) -> Advice:
    """Reads the images' size, the device and the evidence, and measures what the limits ask for."""
    images, device = image_facts(command), "cuda" if torch.cuda.is_available() else "cpu"
    ways: list[Way] = ["pretrained", "supernet"] if images.are_photos else ["supernet"]
    said: list[str] = []
    for way in ways:
        space = road_space(way, images)
        reach = measure_reach(space, command, device)
        if not reach.missed:
            return advise_road(way, space, reach, said, images, device, command)
        said.append(explain_too_large(space, reach))
    said.append("Ease the limit; smaller images (--img-size) and larger patches (--patch-size) cost less, too.")
    return Advice(images, device, "none", False, said, [], [])


def advise_road(
    way: Way, space: Space, reach: Reach, said: list[str], images: ImageFacts, device: str, command: AdviseCommand
) -> Advice:
    if way == "pretrained" and reach.is_whole:
        return advise_whole_net(space, reach, images, device, command)
    evidence = nearest([item for item in load_evidence() if item.road == way], images, reach.share)
    pays = any(is_shown(item) for item in evidence)
    sentences = [*said, first_sentence(way, images), *map(sentence, evidence), *warnings_for(images, evidence, pays)]
    sentences += [time_here(way, space, images)] if device == "cpu" else []
    return Advice(images, device, way, pays, sentences, commands(way, space, command, pays), evidence)


def advise_whole_net(space: Space, reach: Reach, images: ImageFacts, device: str, command: AdviseCommand) -> Advice:
    cost = reach.in_words(reach.largest, list(reach.limits))
    said = [f"Take timm's {NET} as it is: with {cost} it keeps your limits, so there is nothing to cut or to search."]
    said += [time_here("timm", space, images)] if device == "cpu" else []
    words = ["nasformer", "finetune", f"timm:{NET}", "--data", command.data, "--out", "runs/advised"]
    return Advice(images, device, "timm", False, said, [shlex.join(words)], [])


def image_facts(command: AdviseCommand) -> ImageFacts:
    """The size of the dataset; files are counted without decoding them."""
    for name, value in command.limits().items():
        if not is_share(value):  # a quantity that cannot be read is refused before images are
            command.quantity(name, value)
    if command.latency_profile:
        Profile.load(command.latency_profile)  # the commands that are advised will ask for it
    if not command.data:
        raise UserError("say which images the advice is for: nasformer advise --data FOLDER")
    data = open_data(command.data, root=command.data_root, quiet=True)
    if isinstance(data, ImageFiles):
        return ImageFacts(len(data.splits.train), len(data.splits.classes), data.size, data.channels)
    return ImageFacts(len(data.train), data.num_classes, data.img_size, data.in_chans)


# What the limits leave


def road_space(way: Way, images: ImageFacts) -> Space:
    if way == "pretrained":
        return source_space(f"timm:{NET}").with_options(num_classes=images.classes)
    sizes = {"img_size": images.img_size, "in_chans": images.in_chans, "num_classes": images.classes}
    return get_space(SMALL_SPACE if images.img_size < LARGE_SIDE else "autoformer-tiny", **sizes)


def measure_reach(space: Space, command: AdviseCommand, device: str) -> Reach:
    """Costs of the ends of a space; times are measured, unless a profile says how fast nets are."""
    ends = [space.root.smallest(), space.root.largest()]
    small, large = (dict(space.costs(arch)) for arch in ends)
    if command.max_latency and not command.latency_profile:
        times = time_archs(space, ends, torch.device(device), rounds=3)
        small["latency_ms"], large["latency_ms"] = (1000 * seconds for seconds in times)
    named = command.with_shares(large).limits()
    limits = {name.removeprefix("max_"): command.quantity(name, value) for name, value in named.items()}
    return Reach({name: limit for name, limit in limits.items() if name in small}, small, large)


def explain_too_large(space: Space, reach: Reach) -> str:
    """Why a road is closed."""
    least = reach.in_words(reach.smallest, reach.missed)
    named = f"can be cut out of timm's {NET}" if space.name.startswith("timm:") else f"is in {space.name}"
    return f"No net that {named} keeps your limits: the smallest takes {least}."


# What was measured


def nearest(evidence: Sequence[Evidence], images: ImageFacts, share: float = USUAL_SHARE) -> list[Evidence]:
    """Records of the dataset nearest in number and size of images, by ratio; of several cuts, the nearest one."""
    if not evidence:
        return []
    ratios = {item.data: (item.images / max(1, images.train), item.img_size / images.img_size) for item in evidence}
    distance = {name: sum(abs(math.log(ratio)) for ratio in pair) for name, pair in ratios.items()}
    best = min(distance, key=distance.__getitem__)
    by_method: dict[str, list[Evidence]] = {}
    for item in evidence:
        if item.data == best:
            by_method.setdefault(item.method, []).append(item)
    return [item for items in by_method.values() for item in at_nearest_share(share, items)]


def at_nearest_share(share: float, evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Of records at several shares of a net's MACs, the one at the nearest share."""
    shares = {float(item.budget.split(" %")[0]) / 100: item for item in evidence if " %" in item.budget}
    return [shares[min(shares, key=lambda measured: abs(measured - share))]] if shares else evidence


def is_shown(item: Evidence) -> bool:
    """Whether the searched net beat all that it was compared with, beyond chance."""
    return all(gain.is_shown for gain in (item.over_random, item.over_handmade) if gain)


def first_sentence(way: Way, images: ImageFacts) -> str:
    if way == "pretrained":
        return "Start from a pretrained net and cut it to your budget: these are photos, which such nets know."
    if images.are_photos:
        return "So train small nets from scratch, and expect less of them."
    return "Pretrained nets were not measured on such images: train from scratch."


def sentence(item: Evidence) -> str:
    """A measurement in words: its gains, and its record."""
    gains = [f"{item.over_random} points over random nets" if item.over_random else ""]
    gains += [f"{item.over_handmade} over {item.handmade}" if item.over_handmade else ""]
    time = f", {item.minutes:g} minutes on a GPU" if item.minutes else ""
    measured = "; ".join(gain for gain in gains if gain)
    source = f"{item.data} ({item.images:,} images) with {item.method}, {item.budget}"
    return f"Measured on {source}: {measured}{time} [{item.record.removesuffix('.json')}]."


def warnings_for(images: ImageFacts, evidence: Sequence[Evidence], pays: bool) -> Iterator[str]:
    if not pays:
        yield "No search was shown to pay there: a random or hand-made net of your budget may do as well."
    if images.train < FEW_IMAGES:
        yield f"No record has as few training images as yours ({images.train}); the above may not hold for so few."
    elif evidence and abs(math.log(images.train / evidence[0].images)) >= math.log(FAR):
        yield f"No set nearer to yours in size ({images.train:,} training images) was measured."


# How long it takes, and what to type


def time_here(way: Way, space: Space, images: ImageFacts) -> str:
    seconds = run_work(way, space, images) / training_speed(space, images.img_size)
    shorter = f" Shorter: {shorter_options(space, 'cpu')}." if way == "pretrained" and seconds > LONG else ""
    return (
        f"There is no GPU here: by the time of one step, training takes about {in_hours(seconds)} on this machine."
        f"{shorter}"
    )


def run_work(way: Way, space: Space, images: ImageFacts) -> float:
    """The MACs of all trainings of a run with usual options."""
    ends = [space.costs(arch)["macs"] for arch in (space.root.smallest(), space.root.largest())]
    middle, steps = sum(ends) / 2, max(1, images.train // Recipe().batch_size)
    if way == "pretrained":
        recipes = stage_recipes(pretrained_recipe(Recipe()), images.train, steps)
        small = [recipes.supernet, recipes.finish, recipes.finish]
        trainings = [(recipes.full, ends[1]), *((recipe, middle) for recipe in small)]
    elif way == "timm":
        trainings = [(Recipe(), ends[1])]
    else:
        trainings = [(recipe, middle) for recipe in (Recipe(), *finish_recipes("auto", Recipe()).values())]
    return sum(training_work(recipe, steps, macs) for recipe, macs in trainings)


def training_speed(space: Space, img_size: int) -> float:
    """MACs a second of a step of training on the CPU, the better of two."""
    count = TIMED_IMAGES[img_size < LARGE_SIDE]
    model, images = space.build(space.root.largest()), torch.randn(count, *space.image_shape)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        model(images).float().logsumexp(1).sum().backward()
        seconds.append(time.perf_counter() - start)
    return TRAINING * count * space.costs(space.root.largest())["macs"] / min(seconds)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def commands(way: Way, space: Space, command: AdviseCommand, pays: bool) -> list[str]:
    """Commands of the road, with the user's budget."""
    limits = [word for name in BUDGET if getattr(command, name) for word in (flag(name), str(getattr(command, name)))]
    data = ["--data", command.data]
    if way == "pretrained":
        options = ["--from", f"timm:{NET}", *data, *(limits or ["--max-macs", "50%"])]
    else:
        options = ["--space", space.name, *data, *limits]
    other = [] if pays or way == "pretrained" else ["--baseline", "resnet18"]
    return [
        shlex.join(["nasformer", "plan", *options]),
        shlex.join(["nasformer", "run", *options, *other, "--out", "runs/advised"]),
    ]
