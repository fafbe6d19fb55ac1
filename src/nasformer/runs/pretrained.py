"""From a pretrained net to a smaller one on the user's images: `nasformer run --from timm:NAME --data PHOTOS`.

`run_pretrained` trains, in five stages, each of which goes on where a killed run stopped:

1. full      The net itself is fine-tuned on the images (OUT/full); it is the teacher of all that follows. Where the
             recipe names a larger teacher of timm, that is fine-tuned first (OUT/teacher) and teaches all of them.
2. sort      Its heads and neurons are sorted by importance, so that every prefix keeps the best of them.
3. supernet  All that can be cut out of it is trained together, in a sandwich, to answer as the full net does.
4. search    Any strategy finds the best within the budget, by held-out accuracy (or the score of another task) with the
             supernet's weights.
5. finish    The winner is trained to answer as the full net does, from its slices of the supernet and from those of
             the full net; what is better on held-out images is shipped (`finish.py`).

A source that is a supernet already starts with stage 3.

`run_cut` (`--no-training`) keeps the classes of the net. Photos need no labels, nor folders by class; where they have
the net's classes, the accuracies of all nets stand beside how closely they agree.

1. sort      Heads and neurons are sorted by importance, without labels.
2. search    Any strategy finds the arch within the budget that answers most like the full net on held-out images. Each
             candidate is cut out and its linear maps are fitted to the full net's outputs (`Compensation`).
3. finish    With `--finish finetune`, the winner then learns the full net's answers for a short while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.data.options import AugmentOptions
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.pretrained import source_space
from nasformer.models.space import Space
from nasformer.models.storage import build_from, fingerprint, save_model
from nasformer.results.result import AGREEMENT, RunResult
from nasformer.runs.base import (
    Run,
    fit_to_data,
    normalize_as_pretrained,
    open_run,
    resolve_shares,
    same_classes,
)
from nasformer.runs.baselines import count_images, pretrained_options, split_accuracies, train_baselines
from nasformer.runs.finish import (
    Finisher,
    Start,
    accuracies,
    single_recipe,
    teacher_settings,
    with_cost_objective,
)
from nasformer.runs.options import PREFIX, RunCommand, timm_names
from nasformer.runs.run import stages, training_work
from nasformer.runs.search import ArchSearch, Evaluator, check_search, search_and_publish, search_weights
from nasformer.search.problem import ModelResult
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import uniform_arch
from nasformer.space.dimensions import dimensions
from nasformer.supernet.importance import (
    BatchLoss,
    Compensation,
    Labelled,
    find_importance,
    sort_by_importance,
    sort_channels,
)
from nasformer.supernet.storage import Pretrained, carry_backbone, carry_over, find_pretrained, supernet_from
from nasformer.supernet.supernet import Supernet, recalibrated
from nasformer.train.evaluate import CLASSIFICATION, Objective, objective_of, predictions
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.train.speed import undisturbed
from nasformer.utils.device import computes_in_bf16
from nasformer.utils.progress import say

SORTING_IMAGES, SORTING_BATCH = 1024, 64
"""Training images, and those of a batch, on which importance is measured and, without training, outputs compared."""
SPLITS: tuple[Split, ...] = ("holdout", "test")
PRETRAINED: dict[str, Any] = {
    "lr": 5e-4,
    "min_lr": 1e-6,
    "clip_grad": 1.0,
    "sandwich": 2,
    "teacher_weight": 1.0,
    "teacher_answers": "soft",
    "teacher_features": 5.0,
    "augment": AugmentOptions(crop="resized"),
}
"""What a recipe takes for a pretrained net where the user leaves it at its default; chosen on the held-out images of
Flowers-102 with DeiT-Ti (docs/results.md)."""
SLICED_SUPERNET, SLICED_NET = "from the supernet", "from the full net"
LONG = 3 * 3600.0
"""Seconds of a run after which shorter ways are named."""
FEWEST_PATCHES = 6
"""Along a side: with fewer of them nobody is advised to make images smaller."""
SUPERNET_LR, FULL_NET_LR = 0.4, 2.0
"""Learning rates of a winner as multiples of the supernet's: what starts from the supernet fits already, what starts
from slices of the full net has far to go."""


def run_pretrained(command: RunCommand) -> RunResult | None:
    """Fine-tunes a net, searches what can be cut out of it and ships the winner; the result, in the main process."""
    command = replace(command, importance=command.importance_for("gate"), train=pretrained_recipe(command.train))
    command = with_cost_objective(command, command.score)
    find_importance(command.importance)
    for name in timm_names(command.baseline):
        pretrained_options(name)  # refused now rather than when their turn comes
    source = find_pretrained(command.from_ or "")
    command = command.with_left_open(vars(source.facts))
    with open_run(command, "supernet", full_arch=source.own_arch) as run:
        run.adopt_words(source.model, vars(source.facts))
        command = resolve_shares(command, run.space, source.own_arch)
        pretrained = PretrainedRun(run, source, command)
        run.measure_profile(command)
        mention_slack(run, command, source.own_arch)
        with pretrained.stages():
            pretrained.tune_teacher()
            full = pretrained.full()
            supernet = pretrained.supernet(full)
            trained = [pretrained.full_result(full)]
            trained += train_baselines(run, command.baseline, pretrained.recipes.alone, pretrained=True)
            if not run.world.main:
                return None
            finisher = pretrained.finisher(supernet, full)
            trained += finisher.uniform_reference(command.budget())
            command = start_from_uniform(command, run.space)
            result = finisher.finish(search_weights(run, supernet, command, trained))
        return finisher.ship(result)


def start_from_uniform(command: RunCommand, space: Space) -> RunCommand:
    """The command with the uniform cut among the first candidates, so that no winner has a lower score than it has."""
    arch = uniform_arch(space.root, space.costs, command.budget())
    if arch is None:
        return command
    options = {"seeds": [arch.to_dict()], **command.search.options}
    return replace(command, search=replace(command.search, options=options))


def mention_slack(run: Run, command: RunCommand, full: Arch) -> None:
    """Says where the whole net fits the budget: else a surprise after hours; with objectives, costs count anyway."""
    if run.world.main and not command.search.objectives and command.budget().fits(run.space.costs(full)):
        say("the whole net fits the budget, so nothing has to be cut; for a smaller one: --max-macs 50%")


def pretrained_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the supernet: what the user left at its default takes the value for a pretrained net."""
    plain = Recipe()
    left = {item.name for item in fields(Recipe) if getattr(recipe, item.name) == getattr(plain, item.name)}
    if recipe.teacher:  # one of the user's choice, which may be of any kind: only its answers can be compared
        left -= {"teacher_features"}
    return replace(recipe, **{name: value for name, value in PRETRAINED.items() if name in left})


