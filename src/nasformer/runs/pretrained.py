"""From a pretrained net to a smaller one on the user's images: `nasformer run --from timm:NAME --data PHOTOS`.

1. full      The net itself is fine-tuned on the images (OUT/full); it is the teacher of all that follows.
2. sort      Its heads and neurons are sorted by importance, so that every prefix keeps the best of them.
3. supernet  All that can be cut out of it is trained together, in a sandwich, to answer as the full net does.
4. search    Any strategy finds the best within the budget, by held-out accuracy with the supernet's weights.
5. finish    The winner is trained to answer as the full net does, from its slices of the supernet and from those of
             the full net; what is better on held-out images is shipped (`finish.py`).

A source that is a supernet already starts with stage 3. Each stage goes on where a killed run stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from nasformer.data.loaders import BatchSource
from nasformer.data.options import AugmentOptions
from nasformer.families.base import Backbone
from nasformer.families.storage import build_from, fingerprint, save_model
from nasformer.results.result import RunResult
from nasformer.runs.baselines import split_accuracies, train_baselines
from nasformer.runs.finish import Start, finish_winner, single_recipe
from nasformer.runs.options import RunCommand
from nasformer.runs.run import Run, open_run
from nasformer.runs.ship import ship
from nasformer.runs.stages import training_work
from nasformer.search.model_result import ModelResult
from nasformer.space.arch import Arch
from nasformer.supernet.importance import Labelled, find_importance, sort_by_importance
from nasformer.supernet.pretrained import Pretrained, find_pretrained, supernet_from
from nasformer.supernet.storage import carry_over
from nasformer.supernet.supernet import Supernet
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe

SORTING_IMAGES = 1024
"""Training images on which importance is measured."""
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
SUPERNET_LR, FULL_NET_LR = 0.4, 2.0
"""Learning rates of a winner as multiples of the supernet's: what starts from the supernet fits already, what starts
from slices of the full net has far to go."""


def run_pretrained(command: RunCommand) -> RunResult | None:
    """All stages; the result, in the main process."""
    find_importance(command.importance)
    source = find_pretrained(command.from_ or "")
    whole = source.space.with_options(**command.model_options())
    command = command.with_shares(whole.costs(whole.root.largest()))
    command = replace(command, train=pretrained_recipe(command.train))
    with open_run(command, "supernet") as run:
        job = PretrainedRun(run, source, command)
        run.measure_profile(command, command.search.objectives)
        with job.stages():
            full = job.full()
            supernet = job.supernet(full)
            trained = [job.full_result(full), *train_baselines(run, command.baseline, job.recipes.full)]
            if not run.world.main:
                return None
            result = run.search(supernet.eval(), command.search, command.budget(), trained)
            result = finish_winner(run, result, job.starts(result.arch, supernet, full))
        if command.export:
            ship(run.folder)
    return result


def pretrained_recipe(asked: Recipe) -> Recipe:
    """The recipe of the supernet: what the user left at its default takes the value for a pretrained net."""
    plain = Recipe()
    left = {item.name for item in fields(Recipe) if getattr(asked, item.name) == getattr(plain, item.name)}
    if asked.teacher:  # one of the user's choice, which may be of any kind: only its answers can be compared
        left -= {"teacher_features"}
    return replace(asked, **{name: value for name, value in PRETRAINED.items() if name in left})


@dataclass(frozen=True)
class Recipes:
    """The recipes of the stages that train."""

    full: Recipe
    supernet: Recipe
    finish: Recipe


def stage_recipes(recipe: Recipe, images: int, steps_per_epoch: int) -> Recipes:
    """The recipes of all stages for so many training images.

    A length that the user gives, in epochs or steps, is that of the supernet and of the winner; the full net takes
    half of it.
    """
    asked = recipe.iterations or (recipe.epochs != "auto" and recipe.total_steps(steps_per_epoch))
    steps = int(asked) / 2 if asked else steps_for(images)

    def last(share: float) -> dict[str, Any]:
        count = max(1, round(share * steps))
        return {"iterations": count, "warmup_epochs": 0.1 * count / steps_per_epoch}

    taught = {"teacher": None, "teacher_weight": 0.0}
    return Recipes(
        full=single_recipe(recipe, **last(1), layer_decay=0.75, **({} if recipe.teacher else taught)),
        supernet=replace(recipe, **last(2)),
        finish=single_recipe(recipe, **last(2)),
    )


def steps_for(images: int) -> int:
    """Steps in which a pretrained net is fine-tuned: more for more images, but fewer passes over them.

    >>> steps_for(500), steps_for(1020), steps_for(50_000)
    (335, 479, 3354)
    """
    return round(15 * math.sqrt(images))


class PretrainedRun:
    """The stages of a run that starts from a pretrained net.

    Args:
        run: Its folder, images and space; the space is that of the source.
        source: The weights to start from.
    """

    def __init__(self, run: Run, source: Pretrained, command: RunCommand) -> None:
        self.run, self.source, self.command = run, source, command
        batches = run.batches
        images = batches.steps_per_epoch * min(command.train.batch_size, getattr(batches, "batch_size", 10**9))
        self.recipes = stage_recipes(command.train, images, batches.steps_per_epoch)
        facts = source.facts
        if facts.mean and facts.std and len(facts.mean) == len(facts.std) == batches.in_chans:
            batches.mean, batches.std = facts.mean, facts.std
        self.settings = {**run.settings, "space": run.space.name, "weights": fingerprint(source.model)}

    def stages(self) -> AbstractContextManager[None]:
        """Refuses what cannot be; within it, progress tells the time that all stages need."""
        run, recipes = self.run, self.recipes
        macs = run.space.costs(run.space.root.largest())["macs"]
        finish = {} if self.command.finish == "none" else dict.fromkeys(self.start_names, recipes.finish)
        full = {"full net": training_work(recipes.full, run.batches, macs)}
        return run.stages(self.command, recipes.supernet, finish, full)

    @property
    def start_names(self) -> list[str]:
        """The weights that the winner's own training starts from."""
        both = self.command.finish == "auto" and self.source.supernet is None
        return [SLICED_SUPERNET, SLICED_NET] if both else [SLICED_SUPERNET]

    @property
    def same_classes(self) -> bool:
        """Whether the source's classifier is for the run's classes."""
        names = self.source.facts.classes or self.run.batches.classes
        same = self.source.model.num_classes == self.run.batches.num_classes
        return same and list(names) == list(self.run.batches.classes)

    def full(self) -> Backbone:
        """The full net for the run's images, fine-tuned and sorted; in OUT/full. A supernet's largest is left as is."""
        run, folder = self.run, self.run.folder / "full"
        model = build_from(deepcopy(self.source.model), run.space, run.options.seed, self.same_classes).to(run.device)
        train_model(
            model,
            run.batches,
            self.recipes.full,
            folder=folder.train,
            seed=run.options.seed,
            settings=self.settings,
            label="full net",
        )
        if self.source.supernet is None:
            sort_by_importance(model, sorting_batches(run.batches), self.command.importance)
        if run.world.main:
            save_model(model, folder.model, space=run.space.name, **run.image_facts)
        return model.eval()

    def full_result(self, full: Backbone) -> ModelResult:
        """The full net in the result, for comparison."""
        scores = split_accuracies(full, self.run.batches, self.recipes.full.precision, self.run.world)
        return ModelResult("full net, finetuned", full.arch.to_dict(), {**self.run.space.costs(full.arch), **scores})

    def supernet(self, full: Backbone) -> Supernet:
        """All that can be cut out of the full net, trained together to answer as it does."""
        supernet = supernet_from(full, self.run.space)
        if self.source.supernet is not None:  # its members are trained, which the full net's fine-tuning undid
            carry_over(self.source.supernet, supernet)
        teacher = None if self.recipes.supernet.teacher else full
        self.run.train(self.recipes.supernet, supernet, teacher, weights=fingerprint(full))
        return supernet

    def starts(self, arch: Arch, supernet: Supernet, full: Backbone) -> dict[str, Start]:
        """How the winner is finished: from its slices of the supernet, and from those of the full net."""
        recipe, method = self.recipes.finish, self.command.finish
        teacher = None if recipe.teacher else full
        if method == "none":
            return {}
        gentle = replace(recipe, lr=SUPERNET_LR * recipe.lr)
        starts = {SLICED_SUPERNET: Start(supernet.extract(arch), gentle, teacher)}
        if SLICED_NET in self.start_names:
            sliced = supernet_from(full, self.run.space).extract(arch)
            starts[SLICED_NET] = Start(sliced, replace(recipe, lr=FULL_NET_LR * recipe.lr), teacher)
        return starts


def sorting_batches(batches: BatchSource, images: int = SORTING_IMAGES, batch_size: int = 64) -> Iterator[Labelled]:
    """The first training images with their labels, as evaluation shows them."""
    return islice(batches.evaluation("train", batch_size), math.ceil(images / batch_size))
