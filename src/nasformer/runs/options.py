"""Options of the commands that work in a run folder: one dataclass a command, each field an option and a key of YAML.

No torch here, so that help comes at once. `main` names the options that help shows first, `positional` those given
without a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import ClassVar, Literal

from nasformer.data.options import AugmentOptions, DataOptions
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.proxies.registry import ProbeOptions
from nasformer.search.options import BudgetOptions, EvolveOptions, SearchOptions
from nasformer.tasks.options import TaskOptions, averaged_scores, task_scores
from nasformer.train.recipe import Recipe
from nasformer.utils.units import OptionGroup, check_range

UNTRAINED = Recipe(augment=AugmentOptions(crop="none"))
"""For commands that do not train."""
PREFIX = "timm:"
"""What a model of timm begins with, as a source, a teacher or a baseline."""


@dataclass
class ExecutorOptions(OptionGroup):
    """Where independent work is done: here, or on the workers of a Ray cluster."""

    executor: Literal["local", "ray"] = "local"
    """local: in this process; ray: candidates, scores and baselines on workers in parallel (needs nasformer[ray])"""
    ray_address: str | None = None
    """a Ray cluster: auto for the one that this machine belongs to, an address, or local for a new one of its cores and
    GPUs alone; None: what RAY_ADDRESS says, one that runs here, or else local"""
    cpus_per_trial: float = 1.0
    """cores of a worker, which computes with as many threads"""
    gpus_per_trial: float | None = None
    """GPUs of a worker; 0.25: four workers share one; None: one where --device is a GPU, else none"""
    max_concurrent_trials: int | None = None
    """most workers at a time; None: as many as the cluster has room for"""
    asynchronous: bool = False
    """breed candidates as soon as workers are idle, without waiting for a generation: faster with many workers, but not
    reproducible; for --search.strategy evolution"""
    trial_timeout: float = 3600.0
    """seconds after which a candidate counts as hanging and is tried again on another worker; for trainings, without
    effect"""

    def __post_init__(self) -> None:
        check_range(self, "cpus_per_trial", 0, 10**4)
        check_range(self, "gpus_per_trial", 0, 10**3, optional=True)
        check_range(self, "max_concurrent_trials", 1, 10**6, optional=True, whole=True)
        check_range(self, "trial_timeout", 0.1, 10**8)
        if self.asynchronous and self.executor == "local":
            raise UserError("an asynchronous search needs workers: --executor ray, or leave --asynchronous out")
        super().__post_init__()


@dataclass
class JobOptions(ExecutorOptions):
    """How many trainings run at a time."""

    jobs: int | Literal["auto"] = 1
    """trainings side by side on this machine, each a process: baselines, those of --top, --seeds and --front, and
    several of one winner; auto: as many as the GPU's memory and the cores have room for"""

    def __post_init__(self) -> None:
        if self.jobs != "auto":
            check_range(self, "jobs", 1, 10**4, whole=True)
        if self.jobs != 1 and self.executor == "ray":
            raise UserError("--jobs is for this machine alone; with --executor ray set --max-concurrent-trials")
        super().__post_init__()


BUDGET = ("max_params", "max_macs", "max_latency", "max_memory")


@dataclass
class TrackOptions(OptionGroup):
    """Tracking of the run by a service."""

    track: Literal["none", "mlflow", "wandb"] = "none"
    """pass losses, candidates and result on to MLflow or Weights & Biases, through their own clients"""


class RunOptions(DataOptions, SpaceOptions):
    """Base of the commands that work in a run folder: images, a space, and what holds where a command has no option.

    These are plain attributes. Only the fields of a command are its options.
    """

    out = ""
    task = "classify"
    baseline = ""
    proxy = ""
    no_training = False
    train: Recipe = UNTRAINED
    search: SearchOptions | None = None

    @property
    def executor_options(self) -> ExecutorOptions:
        """Where independent work is done; commands without such options do it here."""
        return self if isinstance(self, ExecutorOptions) else ExecutorOptions()

    @property
    def tracker(self) -> str:
        """The service that tracks the run, or none."""
        return self.track if isinstance(self, TrackOptions) else "none"


def timm_names(baseline: str) -> list[str]:
    """The timm models that a user asks for as baselines, each perhaps with a file of weights behind a colon.

    >>> timm_names("timm:resnet18, timm:vit_tiny_patch16_224:weights.safetensors")
    ['resnet18', 'vit_tiny_patch16_224:weights.safetensors']
    """
    import timm  # late: it takes longer to import than torch

    words = list(dict.fromkeys(word.strip() for word in baseline.split(",") if word.strip()))
    names = [word.removeprefix(PREFIX) for word in words]
    for word, name in zip(words, map(timm_name, names), strict=True):
        if not word.startswith(PREFIX):
            raise UserError(f"baseline {word!r} is not known; write timm:NAME, several as timm:NAME,timm:NAME")
        if not timm.is_model(name):
            close = ", ".join(get_close_matches(name, timm.list_models(), 3, 0)) or "none"
            raise UserError(f"timm has no model {name!r}; the nearest names are {close}")
    return names