@dataclass(frozen=True)
class Recipes:
    """The recipes of the stages that train."""

    full: Recipe
    supernet: Recipe
    finish: Recipe

    @property
    def alone(self) -> Recipe:
        """The recipe of a net without a teacher, which the full net is by default."""
        return replace(self.full, teacher=None, teacher_weight=0.0)

    def without_teacher(self) -> Recipes:
        """The same for a teacher that is a model already, not the name of one."""
        return Recipes(**{stage: replace(recipe, teacher=None) for stage, recipe in vars(self).items()})


def stage_recipes(recipe: Recipe, images: int, steps_per_epoch: int) -> Recipes:
    """The recipes of all stages for so many training images.

    A length that the user gives, in epochs or steps, is that of the supernet and of the winner; the full net takes
    half of it.
    """
    length = recipe.iterations or (recipe.epochs != "auto" and recipe.total_steps(steps_per_epoch))
    steps = int(length) / 2 if length else steps_for(images)

    def lasting(share: float) -> dict[str, Any]:
        count = max(1, round(share * steps))
        return {"iterations": count, "warmup_epochs": 0.1 * count / steps_per_epoch}

    untaught = {"teacher": None, "teacher_weight": 0.0}
    return Recipes(
        full=single_recipe(recipe, **lasting(1), layer_decay=0.75, **({} if recipe.teacher else untaught)),
        supernet=replace(recipe, **lasting(2)),
        finish=single_recipe(recipe, **lasting(2)),
    )


