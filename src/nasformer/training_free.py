"""Training-free work of the command line: scorers from options, and a proxy search in a run folder.

RUN/config.json            what was asked, and the versions that did it
RUN/search/journal.jsonl   every candidate
RUN/result.json            the winner beside its references
RUN/plots/, RUN/report.html, RUN/candidates.csv
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.agreement import fit_to_data
from nasformer.baselines.random_start import RANDOM, best_of_search, best_of_start
from nasformer.baselines.timm_table import fitting
from nasformer.config import SearchCommand
from nasformer.data import BatchSource
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.files import locked, write_json
from nasformer.folders import load_batches
from nasformer.latency.lookup import with_profile
from nasformer.latency.search import keep_profile, measured_winner, profile_settings
from nasformer.noting import noted_in
from nasformer.options import DataConfig, ProbeConfig, SearchOptions, SpaceConfig
from nasformer.proxies.scoring import Scorer
from nasformer.proxies.search import search_training_free
from nasformer.recipe import AugmentConfig, Recipe
from nasformer.search import Budget, Problem, SearchResult, references
from nasformer.search.problem import Order
from nasformer.space import Arch
from nasformer.train.distributed import World

EVALUATIONS = 8000  # TF-TAS's


def make_scorer(command: Any, space: Space) -> Scorer:
    """The scorer that a command asks for; where data is named, the space is fitted to it."""
    check_probing(command)
    device, batches = choose_device(command.device), None
    if command.data:
        # Images keep their size, unless another was asked for, by an option or in a table.
        asked = command.img_size if isinstance(command, SpaceConfig) else space.options.get("img_size")
        batches = probe_batches(command, asked)
        space = fit_to_data(space, batches, command)
    return Scorer(space, command.proxy, batches=batches, seed=command.seed, device=device, **command.probing())


def check_probing(command: ProbeConfig) -> None:
    for name in ("repeats", "probe_size"):
        if getattr(command, name) < 1:
            raise UserError(f"{name} is {getattr(command, name)}; give 1 or more")


def probe_batches(command: Any, img_size: int | None) -> BatchSource:
    """Plain training images, shuffled, without augmentation."""
    plain = Recipe(batch_size=command.probe_size, augment=AugmentConfig(crop="none", hflip=0.0, smoothing=0.0))
    asked = {name: getattr(command, name) for name in ("data_root", "download", "max_bad") if hasattr(command, name)}
    config = DataConfig(data=command.data, seed=command.seed, **asked)
    return load_batches(config, plain, World(), choose_device(command.device), img_size)


def search_in_folder(command: SearchCommand, space: Space) -> dict[str, Any]:
    """Searches by proxies; with a run folder it can be killed and goes on."""
    scorer, budget = make_scorer(command, space), command.budget()
    device = choose_device(command.device).type
    scorer.space, profile = with_profile(scorer.space, command, command.search.objectives, device)
    with opened(command, scorer.space) as folder:
        place: dict[str, Any] = {"budget": budget, "seed": command.seed}
        place["settings"] = {"data": command.data, **profile_settings(profile)}
        result = search_as(command.search, scorer, folder, "journal.jsonl", **place)
        rivals = random_rivals(command.search, scorer, folder, result, **place)
        keep_profile(profile, folder)
        winner, measured, told = measured_winner(profile, scorer.space, result, budget, folder)
        summary = summarise(scorer, result, winner, budget, command, rivals) | told
        summary["winner"] |= measured
        if folder:
            publish(folder, summary)
    return summary


def search_as(options: SearchOptions, scorer: Scorer, folder: Path | None, journal: str, **place: Any) -> SearchResult:
    return search_training_free(
        scorer,
        strategy=options.strategy,
        options=options.options(EVALUATIONS),
        objectives=tuple(options.objectives),
        journal=folder / "search" / journal if folder else None,
        **place,
    )


def random_rivals(
    options: SearchOptions, scorer: Scorer, folder: Path | None, result: SearchResult, **place: Any
) -> dict[str, Arch]:
    """The best of a random search with as many candidates, if asked for; else that of the search's random start."""
    if options.strategy == "random":
        return {}
    if options.baseline == "random":
        again = replace(options, strategy="random", evaluations=len(result.candidates))
        return best_of_search(search_as(again, scorer, folder, RANDOM, **place))
    objectives = tuple(options.objectives) or tuple(proxy.name for proxy in scorer.proxies)
    order: Order = "pareto" if options.objectives else "ranks"
    problem = Problem(scorer.space.root, scorer.space.costs, place["budget"], objectives, place["seed"], order)
    return best_of_start(problem, result.candidates)


@contextmanager
def opened(command: SearchCommand, space: Space) -> Iterator[Path | None]:
    """The run folder, locked, with its config; None where the user wants none."""
    if not command.out:
        yield None
        return
    folder = Path(command.out)
    if (folder / "supernet").exists() or (folder / "train").exists():
        raise UserError(f"{folder} is the run of a training; give the proxy search another --out folder")
    with locked(folder / ".lock"), noted_in(folder, command, space):
        yield folder


def summarise(
    scorer: Scorer,
    result: SearchResult,
    winner: Arch,
    budget: Budget,
    command: SearchCommand,
    further: Mapping[str, Arch],
) -> dict[str, Any]:
    """The winner beside a random arch, the smallest and the largest in the budget and further ones, scored alike."""

    def row(name: str, arch: Arch) -> dict[str, Any]:
        scores = {proxy: score.to_dict()["mean"] for proxy, score in scorer.score(arch).items()}
        return {"name": name, "arch": arch.to_dict(), **scorer.space.costs(arch), **scores}

    rivals = references(scorer.space.root, scorer.space.costs, budget, command.seed) | dict(further)
    known = scorer.space.full_options
    shape = {name: known[name] for name in ("img_size", "num_classes")}
    return {
        "space": scorer.space.name,
        "data": command.data or None,
        "budget": str(budget),
        "proxies": [proxy.name for proxy in scorer.proxies],
        "candidates": len(result.candidates),
        "winner": row("winner", winner),
        "references": [row(name, arch) for name, arch in rivals.items()],
        "timm": fitting(budget, scorer.space.costs(winner)["params"], **shape),
        "front": [one.to_dict() for one in result.front],
        "note": result.note,
    }


def publish(folder: Path, summary: dict[str, Any]) -> None:
    from nasformer.report import write_report

    write_json(folder / "result.json", summary)
    write_report(folder)
