"""Before a run: what the budget leaves of the space, how long each stage will take here, and how much disk it needs.

Times come from a few real steps on the real data; nothing is written but to a temporary folder.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from nasformer.baselines.timm_models import PREFIX
from nasformer.baselines.training import fresh_timm
from nasformer.beside import drop_path_of, has_random_search
from nasformer.families import Space
from nasformer.options import SearchOptions
from nasformer.pipeline import Run
from nasformer.recipe import Recipe
from nasformer.search import Budget, Candidate, Proposal
from nasformer.searching import problem_of, strategy_of
from nasformer.space import Arch, check_satisfiable, sample_feasible
from nasformer.supernet import Supernet
from nasformer.supernet.samplers import make_sampler
from nasformer.train.evaluate import evaluate
from nasformer.train.fit import loss_of
from nasformer.train.loop import Trainer

WARM_UP = 2  # steps, or batches
BATCHES = 3  # of an evaluation that are measured
EVALUATION_BATCH = 512
COSTS = ("params", "macs", "latency_ms", "memory_bytes")


@dataclass(frozen=True)
class Share:
    """How many of random architectures fit, and the 95 % interval of the share in the space."""

    draws: int
    fitting: int
    low: float
    high: float


def share_of(fitting: int, draws: int) -> Share:
    """Wilson's interval, which makes sense for shares near 0 and 1 too.

    >>> found = share_of(0, 100)
    >>> found.low, round(found.high, 3)
    (0.0, 0.037)
    """
    z, share = 1.96, fitting / draws
    centre = (share + z**2 / (2 * draws)) / (1 + z**2 / draws)
    half = z * math.sqrt(share * (1 - share) / draws + z**2 / (4 * draws**2)) / (1 + z**2 / draws)
    return Share(draws, fitting, max(0.0, centre - half) if fitting else 0.0, min(1.0, centre + half))


def survey_space(space: Space, budget: Budget, draws: int, seed: int) -> dict[str, Any]:
    """What fits, and the smallest, median and largest costs: in the space, and within the budget."""
    windows, rng = budget.windows(), random.Random(f"plan {seed}")
    check_satisfiable(space.root, space.costs, windows)
    example = sample_feasible(space.root, random.Random(f"plan example {seed}"), space.costs, windows)
    drawn = [space.costs(space.root.sample(rng)) for _ in range(draws)]
    fitting = [costs for costs in drawn if budget.fits(costs)]
    ends = [space.costs(space.root.smallest()), space.costs(space.root.largest())]
    inside = fitting + [costs for costs in [*ends, space.costs(example)] if budget.fits(costs)]
    return {
        "archs": str(space.root.cardinality),
        "budget": str(budget),
        "satisfiable": True,
        "share": asdict(share_of(len(fitting), draws)),
        "space": {name: spread([*ends, *drawn], drawn, name) for name in COSTS if name in ends[0]},
        "within": {name: spread(inside, fitting or inside, name) for name in COSTS if name in ends[0]},
        "example": example.to_dict(),
    }


def spread(all_costs: list[dict[str, float]], drawn: list[dict[str, float]], name: str) -> dict[str, float]:
    values = [costs[name] for costs in all_costs]
    return {"smallest": min(values), "median": median(costs[name] for costs in drawn), "largest": max(values)}


def time_stages(
    run: Run, recipe: Recipe, options: SearchOptions, budget: Budget, steps: int, timm_names: Iterable[str] = ()
) -> dict[str, Any]:
    """Seconds of supernet training, search, retraining and baselines, from a few steps of each."""
    space, total = run.space, recipe.total_steps(run.batches.steps_per_epoch)
    supernet = Supernet(space, run.config.seed).to(run.device)
    sampler = make_sampler(space, recipe.sampler, recipe.sandwich, run.config.seed)
    train = step_seconds(run, supernet, recipe, steps, sampler)
    arch = sample_feasible(space.root, random.Random(f"plan net {run.config.seed}"), space.costs, budget.windows())
    judged = evaluation_seconds(run, supernet, arch)
    candidates = strategy_of(problem_of(space, options, budget, run.config.seed), options).evaluations
    retrain = step_seconds(run, space.build(arch).to(run.device), recipe, steps)
    search = {"candidates": candidates, "seconds_per_candidate": judged, "seconds": candidates * judged}
    beside = [{"name": "random search beside", **search}] if has_random_search(options) else []
    return {
        "train": {"steps": total, "seconds_per_step": train, "seconds": total * train},
        "search": search,
        "retrain": {"steps": total, "seconds_per_step": retrain, "seconds": total * retrain},
        "baselines": beside + [time_timm(run, name, recipe, steps) for name in timm_names],
        "device": str(run.device),
        "note": "measured without compilation, which is faster once it is done" if recipe.compile else "",
    }


def time_timm(run: Run, name: str, recipe: Recipe, steps: int) -> dict[str, Any]:
    """A baseline from timm, which is trained for as many steps as the supernet."""
    model = fresh_timm(name, run.image_shape, run.config.seed, drop_path_of(run)).to(run.device)
    total, seconds = recipe.total_steps(run.batches.steps_per_epoch), step_seconds(run, model, recipe, steps)
    return {"name": f"{PREFIX}{name}", "steps": total, "seconds_per_step": seconds, "seconds": total * seconds}


def step_seconds(
    run: Run, model: nn.Module, recipe: Recipe, steps: int, sampler: Callable[[int], Any] | None = None
) -> float:
    """The median over a few steps of training, the loading of images included."""
    loss = loss_of(recipe, run.batches, run.device)
    if isinstance(model, Supernet) and sampler:
        for arch in (arch for step in range(WARM_UP + steps) for arch in sampler(step)):
            for segment in run.space.plan(arch):
                model.skeleton(segment)  # built once, at some time in a long training
    trainer = Trainer(model, run.batches, recipe, sampler=sampler, loss=loss, seed=run.config.seed, quiet=True)
    model.train()
    batches, seconds = run.batches.train_batches(0), list[float]()
    for step in range(WARM_UP + steps):
        start = time.perf_counter()
        trainer.step(step, *next(batches))
        synchronise(run.device)
        seconds.append(time.perf_counter() - start)
    return median(seconds[WARM_UP:])


def evaluation_seconds(run: Run, supernet: Supernet, arch: Arch) -> float:
    """One candidate of the search: the held-out images, and training images for batch norm where there is some."""
    images = run.batches.held_out + (run.config.calibration_images if supernet.has_statistics else 0)
    few = FewBatches(run.batches)
    for _ in range(WARM_UP):  # the second time counts
        start, few.images = time.perf_counter(), 0
        evaluate(supernet, few, "holdout", arch=arch, batch_size=EVALUATION_BATCH, precision=run.recipe.precision)  # type: ignore[arg-type]
        synchronise(run.device)
        seconds = time.perf_counter() - start
    return seconds / few.images * images


class FewBatches:
    """The first batches of an evaluation, and how many images they had."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.images = batches, 0

    def evaluation(self, split: str, batch_size: int) -> Any:
        for x, labels in islice(self.batches.evaluation(split, batch_size), BATCHES):
            self.images += len(labels)
            yield x, labels


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def disk_needed(
    space: Space, recipe: Recipe, candidates: int, folder: Path, example: Arch, baselines: Sequence[int] = ()
) -> dict[str, Any]:
    """Bytes by what is kept; `baselines` are their numbers of parameters.

    While a checkpoint is written, the one before is still there. That of a finished training stays.
    """
    weights = 4 * sum(tensor.numel() for tensor in Supernet(space).shared().values())
    moments = 2 if recipe.optimizer == "adamw" else 1
    copies = 1 + moments + bool(recipe.ema)
    largest = 4 * space.costs(space.root.largest())["params"]
    needed = {
        "checkpoints": 2 * copies * weights,
        "supernet": weights,
        "model": round(largest),
        "journal": candidates * journal_line(space, example),
    }
    if baselines:
        needed["baselines"] = 4 * copies * (sum(baselines) + max(baselines))
    free = shutil.disk_usage(existing(folder)).free
    return {**needed, "total": sum(needed.values()), "free": free}


def journal_line(space: Space, arch: Arch) -> int:
    proposal = Proposal(arch, "crossover", 10, (100, 101))
    return len(json.dumps(Candidate.judged(1000, proposal, {**space.costs(arch), "accuracy": 1 / 3}).to_dict())) + 1


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def warnings_of(plan: Mapping[str, Any]) -> list[str]:
    """What the user should think about before starting."""
    found, disk, share = [], plan["disk"], plan["space"]["share"]
    if disk["total"] > disk["free"]:
        found.append("the disk has too little room: free some, or choose another --out")
    if share["fitting"] == 0:
        found.append(f"none of {share['draws']} random architectures fits: the budget is very narrow")
    return found
