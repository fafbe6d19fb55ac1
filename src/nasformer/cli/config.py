"""What the commands can be told: one dataclass a command, each field an option and a key of its YAML file.

No torch here, so that help comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nasformer.cli.options import BudgetConfig, DataConfig, EvolveOptions, SearchOptions, SpaceConfig
from nasformer.errors import UserError
from nasformer.proxies.options import ProbeOptions
from nasformer.train.recipe import Recipe


@dataclass
class SpacesCommand(SpaceConfig):
    """List the spaces, or describe one."""

    name: str | None = None
    """the space to describe, perhaps with choices of your own: 'NAME[dimension=value,value;...]'"""


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
class SearchCommand(ProbeOptions, BudgetConfig, DataConfig, SpaceConfig):
    """Search under a budget: a trained supernet, or with --proxy no data and no training. Killed, it goes on."""

    data: str = ""
    """digits (the default), an .npz file or a folder of images; proxies are shown noise where no data is named"""
    out: str = ""
    """the run folder; its supernet is searched unless --supernet names another. With --proxy it may be left out"""
    supernet: str | None = None
    """another supernet: a folder, or a file of weights (also AutoFormer's published ones)"""
    compile: bool = False
    """compile one graph per kind of block, for a GPU"""
    search: SearchOptions = field(default_factory=SearchOptions)


@dataclass
class RunCommand(BudgetConfig, DataConfig, SpaceConfig):
    """Everything: train a supernet, search it, extract and export the winner, report. Killed, it goes on."""

    out: str = ""
    """the run folder"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    baseline: str = ""
    """models of timm to train by the same recipe beside it, such as timm:resnet18,timm:vit_tiny_patch16_224"""
    train: Recipe = field(default_factory=Recipe)
    search: SearchOptions = field(default_factory=SearchOptions)


@dataclass
class EvolveCommand(BudgetConfig, DataConfig, SpaceConfig):
    """Search the space itself (S3): shift its choices to where samples are better, step by step. Killed, it goes on."""

    out: str = ""
    """the run folder; each space is a run folder in OUT/steps"""
    train: Recipe = field(default_factory=Recipe)
    evolve: EvolveOptions = field(default_factory=EvolveOptions)


@dataclass
class PlanCommand(RunCommand):
    """Before a run: does the budget leave anything, how long will it take here, and how much disk? Writes nothing."""

    draws: int = 2000
    """random architectures from which the share that fits is estimated"""
    steps: int = 10
    """steps of training to measure, after two to warm up"""


@dataclass
class ProfileCommand(SpaceConfig):
    """Measure this machine: the latency and memory of a space's layers, and how well they predict whole nets."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    backend: Literal["eager", "compile", "onnxruntime"] = "eager"
    """how nets are run; compile: layer by layer, one graph for each kind"""
    batch_size: int = 1
    """images at a time"""
    threads: int | None = None
    """threads of the CPU; None: as many as torch takes"""
    nets: int = 24
    """nets that fill the table and calibrate the sum of their layers"""
    holdout: int = 30
    """other nets, on which the prediction is tested"""
    rounds: int = 7
    """how often each net is visited; more for a busy machine"""
    seed: int = 0
    out: str = ""
    """the file to write; none: profiles/SPACE-SIZEpx-DEVICE-BACKEND-bBATCH.json"""

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "nets": 3, "holdout": 1, "rounds": 1}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; give {least} or more")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads is {self.threads}; give 1 or more")