def training_size(batches: BatchSource, recipe: Recipe) -> int:
    """About how many training images there are."""
    return batches.steps_per_epoch * min(recipe.batch_size, getattr(batches, "batch_size", 10**9))


def steps_for(images: int) -> int:
    """Steps in which a pretrained net is fine-tuned: more for more images, but fewer passes over them.

    >>> steps_for(500), steps_for(1020), steps_for(50_000)
    (335, 479, 3354)
    """
    return round(15 * math.sqrt(images))


def shorter_options(space: Space, device: str) -> str:
    """What makes a run from a pretrained net shorter, in words."""
    faster = "--train.precision bf16, for which this CPU has instructions, " * (device == "cpu" and computes_in_bf16())
    size, patch = space.full_options["img_size"], space.full_options["patch_size"]
    patches = size // 2 // patch if isinstance(size, int) else 0
    half = f"--img-size {patches * patch} for about a quarter of it, " if patches >= FEWEST_PATCHES else ""
    return f"{faster}{half}a GPU, or --no-training, which only searches"


class PretrainedRun:
    """The stages of a run that starts from a pretrained net.

    Args:
        run: Its folder, images and space; the space is that of the source.
        source: The weights to start from.
    """

    def __init__(self, run: Run, source: Pretrained, command: RunCommand) -> None:
        self.run, self.source, self.command = run, source, command
        images = training_size(run.batches, command.train)
        self.recipes = stage_recipes(command.train, images, run.batches.steps_per_epoch)
        normalize_as_pretrained(run.batches, source.facts)
        self.tuned_teacher: Backbone | None = None
        self.keeps_classifier = same_classes(run.batches, source.model, source.facts.classes)
        self.settings = {**run.settings, "space": run.space.name, "weights": fingerprint(source.model)}

    def stages(self) -> AbstractContextManager[None]:
        """Context in which progress tells the time left in all stages; first refuses what would fail in a late one."""
        run, recipes = self.run, self.recipes
        macs = run.space.costs(run.space.root.largest())["macs"]
        sizes = [f"size {number}, {name}" for number in range(self.command.front) for name in self.start_names]
        trainings = [*self.start_names, *sizes]
        before = {"full net": training_work(recipes.full, run.batches.steps_per_epoch, macs)}
        if self.teacher_source is not None:
            source = self.teacher_source
            cost = source.space.costs(source.own_arch)["macs"]  # with its own head, which matters little
            before = {"teacher": training_work(recipes.alone, run.batches.steps_per_epoch, cost), **before}
        return stages(run, self.command, recipes.supernet, dict.fromkeys(trainings, recipes.finish), before)

    @property
    def start_names(self) -> list[str]:
        """The weights that the winner's own training starts from."""
        if self.command.finish == "none":
            return []
        both = self.command.finish == "auto" and self.source.supernet is None
        return [SLICED_SUPERNET, SLICED_NET] if both else [SLICED_SUPERNET]

    @cached_property
    def teacher_source(self) -> Pretrained | None:
        """The recipe's teacher, where it has to be fine-tuned first.

        One of ours, or of timm with a classifier for as many classes, is taken as it is.
        """
        name, run = self.command.train.teacher or "", self.run
        if not name.startswith(PREFIX) or not is_cuttable(name):
            return None
        source = find_pretrained(name)
        return None if knows_classes(source.space, run) else source

    def tune_teacher(self) -> None:
        """Fine-tunes the recipe's teacher for the run's classes where it has others; in OUT/teacher."""
        source, run = self.teacher_source, self.run
        if source is None:
            return
        space = fit_to_data(source.space, run.batches, run.options)
        teacher = build_from(source.model, space, run.options.seed, keep_classifier=False).to(run.device)
        train_model(
            teacher,
            run.batches,
            self.recipes.alone,
            folder=(run.folder / "teacher").train,
            seed=run.options.seed,
            settings={**self.settings, "space": space.name, "weights": fingerprint(source.model)},
            label="teacher",
        )
        self.tuned_teacher, self.recipes = teacher, self.recipes.without_teacher()

    def teacher(self, recipe: Recipe, full: Backbone) -> nn.Module | None:
        """What a later stage learns from: the fine-tuned teacher, or the full net; None: what its recipe names."""
        return None if recipe.teacher else self.tuned_teacher or full

    def full(self) -> Backbone:
        """The full net for the run's images, fine-tuned and sorted; in OUT/full. A supernet's largest is left as is."""
        run, folder = self.run, self.run.folder / "full"
        model = build_from(deepcopy(self.source.model), run.space, run.options.seed, self.keeps_classifier)
        model = model.to(run.device)
        train_model(
            model,
            run.batches,
            self.recipes.full,
            folder=folder.train,
            seed=run.options.seed,
            settings=self.settings | teacher_settings(self.tuned_teacher),
            teacher=self.tuned_teacher,
            label="full net",
        )
        if self.source.supernet is None:
            self.sort(model)
        if run.world.main:
            save_model(model, folder.model, space=run.space.name, **run.image_facts)
        return model.eval()

    def sort(self, model: Backbone) -> None:
        """Sorts what can be cut by its importance for the task's loss."""
        run, loss = self.run, sorting_loss(objective_of(self.run.batches))
        with undisturbed(model):
            torch.manual_seed(run.options.seed)  # a detector draws the boxes that it learns from
            sort_net(model, run.space, lambda: sorting_batches(run.batches), self.command.importance, loss)

    def full_result(self, full: Backbone) -> ModelResult:
        """The full net in the result, for comparison."""
        settings = (self.run.batches, self.recipes.full.precision, self.run.world)
        scores, arch = split_accuracies(full, *settings), self.source.own_arch
        return ModelResult("full net, finetuned", arch.to_dict(), {**self.run.space.costs(arch), **scores})

    def supernet(self, full: Backbone) -> Supernet:
        """All that can be cut out of the full net, trained together to answer as it does."""
        supernet = supernet_from(full, self.run.space)
        if self.source.supernet is not None:  # its members are trained, which the full net's fine-tuning undid
            self.carry(self.source.supernet, supernet)
        recipe = self.recipes.supernet
        self.run.train(recipe, supernet, self.teacher(recipe, full), weights=fingerprint(full))
        return supernet

    def carry(self, old: Supernet, new: Supernet) -> None:
        """Copies the weights of the source's supernet; for other classes, images or tasks all but norm and head."""
        space, seed = self.run.space, self.run.options.seed
        if (old.space.model, old.space.full_options) == (space.model, space.full_options) and self.keeps_classifier:
            carry_over(old, new)
        else:
            resized = build_from(deepcopy(self.source.model), space, seed, self.keeps_classifier)
            carry_backbone(supernet_from(resized, space), new)

    def finisher(self, supernet: Supernet, full: Backbone) -> Finisher:
        """What finishes and ships the winner of the search."""
        run, command = self.run, self.command
        cut = partial(recalibrated, supernet, batches=run.batches, images=run.options.calibration_images)
        return Finisher(
            run, command, cut, partial(self.starts, supernet=supernet, full=full), accuracies(run), command.score
        )

    def starts(self, arch: Arch, supernet: Supernet, full: Backbone) -> dict[str, Start]:
        """How the winner is finished: from its slices of the supernet, and from those of the full net."""
        recipe, run, starts = self.recipes.finish, self.run, dict[str, Start]()
        for name in self.start_names:
            inherits = name == SLICED_SUPERNET
            weights, lr = (supernet, SUPERNET_LR) if inherits else (supernet_from(full, run.space), FULL_NET_LR)
            model = recalibrated(weights, arch, run.batches, run.options.calibration_images)
            starts[name] = Start(model, replace(recipe, lr=lr * recipe.lr), self.teacher(recipe, full))
        return starts