def timm_name(source: str) -> str:
    """The name of a model without the file of its weights."""
    return source.partition(":")[0]


def check_racing(options: SearchOptions, objectives: Sequence[str], trained: bool, executor: str = "local") -> None:
    """Refuses a race where there is nothing to race for, and on workers, who do not know the archs before theirs."""
    if options.racing == "none":
        return
    if executor != "local":
        raise UserError("racing judges each arch by those before it, in this process; leave --executor or it out")
    if not trained:
        raise UserError("racing judges archs on held-out images, and proxies need none; leave --search.racing out")
    if objectives[0] in task_scores().keys() - averaged_scores():
        raise UserError(
            f"racing estimates a mean over images from some of them; {task_scores()[objectives[0]]} is none, but "
            "of all images together: leave --search.racing out"
        )
    if len(objectives) > 1 or objectives[0] not in averaged_scores() or options.strategy not in ("evolution", "random"):
        raise UserError(
            "racing drops what cannot reach the best accuracy: it is for evolution or random search by accuracy alone; "
            "leave --search.racing or --search.objectives out"
        )


@dataclass
class TrainCommand(TaskOptions, TrackOptions, RunOptions):
    """Train a supernet. Killed, the same command goes on."""

    main = (
        *("space", "data", "task", "out", "img_size", "patch_size", "holdout", "train.epochs", "train.batch_size"),
        *("train.lr", "train.sandwich", "train.compile", "seed", "device"),
    )
    fresh_weights: ClassVar = True
    example = "nasformer train --space autoformer-micro --patch-size 2 --data digits --out runs/digits"

    out: str = ""
    """the run folder"""
    train: Recipe = field(default_factory=Recipe)


@dataclass
class SearchCommand(TaskOptions, ProbeOptions, TrackOptions, ExecutorOptions, BudgetOptions, RunOptions):
    """Search under a budget: a trained supernet, or with --proxy no data and no training. Killed, it goes on."""

    main = (
        *("out", "data", "task", *BUDGET, "supernet", "space", "proxy", "search.strategy", "search.objectives"),
        *("search.baseline", "seed", "device"),
    )
    example = (
        "nasformer search --data digits --out runs/digits --max-params 120K\n"
        "nasformer search --space autoformer-tiny --proxy dss --max-params 6M --out runs/free"
    )

    data: str = ""
    """digits (the default), an .npz file or a folder of images; proxies are shown noise where no data is named"""
    out: str = ""
    """the run folder; its supernet is searched unless --supernet names another. With --proxy it may be left out"""
    supernet: str | None = None
    """another supernet: its folder, that of a run, or a file of weights (also AutoFormer's published ones)"""
    compile: bool = False
    """compile one graph per kind of block, for a GPU"""
    search: SearchOptions = field(default_factory=SearchOptions)


@dataclass
class RunCommand(TaskOptions, TrackOptions, JobOptions, BudgetOptions, RunOptions):
    """Everything: train a supernet, search it, extract and export the winner, report. Killed, it goes on."""

    main = (
        *("from", "space", "data", "task", "out", *BUDGET, "img_size", "patch_size", "train.epochs"),
        *("search.strategy", "finish", "no_training", "front", "baseline", "jobs", "seed", "device"),
    )
    example = (
        "nasformer run --data digits --space autoformer-micro --patch-size 2 --max-params 120K --out runs/digits\n"
        "nasformer run --from timm:deit_tiny_patch16_224 --data PHOTOS --max-macs 50% --out runs/photos"
    )

    out: str = ""
    """the run folder"""
    finish: Literal["auto", "finetune", "retrain", "none"] = "auto"
    """how the winner is trained in the end: on from its inherited weights (finetune), from scratch (retrain), or not;
    auto: on, with a pretrained net from its weights in the supernet and in the full net, and the better one is kept"""
    importance: str = "auto"
    """with --from, what heads and neurons are sorted by: gate, activation, wanda, magnitude or surgeon; auto: gate, or
    surgeon without training"""
    no_training: bool = False
    """with --from, cut the net and fit what is left to its outputs, in minutes. Images need no labels,
    the classes stay; --finish finetune then lets the winner learn the full net's answers for a short while"""
    front: int = 0
    """with --from, how many sizes along the Pareto front to ship as well, each finished and exported in OUT/front"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    baseline: str = ""
    """models of timm to train by the same recipe beside it, such as timm:resnet18,timm:vit_tiny_patch16_224"""
    train: Recipe = field(default_factory=Recipe)
    search: SearchOptions = field(default_factory=SearchOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "front", 0, 100, whole=True)
        cutting = {"front": self.front, "no-training": self.no_training, "importance": self.importance != "auto"}
        if not self.from_ and (named := [name for name, chosen in cutting.items() if chosen]):
            raise UserError(f"--{named[0]} is for a pretrained net that is cut; name one with --from")
        if self.no_training and (self.baseline or self.finish == "retrain"):
            flag = "--baseline" if self.baseline else "--finish retrain"
            raise UserError(f"{flag} trains, --no-training does not; leave one of them out")
        if self.from_ and self.finish == "retrain":
            raise UserError(
                "--finish retrain would drop the weights of the pretrained net; give auto, finetune or none"
            )

    def importance_for(self, usual: str) -> str:
        return usual if self.importance == "auto" else self.importance


@dataclass
class EvolveCommand(ExecutorOptions, BudgetOptions, RunOptions):
    """Search the space itself (S3): shift its choices to where samples are better, step by step. Killed, it goes on."""

    main = (
        *("space", "data", "out", *BUDGET, "evolve.steps", "evolve.samples", "evolve.carry", "train.epochs"),
        *("seed", "device"),
    )
    fresh_weights: ClassVar = True
    example = "nasformer evolve --config s3-evolve-digits --out runs/evolved"

    out: str = ""
    """the run folder; each space is a run folder in OUT/steps"""
    train: Recipe = field(default_factory=Recipe)
    evolve: EvolveOptions = field(default_factory=EvolveOptions)


@dataclass
class PlanCommand(RunCommand):
    """Before a run: does the budget leave anything, how long will it take here, and how much disk? Writes nothing."""

    example = "nasformer plan --data digits --space autoformer-micro --patch-size 2 --max-params 120K"

    draws: int = 2000
    """random architectures from which the share that fits is estimated"""
    steps: int = 10
    """steps of training to measure, after two to warm up"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "draws", 1, 10**6)
        check_range(self, "steps", 1, 10**6)


