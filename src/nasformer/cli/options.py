"""Groups of options: which space, which data, which limits, how to search and evolve.

No torch here, so that help comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nasformer.errors import UserError
from nasformer.search.budget import Budget, parse_bytes, parse_milliseconds, parse_quantity


@dataclass
class SpaceConfig:
    """Which space, and for which images."""

    space: str | None = None
    """name of the space, see `nasformer spaces`; with choices of your own: 'NAME[dimension=value,value;...]'"""
    img_size: int | None = None
    """side of the images in pixels; None: as the data has it, or the space's default"""
    patch_size: int | None = None
    """side of a patch in pixels"""
    num_classes: int | None = None
    """number of classes; None: as the data has it"""
    in_chans: int | None = None
    """channels of the images; None: as the data has it"""
    model: dict[str, Any] = field(default_factory=dict)
    """further options of the model, such as {"drop_path_rate": 0.1}"""

    def model_options(self) -> dict[str, Any]:
        """The options of the model that were set."""
        named = {name: getattr(self, name) for name in ("img_size", "patch_size", "num_classes", "in_chans")}
        return {name: value for name, value in named.items() if value is not None} | self.model


@dataclass
class DataConfig:
    """Which images."""

    data: str = "digits"
    """digits, an .npz file of arrays, a folder of images, or a set by name: cifar10, cifar100, flowers102,
    stanford_cars, fgvc_aircraft, caltech101, oxford_pets, cub200"""
    data_root: str = "data"
    """the folder that holds the sets with a name"""
    download: bool = False
    """download a set with a name that is not there"""
    max_bad: float = 0.01
    """share of the image files that may be unreadable: they are left out and listed in OUT/bad_images.txt"""
    holdout: float = 0.1
    """share of the training images set aside for the search and never trained on; above 1: images per class; 0: none"""
    stream: bool | Literal["auto"] = "auto"
    """read image files from disk while training instead of keeping them in memory; auto: where they do not fit"""
    workers: int = 4
    """processes that decode images when streaming"""
    calibration_images: int = 2048
    """training images on which batch norm is estimated anew for an arch that inherits its weights from a supernet"""
    seed: int = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""

    def __post_init__(self) -> None:
        if self.calibration_images < 1:
            raise UserError(f"calibration_images is {self.calibration_images}; give 1 or more")


@dataclass
class BudgetConfig:
    """Limits on the architecture, such as 6M or 1.3G."""

    min_params: str | int | None = None
    """fewest parameters"""
    max_params: str | int | None = None
    """most parameters"""
    min_macs: str | int | None = None
    """fewest multiply-accumulates per image (papers on transformers call them FLOPs)"""
    max_macs: str | int | None = None
    """most multiply-accumulates per image"""
    max_latency: str | None = None
    """longest time of a batch, such as 5ms, on a machine that `nasformer profile` has measured"""
    max_memory: str | None = None
    """most memory for inference, weights included, such as 500MB, where `nasformer profile` has measured it"""
    latency_profile: str | None = None
    """the file that `nasformer profile` wrote; None: the one in profiles/ that fits"""

    def limits(self) -> dict[str, Any]:
        """What was given: counts as they were written, time in milliseconds and memory in bytes."""
        counts = {name: getattr(self, name) for name in ("min_params", "max_params", "min_macs", "max_macs")}
        given = {name: value for name, value in counts.items() if value is not None}
        if self.max_latency is not None:
            given["max_latency_ms"] = parse_milliseconds(self.max_latency)
        if self.max_memory is not None:
            given["max_memory_bytes"] = parse_bytes(self.max_memory)
        return given

    def budget(self) -> Budget:
        return Budget(**{name: parse_quantity(value) for name, value in self.limits().items()})