def knows_classes(source: Space, run: Run) -> bool:
    """Whether a net answers for the run's task and as many classes."""
    return (source.model.task, source.full_options["num_classes"]) == (run.space.model.task, run.batches.num_classes)


def is_cuttable(name: str) -> bool:
    """Whether we have a family for this model of timm."""
    try:
        source_space(name)
    except UserError:
        return False
    return True


# Importance, with a loss of the task or without labels


def sort_net(
    model: Backbone,
    space: Space,
    batches: Callable[[], Iterable[Labelled]],
    importance: str,
    loss: BatchLoss | None = None,
) -> None:
    """Sorts heads and neurons by importance and, where the space has other widths, the embedding's channels too."""
    sort_by_importance(model, batches(), importance, loss)
    width = dimensions(space.root).get("embed_dim")
    if width is not None and len(width.values) > 1:
        sort_channels(model, batches(), loss)


def sorting_batches(batches: BatchSource, images: int = SORTING_IMAGES) -> Iterator[Labelled]:
    """The first training images with their labels, prepared as in evaluation, or for other tasks as in training.

    All processes see the same.
    """
    if objective_of(batches) is CLASSIFICATION:
        return islice(batches.evaluation("train", SORTING_BATCH), math.ceil(images / SORTING_BATCH))
    alone: Any = copy(batches)
    alone.rank, alone.world = 0, 1
    return islice(alone.train_batches(), math.ceil(images / alone.batch_size))


