"""What the commands can be told: one dataclass a command, each field an option and a key of its YAML file.

No torch here, so that help comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nasformer.recipe import Recipe
from nasformer.search import Budget, parse_quantity


@dataclass
class SpaceConfig:
    """Which space, and for which images."""

    space: str | None = None
    """name of the space, see `nasformer spaces`"""
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
    """digits, an .npz file of arrays, or a folder of images"""
    holdout: float = 0.1
    """share of the training images set aside for the search and never trained on; above 1: images per class"""
    stream: bool = False
    """read an image folder from disk while training, for sets too large for memory"""
    workers: int = 4
    """processes that decode images when streaming"""
    seed: int = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


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

    def budget(self) -> Budget:
        names = ("min_params", "max_params", "min_macs", "max_macs")
        given = {name: getattr(self, name) for name in names}
        return Budget(**{name: parse_quantity(value) for name, value in given.items() if value is not None})


@dataclass
class SearchOptions:
    """How to search."""

    strategy: str = "evolution"
    """evolution or random"""
    population: int = 50
    """candidates of a generation"""
    generations: int = 20
    """generations, the random start included"""
    parents: int = 10
    """the best so far, from which a generation descends"""
    mutation: str = "code"
    """AutoFormer's mutation probabilities: as in its published code, or as in its paper"""
    evaluations: int = 1000
    """candidates of a random search"""
    objectives: list[str] = field(default_factory=lambda: ["accuracy"])
    """what to raise or, with a leading minus, to lower: accuracy alone, or accuracy and -params for a front"""

    def options(self) -> dict[str, Any]:
        """The options of the chosen strategy."""
        names = {"random": ["evaluations"], "evolution": ["population", "generations", "parents", "mutation"]}
        return {name: getattr(self, name) for name in names.get(self.strategy, [])}


@dataclass
class SpacesCommand(SpaceConfig):
    """List the spaces, or describe one."""

    name: str | None = None
    """the space to describe"""


@dataclass
class CostCommand(SpaceConfig):
    """Parameters and multiply-accumulates of an architecture, in closed form."""

    arch: str = ""
    """a JSON file, inline JSON or a preset's name"""


@dataclass
class SampleCommand(BudgetConfig, SpaceConfig):
    """Random architectures within a budget, one JSON a line."""

    n: int = 1
    """how many"""
    seed: int = 0


@dataclass
class TrainCommand(DataConfig, SpaceConfig):
    """Train a supernet. Killed, the same command goes on."""

    out: str = ""
    """the run folder"""
    train: Recipe = field(default_factory=Recipe)


@dataclass
class SearchCommand(BudgetConfig, DataConfig, SpaceConfig):
    """Search a trained supernet under a budget. Killed, the same command goes on."""

    out: str = ""
    """the run folder; its supernet is searched unless --supernet names another"""
    supernet: str | None = None
    """another supernet: a folder, or a file of weights (also AutoFormer's published ones)"""
    compile: bool = False
    """compile one graph per kind of block, for a GPU"""
    search: SearchOptions = field(default_factory=SearchOptions)


@dataclass
class RunCommand(BudgetConfig, DataConfig, SpaceConfig):
    """Everything: train a supernet, search it, extract the winner, report. Killed, the same command goes on."""

    out: str = ""
    """the run folder"""
    train: Recipe = field(default_factory=Recipe)
    search: SearchOptions = field(default_factory=SearchOptions)


@dataclass
class ExtractCommand(SpaceConfig):
    """Cut an architecture out of a supernet, as an ordinary model with its weights."""

    run: str = ""
    """a run folder, a supernet folder or a file of supernet weights"""
    arch: str | None = None
    """JSON file, inline JSON or preset; None: the winner of the run's search"""
    to: str = ""
    """the folder to write"""


@dataclass
class EvaluateCommand(DataConfig):
    """Accuracy of an extracted model, or of an architecture with weights inherited from a run's supernet."""

    model: str = ""
    """a folder that `nasformer extract` or `nasformer run` wrote, or a run folder together with --arch"""
    arch: str | None = None
    """the architecture, if MODEL is a run folder"""
    split: Literal["test", "holdout", "train"] = "test"
    """which images"""