@dataclass
class AdviseCommand(BudgetOptions):
    """Which road to a model suits your images and budget, by what was measured on others. Trains nothing."""

    main = ("data", "max_latency", "max_macs", "max_params")
    example = "nasformer advise --data digits --max-params 120K"

    data: str = ""
    """a name such as digits or cifar10, an .npz file, or a folder of images"""
    data_root: str = "data"
    """where the named datasets are, or go"""


@dataclass
class RetrainCommand(TaskOptions, TrackOptions, JobOptions, RunOptions):
    """Train one architecture from scratch, as an ordinary model. Killed, the same command goes on."""

    positional = ("run",)
    main = (
        *("data", "task", "out", "arch", "top", "seeds", "space", "img_size", "train.epochs", "train.batch_size"),
        *("train.lr", "baseline", "jobs", "export", "seed", "device"),
    )
    fresh_weights: ClassVar = True
    example = "nasformer retrain runs/digits --data digits --out runs/retrained"

    run: str | None = None
    """the run folder of a search, whose winner, space and model options are taken"""
    arch: str | None = None
    """JSON file, inline JSON or preset; None: the winner of the run's search"""
    top: int = 1
    """so many of the best candidates of the run's search, each in a run folder OUT/1, OUT/2 ...; with --jobs or
    --executor ray at the same time"""
    seeds: int = 1
    """so many trainings of each, by the seeds from --seed on, in run folders seed-0, seed-1 ... below OUT"""
    out: str = ""
    """the new run folder"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    baseline: str = ""
    """models of timm to train by the same recipe beside it, such as timm:resnet18,timm:vit_tiny_patch16_224"""
    train: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "top", 1, 10**4, whole=True)
        check_range(self, "seeds", 1, 10**4, whole=True)


@dataclass
class FinetuneCommand(TaskOptions, TrackOptions, RunOptions):
    """Train an architecture further, from the weights it inherits, also on other data. Killed, it goes on."""

    positional = ("run",)
    main = (
        *("data", "task", "out", "arch", "img_size", "train.epochs", "train.batch_size", "train.lr", "train.teacher"),
        *("export", "seed", "device"),
    )
    example = "nasformer finetune runs/digits --data digits --out runs/finetuned"

    run: str = ""
    """where the weights are: a run folder (the model that it ships, or with --arch its supernet), a supernet or a model
    folder; or a net of timm: timm:NAME, timm:NAME:WEIGHTS"""
    arch: str | None = None
    """which architecture of a supernet: JSON file, inline JSON or preset; None: the winner of the run's search"""
    out: str = ""
    """the new run folder"""
    export: bool = True
    """in the end, write the model for use elsewhere into OUT/export, checked (see `nasformer export`)"""
    train: Recipe = field(default_factory=Recipe)


@dataclass
class EvaluateCommand(TaskOptions, DataOptions):
    """Accuracy of an extracted model, or of an architecture with weights inherited from a run's supernet."""

    positional = ("model",)
    main = ("data", "split", "arch", "out", "holdout", "seed", "device")
    example = "nasformer evaluate runs/digits --data digits"

    model: str = ""
    """a folder that `nasformer extract` or `nasformer run` wrote, or a run folder together with --arch"""
    arch: str | None = None
    """the architecture, if MODEL is a run folder"""
    split: Literal["test", "holdout", "train"] = "test"
    """which images"""
    out: str = ""
    """a folder for evaluation.json and per_class.csv, and of a classifier evaluation.html and confusion.png, .svg
    (which classes are taken for which), of other tasks the best, median and worst image with truth and answer"""