def sorting_loss(objective: Objective) -> BatchLoss | None:
    """The loss of a task by which importance is measured; None: that of a classifier."""
    if objective is CLASSIFICATION:
        return None

    def loss(model: Any, x: Any, targets: Any) -> Tensor:
        model.head.train(objective.within_model)  # a head that computes losses itself does so in training alone
        return objective.loss_of(model, x, targets)

    return loss


# Without training


def run_cut(command: RunCommand) -> RunResult | None:
    """Searches what can be cut out of a net without training and ships the winner; the result, in the main process."""
    if command.executor != "local":
        raise UserError("--no-training cuts and fits every candidate in this process; leave --executor out")
    source = find_pretrained(command.from_ or "")
    command = command.with_left_open(vars(source.facts))
    command = with_cost_objective(replace(command, importance=command.importance_for("surgeon")), AGREEMENT)
    find_importance(command.importance)
    with open_run(command, "supernet", source.facts.classes or source.model.num_classes, source.own_arch) as run:
        check_learned(source, run)
        if not run.world.main:
            return None
        command = resolve_shares(command, run.space, source.own_arch)
        normalize_as_pretrained(run.batches, source.facts)
        run.measure_profile(command)
        mention_slack(run, command, source.own_arch)
        check_search(run.space, command.search, command.budget(), run.options.seed, AgreementEvaluator.objectives)
        full = sorted_net(run, source, command.importance)
        compensation = Compensation(supernet_from(full, run.space).eval(), calibration_images(run.batches))
        evaluator = AgreementEvaluator(compensation, full, run.batches, command.train.precision)
        finisher = distilling_finisher(run, command, evaluator)
        trained = [uncut_result(run, source.own_arch, evaluator), *finisher.uniform_reference(command.budget())]
        options = start_from_uniform(command, run.space).search
        arch_search = ArchSearch.of(run, evaluator, options, command.budget())
        result = search_and_publish(run, arch_search, trained)
        return finisher.ship(finisher.finish(result))


def check_learned(source: Pretrained, run: Run) -> None:
    """Refuses a net that has not learned the run's task, since nothing is trained here."""
    if run.options.task != "classify" and not knows_classes(source.space, run):
        raise UserError(
            f"--no-training cuts a net that has learned --task {run.options.task} with the classes of "
            f"{run.options.data}; give such a model with --from, or leave --no-training out"
        )


def distilling_finisher(run: Run, command: RunCommand, evaluator: AgreementEvaluator) -> Finisher:
    """Ships the winner, which with `--finish finetune` first learns the full net's answers, without labels."""
    recipe = distillation_recipe(pretrained_recipe(command.train), run.batches)

    def starts(arch: Arch) -> dict[str, Start]:
        distilled = command.finish == "finetune"
        return {"distilled": Start(evaluator.model(arch), recipe, evaluator.full)} if distilled else {}

    return Finisher(run, command, evaluator.model, starts, evaluator.measure_model, AGREEMENT)