@dataclass
class SearchOptions:
    """How to search."""

    strategy: str = "evolution"
    """evolution, random, or cyclic: topology and size by turns, for spaces that have both"""
    population: int | None = None
    """candidates of a generation; cyclic: those that a phase breeds from; None: 50, or 25"""
    generations: int = 20
    """generations, the random start included"""
    parents: int = 10
    """the best so far, from which a generation descends"""
    mutation: str = "code"
    """AutoFormer's mutation probabilities: as in its published code, or as in its paper"""
    tournament: int = 5
    """cyclic: how many of the population compete in a step"""
    steps: int = 10
    """cyclic: steps of a phase, each with up to three children"""
    cycles: int = 8
    """cyclic: the most cycles; one that changes nothing is the last"""
    evaluations: int | None = None
    """candidates of a random search; None: 1000, or with a proxy 8000 as TF-TAS has it"""
    baseline: Literal["none", "random"] = "none"
    """random: beside it a random search with as many candidates, for the report; without, the best of the search's
    random start stands for it"""
    objectives: list[str] = field(default_factory=list)
    """what to raise or, with a leading minus, to lower, such as accuracy and -params for a front; none: accuracy, or
    with proxies the ranks by all of them together, or for cyclic the score of the topology and that of the size"""

    def options(self, evaluations: int = 1000) -> dict[str, Any]:
        """The options of the chosen strategy; so many evaluations where the user left them open."""
        names = {
            "random": ["evaluations"],
            "evolution": ["population", "generations", "parents", "mutation"],
            "cyclic": ["population", "tournament", "steps", "cycles", "mutation"],
        }
        chosen = {name: getattr(self, name) for name in names.get(self.strategy, [])}
        if chosen.get("evaluations", 0) is None:
            chosen["evaluations"] = evaluations
        return {name: value for name, value in chosen.items() if value is not None}


@dataclass
class EvolveOptions:
    """How to search the space: S3's evolution of spaces. A dimension is one choice, such as stage3.blocks.num_heads."""

    steps: int = 2
    """how often the space may shift; S3: 2, so three spaces"""
    samples: int = 1000
    """architectures within the budget that are judged in each space"""
    top: int = 50
    """the best of them, whose mean error counts as much as that of all; for a value of a dimension the same share"""
    tau: float = 0.1
    """least slope for a shift: error in % a step"""
    tau_of: dict[str, float] = field(default_factory=dict)
    """the same for single dimensions, by name or by its last part, such as {"depth": 0.3}"""
    step_of: dict[str, float] = field(default_factory=dict)
    """steps of dimensions, by name or by its last part, such as {"num_heads": 2}; the others: their smallest gap"""
    rounding: Literal["trunc", "floor"] = "trunc"
    """trunc: up and down alike; floor: as S3's rule reads, up on the slightest negative slope"""
    max_shift: int = 1
    """most steps that a dimension shifts at a time"""
    sigma: float = 1.0
    """no shift where the slope is less than so many of its standard errors; 0: always"""
    min_samples: float = 10
    """a value that fewer architectures use has no part in the fit"""
    max_cardinality: float | None = None
    """most architectures of a space; None: no limit"""
    carry: bool = True
    """start each supernet with the weights of the one before"""
    further_epochs: int | None = None
    """epochs of training for the spaces after the first; None: as for the first"""

    def __post_init__(self) -> None:
        for name, least in {"steps": 0, "samples": 1, "top": 1, "max_shift": 0, "sigma": 0, "min_samples": 0}.items():
            if getattr(self, name) < least:
                raise UserError(f"evolve.{name} is {getattr(self, name)}; give {least} or more")
        if self.top > self.samples:
            raise UserError(f"evolve.top is {self.top}, more than the {self.samples} samples; lower it")
        if self.further_epochs is not None and self.further_epochs < 1:
            raise UserError(f"evolve.further_epochs is {self.further_epochs}; give 1 or more")
        for name, size in {"tau": self.tau, **self.tau_of, **self.step_of}.items():
            if not size > 0:
                raise UserError(f"evolve has {size:g} for {name}; give more than 0")