@dataclass
class RetrainCommand(DataConfig, SpaceConfig):
    """Train one architecture from scratch, as an ordinary model. Killed, the same command goes on."""

    run: str | None = None
    """the run folder of a search, whose winner, space and model options are taken"""
    arch: str | None = None
    """JSON file, inline JSON or preset; None: the winner of the run's search"""
    out: str = ""
    """the new run folder"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    baseline: str = ""
    """models of timm to train by the same recipe beside it, such as timm:resnet18,timm:vit_tiny_patch16_224"""
    train: Recipe = field(default_factory=Recipe)


@dataclass
class FinetuneCommand(DataConfig, SpaceConfig):
    """Train an architecture further, from the weights it inherits, also on other data. Killed, it goes on."""

    run: str = ""
    """where the weights are: a run folder (of its supernet, or of its model), a supernet or a model folder"""
    arch: str | None = None
    """which architecture of a supernet: JSON file, inline JSON or preset; None: the winner of the run's search"""
    out: str = ""
    """the new run folder"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    train: Recipe = field(default_factory=Recipe)


@dataclass
class ProxiesCommand:
    """List the training-free proxies, or describe one."""

    name: str | None = None
    """the proxy to describe"""


@dataclass
class ScoreCommand(ProbeOptions, SpaceConfig):
    """Score an untrained architecture by training-free proxies."""

    arch: str = ""
    """a JSON file, inline JSON or a preset's name"""
    data: str = ""
    """images for the proxies that want a labelled batch; none: noise with random labels"""
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


@dataclass
class RankCommand(ProbeOptions):
    """How well do proxies rank trained nets, and do they know more than the parameter count?"""

    table: str = ""
    """JSON with a space, archs and their accuracies, see docs/proxies.md"""
    target: str = ""
    """the column of accuracies to compare with"""
    bands: int = 5
    """groups of equal size, by parameters, within which nets are compared as well"""
    resamples: int = 1000
    """bootstrap resamples for the intervals"""
    data: str = ""
    """images for the proxies that want a labelled batch; none: noise with random labels"""
    out: str = ""
    """a folder for ranking.json, ranking.png and the scores, which another column then need not compute again"""
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


# ----------------------------------------------------------------------------------------------------------------------
# What the commands can be told that look at what a run has left: its models, its health, its likeness to others.
#
# As in `config.py`, no torch here.
# ----------------------------------------------------------------------------------------------------------------------


@dataclass
class PatternsCommand:
    """What emerged: the winners of several searches of one space, by stage, beside random architectures."""

    runs: list[str] = field(default_factory=list)
    """the run folders of searches that differ in their seeds"""
    out: str = ""
    """a folder for patterns.json and patterns.png"""


@dataclass
class CompareCommand:
    """Runs side by side: winners, settings that differ, fronts, progress and training in common plots."""

    runs: list[str] = field(default_factory=list)
    """the run folders"""
    out: str = ""
    """a folder for compare.html, compare.json and plots"""


@dataclass
class DoctorCommand:
    """Is the supernet of a run in good health? Exit code 1 where there is an alarm."""

    run: str = ""
    """the run folder, of a training that has ended or goes on"""
    data: str = ""
    """the images, where they are no longer where the training found them"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


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
class ExportCommand:
    """Write a model for use elsewhere: self-contained Python, torch.export, ONNX; each checked against the model."""

    run: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` wrote"""
    to: str = ""
    """the folder to write"""
    formats: str = "python,pt2,onnx"
    """which files, beside weights, config and model card: any of python, pt2 and onnx"""


@dataclass
class EvaluateCommand(DataConfig):
    """Accuracy of an extracted model, or of an architecture with weights inherited from a run's supernet."""

    model: str = ""
    """a folder that `nasformer extract` or `nasformer run` wrote, or a run folder together with --arch"""
    arch: str | None = None
    """the architecture, if MODEL is a run folder"""
    split: Literal["test", "holdout", "train"] = "test"
    """which images"""
    out: str = ""
    """a folder for evaluation.json, per_class.csv and confusion.png, .svg: which classes are taken for which"""


@dataclass
class AttentionCommand(DataConfig):
    """Draw where the heads of a block look, and how alike they are."""

    model: str = ""
    """a run folder with a model in it, or a folder that `nasformer extract` or `nasformer export` wrote"""
    image: str = ""
    """an image file; or leave it out and name a test image with --data and --index"""
    block: str = ""
    """3.7 is block 7 of stage 3; 7 is the seventh block of a net without stages"""
    query: str = ""
    """who looks: row,column on the block's map, where 0,0 is top left, or cls, the class token; none: the centre"""
    data: str = ""
    """a data set whose test image --index is shown: digits, an .npz file, a folder of images or a set by name"""
    index: int = 0
    """which test image of --data, counted from 0"""
    out: str = "attention.png"
    """the picture to write: .png or .svg"""