def sorted_net(run: Run, source: Pretrained, importance: str) -> Backbone:
    """The source for the run's image size, sorted by importance; in OUT/full."""
    if source.supernet is not None:
        raise UserError("--no-training cuts a net that is trained as a whole; a supernet is searched: nasformer search")
    full = build_from(source.model, run.space, run.options.seed, keep_classifier=True).to(run.device).eval()
    sort_net(full, run.space, lambda: ((images, None) for images in calibration_images(run.batches)), importance)
    save_model(full, (run.folder / "full").model, space=run.space.name, **run.image_facts)
    return full


def calibration_images(batches: BatchSource) -> Iterable[Tensor]:
    return batches.calibration(SORTING_IMAGES, SORTING_BATCH)


def uncut_result(run: Run, arch: Arch, evaluator: AgreementEvaluator) -> ModelResult:
    """The full net in the result, for comparison."""
    scores = evaluator.measure_model(evaluator.full)
    return ModelResult("full net", arch.to_dict(), {**run.space.costs(arch), **scores})


def distillation_recipe(recipe: Recipe, batches: BatchSource) -> Recipe:
    """How a winner learns the full net's answers; where its length is open, as long as a net would be fine-tuned."""
    steps = steps_for(training_size(batches, recipe))
    length = {"iterations": recipe.iterations or steps} if recipe.epochs == "auto" else {}
    return single_recipe(recipe, **length, teacher=None, teacher_weight=1.0, teacher_answers="soft")


class AgreementEvaluator(Evaluator):
    """Judges archs by how closely they agree with the full net on held-out images; labels are not needed.

    Args:
        compensation: Cuts archs out.
        full: Whose answers count.
    """

    objectives: tuple[str, ...] = (AGREEMENT,)

    def __init__(
        self, compensation: Compensation, full: Backbone, batches: BatchSource, precision: str = "auto"
    ) -> None:
        self.space, self.compensation = compensation.supernet.space, compensation
        self.full, self.batches, self.precision = full, batches, precision
        self.objective, agreement = objective_of(batches), objective_of(batches).agreement
        assert agreement is not None  # other tasks are refused before
        self.agreement, self.batch_size = agreement, min(256, self.objective.batch_size)
        self.labelled = self.objective is not CLASSIFICATION or int((batches.class_counts > 0).sum()) > 1
        self.expected = {split: [agreement.keep(logits) for logits, _ in self.answers(full, split)] for split in SPLITS}

    def answers(self, model: nn.Module, split: Split) -> Iterable[tuple[Tensor, Any]]:
        """Logits and targets, batch by batch."""
        return predictions(model, self.batches, split, batch_size=self.batch_size, precision=self.precision)

    def compare(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Agreement with the full net; and, where labels are those of the net, the score of the task."""
        shared, metric = 0.0, self.objective.metric(self.batches)
        for expected, (logits, targets) in zip(self.expected[split], self.answers(model, split), strict=True):
            shared += self.agreement.compare(expected, logits).sum().item()
            metric.update(logits, targets)
        scores = {AGREEMENT: shared / metric.images}
        return scores | {self.objective.score: metric.compute()[self.objective.score]} if self.labelled else scores

    def __call__(self, arch: Arch) -> dict[str, float]:
        return {AGREEMENT: self.compare(self.model(arch), "holdout")[AGREEMENT]}

    def settings(self) -> dict[str, Any]:
        return {"space": self.space.name, "full": fingerprint(self.full)}

    def measure_model(self, model: nn.Module, splits: Sequence[Split] = SPLITS) -> dict[str, float]:
        return {f"{split}_{name}": value for split in splits for name, value in self.compare(model, split).items()}

    def measure(self, arch: Arch) -> dict[str, float]:
        return self.measure_model(self.model(arch))

    def model(self, arch: Arch) -> Backbone:
        return self.compensation.extract(arch)

    def summary(self, search: SearchResult) -> dict[str, Any]:
        return {"images": count_images(self.batches)} if self.labelled else {}

    @property
    def device(self) -> torch.device:
        return next(self.full.parameters()).device
