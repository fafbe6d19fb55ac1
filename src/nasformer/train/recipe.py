"""The recipe: all that decides how weights are trained. Its fields are options of the command line. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.utils.units import check_range

USUAL_EPOCHS, MOST_EPOCHS = 30, 300
"""Epochs, where the recipe leaves them open, of a large and of a very small set."""
USUAL_STEPS = 1500
"""Steps that a small set is trained for: 30 epochs of 1,300 digits are 300 steps, and end far too early."""
USUAL_WARMUP = 2.0
"""Epochs of warm-up where the recipe leaves them open; but at most a tenth of the steps."""


@dataclass
class Recipe:
    """How to train. The defaults suit small images; `recipes/` holds the papers' settings as YAML."""

    epochs: int | Literal["auto"] = "auto"
    """Passes over the training images; auto: 30, but up to 300 for a small set, to have 1,500 steps."""
    iterations: int | None = None
    """Steps of training, in place of `epochs`."""
    batch_size: int = 128
    """Images per step, over all processes and accumulation steps together."""
    accumulate: int = 1
    """Parts in which a process takes its share of the batch, to save memory; the result is the same."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with momentum."""
    lr: float = 1e-3
    """Peak learning rate."""
    lr_batch: int | None = None
    """The batch size that `lr` is meant for: it is scaled to the real one. None: taken as it is."""
    min_lr: float = 1e-5
    """Where the cosine ends."""
    warmup_epochs: float | Literal["auto"] = "auto"
    """Epochs of linear growth from `warmup_lr` to the peak; auto: 2, but at most a tenth of the steps."""
    warmup_lr: float = 1e-6
    """Where the warm-up starts."""
    weight_decay: float = 0.05
    """Not applied to biases, norms, class token and absolute positions."""
    layer_decay: float = 1.0
    """Learning rate of each layer as a share of the next one's: below 1, first layers of a pretrained net move less."""
    no_decay: list[str] = field(default_factory=list)
    """Further weights without decay, by a part of their name, such as rel_pos."""
    clip_grad: float | None = None
    """Largest norm of the gradient."""
    ema: float = 0.0
    """Decay of the moving average of the weights that is kept in the end; 0 keeps the weights themselves."""
    freeze: Literal["optimizer", "slices"] = "optimizer"
    """What happens to weights outside the sampled slice of a tensor: "optimizer" gives them a zero gradient, so that
    momentum and decay still move them (AutoFormer's code); "slices" leaves them untouched (its text)."""
    sampler: Literal["uniform", "hierarchical", "sizes"] = "hierarchical"
    """How a step of supernet training draws its arch: "hierarchical", each operator equally likely, then each of its
    configurations (TrioNet); "uniform", each configuration equally likely. Without operators to choose: the same.
    "sizes": archs of all sizes about equally often, in a sandwich from small to large without the smallest; for budgets
    far below half of the largest arch."""
    sandwich: int = 0
    """The sandwich rule: a step runs the largest arch, the smallest and so many random ones, all with the operators
    that the sampler drew; their gradients are summed (so SGD takes longer steps, and clip_grad limits the sum), the
    loss in the log is their mean. The papers have 2; 0 is off."""
    archs: Literal["shared", "own"] = "shared"
    """Under torchrun, whether all processes run the same archs in a step, on their parts of the batch, or each its own,
    whose gradients are averaged: more archs a step, each on fewer images, and all weights are sent in every step."""
    inplace_distillation: bool = False
    """In a sandwich, only the largest arch learns from the targets; the others from its output (BigNAS)."""
    decay: Literal["all", "largest"] = "all"
    """Which weights weight_decay moves: "all"; "largest", those of the sandwich's largest arch, as an L2 term of its
    loss (TrioNet) that clip_grad limits as well; with adamw it then is not decoupled from the step size."""
    teacher: str | None = None
    """A model folder of ours, or timm:NAME or timm:NAME:WEIGHTS, whose answers are learned beside the labels."""
    teacher_weight: float = 0.5
    """How much its answers count; the labels have the rest."""
    teacher_answers: Literal["hard", "soft"] = "hard"
    """What is learned of it: "hard", its top class (AutoFormer's option); "soft", its probabilities of all classes."""
    teacher_features: float = 0.0
    """How much the features between its blocks count beside its answers, for a teacher that the student was cut from;
    0: not at all."""
    balance: bool = False
    """Whether images of rare classes count more, so that all classes count alike."""
    patience: int | None = None
    """Early stopping: epochs without a better accuracy on the held-out images (of a supernet: of its largest arch)
    after which a training ends. It keeps the weights that were best there, so that this accuracy flatters a little."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16 autocast, on by default on a GPU that has it. Wide transformers gain by it on some CPUs, too."""
    repeats: int = 1
    """Repeated augmentation: how often an image occurs in an epoch, each time augmented anew."""
    compile: bool | Literal["auto"] = False
    """Compile one graph per kind of block: slow to start, about twice as fast on a GPU. auto: a training on a GPU where
    its first steps show that this pays, in a process beside them; it says what it decided. The search is left as is."""
    graphs: bool = True
    """On a GPU, record the kernels of each part of the net and launch them together, so that small nets do not wait for
    Python (CUDA graphs). The numbers are the same; it needs some memory, and stops where there is none to spare."""
    log_epochs: float = 1.0
    """Epochs between lines of the training log."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints; the first comes after a tenth of it."""
    watch_epochs: float = 0.0
    """Epochs between snapshots: the accuracy of the largest arch of each operator (or of the largest and the smallest
    arch), and of the 13 archs by which `nasformer doctor` judges, with the weights of the moment, on the held-out
    images; they go into the log. 0: never."""
    tensorboard: bool = False
    """Write the training log for TensorBoard as well, beside log.jsonl; needs nasformer[tensorboard]."""
    augment: AugmentOptions = field(default_factory=AugmentOptions)

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "repeats"):
            check_range(self, name, 1)
        for name, least in {"epochs": 1, "warmup_epochs": 0}.items():
            if getattr(self, name) != "auto":
                check_range(self, name, least)
        for name in ("iterations", "lr_batch", "patience"):
            check_range(self, name, 1, optional=True)
        for name in ("lr", "min_lr", "warmup_lr", "weight_decay", "sandwich"):
            check_range(self, name, 0)
        for name in ("checkpoint_seconds", "watch_epochs"):
            check_range(self, name, 0)
        check_range(self, "clip_grad", above=0, optional=True)
        check_range(self, "ema", 0, below=1)
        check_range(self, "teacher_weight", 0, 1)
        check_range(self, "teacher_features", 0)
        check_range(self, "layer_decay", above=0, most=1)
        check_range(self, "log_epochs", above=0)
        if self.inplace_distillation and not self.sandwich:
            raise UserError("inplace_distillation needs the largest arch in every step; set sandwich to 2 as well")
        if self.patience and self.ema:
            raise UserError("patience keeps the best weights, ema an average of them; set only one of the two")
        if self.decay == "largest" and not self.sandwich:
            raise UserError("decay=largest needs the largest arch in every step; set sandwich to 2 as well")

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many steps the training has.

        >>> Recipe(epochs=3).total_steps(20), Recipe(epochs=3, iterations=7).total_steps(20)
        (60, 7)
        """
        return self.iterations or math.ceil(self.total_epochs(steps_per_epoch) * steps_per_epoch)

    def total_epochs(self, steps_per_epoch: int) -> int:
        """How many epochs the training has, unless `iterations` says its steps.

        >>> [Recipe().total_epochs(steps) for steps in (1, 10, 1000)]
        [300, 150, 30]
        """
        if self.epochs != "auto":
            return self.epochs
        return min(MOST_EPOCHS, max(USUAL_EPOCHS, math.ceil(USUAL_STEPS / steps_per_epoch)))

    def warmup_steps(self, steps_per_epoch: int) -> float:
        """How many steps the learning rate grows for.

        >>> Recipe(epochs=10).warmup_steps(20), Recipe(epochs=100).warmup_steps(20)
        (20.0, 40.0)
        """
        if self.warmup_epochs != "auto":
            return self.warmup_epochs * steps_per_epoch
        return min(USUAL_WARMUP * steps_per_epoch, 0.1 * self.total_steps(steps_per_epoch))

    def for_images(self, steps_per_epoch: int, img_size: int, in_chans: int) -> Recipe:
        """The recipe for a dataset, with open settings chosen."""
        return replace(
            self,
            epochs=self.total_epochs(steps_per_epoch),
            warmup_epochs=self.warmup_steps(steps_per_epoch) / steps_per_epoch,
            augment=self.augment.for_images(img_size, in_chans),
        )

    def peak_lr(self) -> float:
        return self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr
