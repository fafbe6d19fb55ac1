"""Baselines of a run: random search, models of timm that fit its budget, and models of timm trained by its recipe.

RUN/search/random.jsonl    the candidates of a random search alongside
RUN/baselines/NAME/        log.jsonl, checkpoints/ of each model of timm; killed, it goes on
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nasformer.data.loaders import BatchSource, Split
from nasformer.errors import UserError, one_line
from nasformer.models.dense import TimmNet, timm_model
from nasformer.models.space import Space
from nasformer.models.storage import fingerprint
from nasformer.results.folder import RunFolder
from nasformer.results.result import ImageCounts
from nasformer.runs.base import Run
from nasformer.runs.options import PREFIX, timm_name, timm_names
from nasformer.runs.pools import Work, run_tasks, training_memory
from nasformer.search.problem import Candidate, ModelResult, Problem
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget
from nasformer.supernet.storage import timm_weights
from nasformer.supernet.supernet import ALONE
from nasformer.train.evaluate import evaluate, objective_of
from nasformer.train.loop import train_model
from nasformer.train.recipe import Recipe
from nasformer.utils.device import World, join_world

COUNTED = ("params", "macs")
MOST = 12


# Random search: the best of the random start of another search costs nothing; a whole one takes as many evaluations.


def best_of_start(problem: Problem, candidates: Sequence[Candidate]) -> dict[str, Arch]:
    """The best of the random candidates that a search began with, by a name that says of how many.

    Empty for a search that was random throughout, or that drew nothing at random.
    """
    start = [candidate for candidate in candidates if candidate.origin == "random" and candidate.generation == 0]
    if len(start) in (0, len(candidates)) or not problem.finite(start):
        return {}
    return {random_name(len(start)): problem.winner(start).arch}


def best_of_random(search: SearchResult) -> dict[str, Arch]:
    """The winner of a random search, by a name that says of how many candidates."""
    return {random_name(len(search.candidates)): search.best.arch}


def random_name(count: int) -> str:
    """The name of a random search's winner in results.

    >>> random_name(1000)
    'best of 1,000 random'
    """
    return f"best of {count:,} random"


# Models of timm that fit the budget: their costs were counted once (`benchmarks/timm_table.py`).


@cache
def timm_table() -> dict[str, Any]:
    """The version of timm, the image size and number of classes that was counted for, and the models."""
    return json.loads(files("nasformer.runs").joinpath("timm_table.json").read_text(encoding="utf-8"))


def fitting_timm_models(budget: Budget, params: float, space: Space, most: int = MOST) -> list[ModelResult]:
    """Models within the limits on parameters and MACs, those of about so many parameters first.

    Parameters are those for the space's number of classes. MACs at other image sizes than that of the table are
    estimated: they grow with the area. Limits on anything else, such as latency, are left out.

    >>> import nasformer
    >>> limits = Budget(max_params=5_000_000, max_macs=200_000_000)
    >>> models = fitting_timm_models(limits, 4e6, nasformer.get_space("autoformer-tiny"), most=2)
    >>> [model.name for model in models]
    ['mobilenetv4_conv_small', 'efficientvit_b0']
    """
    options = space.full_options
    models = [
        ModelResult(name, {}, timm_table_costs(counts, options["img_size"], options["num_classes"]))
        for name, counts in timm_table()["models"].items()
    ]
    windows = [window for window in budget.windows() if window.name in COUNTED]
    fitting = [model for model in models if not any(window.excess(model.scores) for window in windows)]
    return sorted(fitting, key=lambda model: abs(model["params"] - params))[:most]


def timm_table_costs(counts: dict[str, int], img_size: int, num_classes: int) -> dict[str, float]:
    table = timm_table()
    params = counts["params"] + (num_classes - table["num_classes"]) * counts["per_class"]
    return {"params": params, "macs": round(counts["macs"] * (img_size / table["img_size"]) ** 2)}


# Models of timm trained by the recipe of a run, on its images and for as many steps. A run from a pretrained net
# fine-tunes them from their own pretrained weights, others train them from scratch.


def build_timm(
    name: str,
    img_size: int,
    in_chans: int,
    num_classes: int,
    drop_path_rate: float = 0.0,
    device: str | torch.device = "cpu",
    task: str = "classify",
    head: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """A timm model with fresh weights, for images of this size.

    Stochastic depth is for models that have it.

    Args:
        task: Whose head it has; a classifier is as timm has it.
        head: Options of that head.
    """

    def build(**accepted: Any) -> nn.Module:
        if task == "classify":
            return timm_model(name, in_chans=in_chans, num_classes=num_classes, **options, **accepted)
        return TimmNet(name, task, img_size, in_chans, num_classes, head, {**options, **accepted})

    size = {"img_size": img_size}  # most convolutional nets take any size and know no such option
    depth = {"drop_path_rate": drop_path_rate} if drop_path_rate else {}
    with torch.device(device):
        for accepted in (size | depth, depth, size):
            try:
                return build(**accepted)
            except TypeError:
                continue
        return build()


def count(model: nn.Module, img_size: int, in_chans: int) -> dict[str, int]:
    """Parameters, and MACs of one image: half the operations that torch's counter sees. The model must be on meta.

    The head of another task than classification is counted as in budgets.
    """
    if isinstance(model, TimmNet):
        encoder, on_top = count(model.encoder, img_size, in_chans), model.head_cost()
        return {"params": encoder["params"] + on_top.params, "macs": encoder["macs"] + on_top.macs}
    model.eval().requires_grad_(False)  # rather than no_grad, under which the counter fails on nested inputs
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, in_chans, img_size, img_size, device="meta"))
    params = sum(parameter.numel() for parameter in model.parameters())
    return {"params": params, "macs": counter.get_total_flops() // 2}


def timm_costs(names: Sequence[str], shape: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Parameters and MACs of timm models; refuses one that cannot take images of this shape, before anything slow."""
    costs = {}
    for name in names:
        try:
            model = build_timm(timm_name(name), **shape, device="meta")
            costs[name] = count(model, shape["img_size"], shape["in_chans"])
        except Exception as error:  # sizes that do not divide, windows that do not fit: timm raises a dozen kinds
            reason = one_line(error, 160)
            size, task = shape["img_size"], f" for --task {shape['task']}" if "task" in shape else ""
            what = f"timm:{timm_name(name)} does not take images of {size} px{task} ({reason})"
            raise UserError(f"{what}; choose another one") from error
    return costs


def fresh_timm(
    name: str, shape: dict[str, Any], seed: int, drop_path_rate: float = 0.0, pretrained: bool = False
) -> nn.Module:
    """A timm model whose weights depend on the seed alone, unless they are pretrained.

    Stochastic depth is part of the recipe.
    """
    weights = pretrained_options(name) if pretrained else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_timm(timm_name(name), **shape, drop_path_rate=drop_path_rate, **weights)


def pretrained_options(source: str) -> dict[str, Any]:
    """Arguments by which timm builds a model with its pretrained weights, or with those of a named file."""
    import timm

    name, _, file = source.partition(":")
    state = timm_weights(name, Path(file) if file else None)
    model = timm.create_model(name)
    rest = set(map(id, model.get_classifier().parameters()))  # the classifier is for other classes, or not there
    missing = [key for key, weight in model.named_parameters() if key not in state and id(weight) not in rest]
    if missing:
        raise UserError(f"{PREFIX}{source}: {missing[0]} is missing; are these weights of {name}?")
    return {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": state}}


def train_timm(
    name: str,
    batches: BatchSource,
    recipe: Recipe,
    shape: dict[str, Any],
    *,
    device: torch.device,
    seed: int = 0,
    folder: RunFolder | None = None,
    settings: dict[str, Any] | None = None,
    drop_path_rate: float = 0.0,
    pretrained: bool = False,
) -> ModelResult:
    """Trains a timm model like one of ours, and evaluates it."""
    costs = timm_costs([name], shape)[name]
    model = fresh_timm(name, shape, seed, drop_path_rate, pretrained).to(device)
    name = timm_name(name)
    settings = {**(settings or {}), "arch": f"{PREFIX}{name}"}
    settings |= {"weights": fingerprint(model)} if pretrained else {}
    path, label = folder.path if folder else None, f"baseline {name}"
    train_model(model, batches, recipe, folder=path, seed=seed, settings=settings, label=label)
    scores = split_accuracies(model, batches, recipe.precision, join_world(device))
    return ModelResult(f"{PREFIX}{name}", {}, {**costs, **scores})


def split_accuracies(
    model: nn.Module, batches: BatchSource, precision: str, world: World = ALONE, splits: Sequence[Split] = ()
) -> dict[str, float]:
    """A trained model's accuracy, or the score of its task, by names such as holdout_accuracy.

    Args:
        world: Processes that share the images, and all call this alike.
        splits: Which images; by default the test images and the held-out ones, if any.
    """
    name = objective_of(batches).score
    splits = splits or (("holdout", "test") if batches.held_out else ("test",))
    scores = {split: evaluate(model, batches, split, precision=precision, world=world) for split in splits}
    return {f"{split}_{name}": score[name] for split, score in scores.items()}


def count_images(batches: BatchSource) -> ImageCounts:
    return ImageCounts(batches.held_out, batches.test_images, batches.num_classes, batches.train_images)


def check_baselines(run: Run, baseline: str) -> dict[str, dict[str, int]]:
    """Costs of the timm models asked for. Raises now what their training would raise after a long search."""
    return timm_costs(timm_names(baseline), run.image_shape)


def drop_path_rate(space: Space) -> float:
    """The rate of stochastic depth: a part of the recipe, so that baselines have it as our models do."""
    return float(space.options.get("drop_path_rate", 0.0))


def train_baselines(run: Run, baseline: str, recipe: Recipe, pretrained: bool = False) -> list[ModelResult]:
    """Trains the timm models that are asked for, on the run's images and for as many steps; all processes together.

    Args:
        pretrained: Whether they start from the weights that timm has of them.
    """
    rate = drop_path_rate(run.space)
    images = {name: run.train_settings[name] for name in ("data", "holdout", "train_images")}
    settings = {**images, "drop_path_rate": rate}
    facts = (run.image_shape, run.options.seed, run.folder.baselines, settings, rate, pretrained)
    job = TimmJob(run.batches, recipe, *facts)
    names, results = timm_names(baseline), None
    if run.world.size == 1 and len(names) > 1:
        memory = partial(baseline_memory, run, recipe, names, rate)
        results = run_tasks(job, names, run.executor, run.device, run.folder.baselines, "baselines", memory)
    return [job.train(name, run.batches, run.device) for name in names] if results is None else results


def baseline_memory(run: Run, recipe: Recipe, names: Sequence[str], drop_path_rate: float) -> int:
    """Memory that training the largest of these models takes."""
    costs = timm_costs(names, run.image_shape)
    largest = max(names, key=lambda name: costs[name]["macs"])
    model = fresh_timm(largest, run.image_shape, run.options.seed, drop_path_rate)
    return training_memory(run.batches, model, recipe, run.device)


@dataclass(frozen=True)
class TimmJob:
    """Trains models of timm by their names, each in a folder of its own, where a training goes on after a kill."""

    batches: BatchSource
    recipe: Recipe
    shape: dict[str, Any]
    seed: int
    folder: Path
    settings: dict[str, Any]
    drop_path_rate: float
    pretrained: bool = False

    def open(self, device: str) -> Work:
        batches = self.batches.to(device)
        return lambda name: self.train(name, batches, torch.device(device))

    def train(self, name: str, batches: BatchSource, device: torch.device) -> ModelResult:
        return train_timm(
            name,
            batches,
            self.recipe,
            self.shape,
            device=device,
            seed=self.seed,
            folder=RunFolder(self.folder / timm_name(name)),
            settings=self.settings,
            drop_path_rate=self.drop_path_rate,
            pretrained=self.pretrained,
        )
